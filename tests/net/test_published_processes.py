"""Real processes on loopback: learners of other homes train on text that only the owner had."""

from __future__ import annotations

import shutil

import pytest

from host.files.shard_files import ShardFiles
from host.files.signed_project import read_signed
from tests.net.swarms import Elsewhere

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]


def test_friends_train_by_the_link_alone_and_give_each_other_what_the_host_lost(tmp_path):
    with Elsewhere(tmp_path) as swarm:
        swarm.prepare(data__publish=True)
        genesis = read_signed(swarm.signed).genesis
        (tmp_path / "text.txt").unlink()
        for corpus in (tmp_path / "home" / "cache").glob("corpus-*.*"):
            corpus.unlink()
        for corpus in (tmp_path / "home" / "cache").glob("corpus-*"):
            shutil.rmtree(corpus)
        swarm.begin()
        swarm.start_learner("ada")
        swarm.all_merge("ada")
        assert swarm.learner("ada").notices == []

        files = ShardFiles(swarm.home.data_cache(), genesis)
        total = files.table.train_shards

        def has_all():
            now = swarm.learner("ada")
            return now and now.shards.held >= total and now

        now = swarm.until(has_all, "a whole pass over the text")
        assert now.shards.fetched_bytes < 2 * now.shards.fed_bytes
        assert now.shards.held <= now.shards.total == len(files.table.shards)

        for one in files.table.shards[:total]:
            files.path(one).unlink()
        swarm.start_learner("bob")
        swarm.all_merge("ada", "bob")
        bob = swarm.learner("bob")
        assert bob.shards.fetched_bytes > 0
        assert bob.local_step > 0


def test_a_learner_whose_shards_nobody_has_waits_and_says_so(tmp_path):
    with Elsewhere(tmp_path) as swarm:
        swarm.prepare(data__publish=True)
        files = ShardFiles(swarm.home.data_cache(), read_signed(swarm.signed).genesis)
        hidden = [files.path(one) for one in files.table.shards[: files.table.train_shards]]
        for path in hidden:
            path.rename(path.with_suffix(".hidden"))
        swarm.begin()
        swarm.start_learner("ada")

        def said():
            now = swarm.learner("ada")
            return now and now.sentence.startswith("Waiting for text: fetching shard") and now

        assert swarm.until(said, "a learner that waits").trainer_restarts == 0
        assert "not all of the project's data" in swarm.output("syncer")
        for path in hidden:
            path.with_suffix(".hidden").rename(path)
        swarm.kill("syncer")
        swarm.start_syncer()
        swarm.all_merge("ada")
        assert swarm.learner("ada").trainer_restarts == 0
