"""Real processes on loopback: learners of other homes train on images that only the owner had."""

from __future__ import annotations

import shutil

import pytest

from protocol.log.records import CheckpointEvaluated
from tests.net.swarms import TINY, Elsewhere
from tests.support.image_folder import image_project

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

RULES = {
    key.replace(".", "__"): value
    for key, value in TINY.items()
    if key.startswith(("rounds.", "limits."))
}


def test_a_friend_learns_to_tell_images_by_the_link_alone(tmp_path):
    with Elsewhere(tmp_path) as swarm:
        swarm.write_project("tiny", TINY)
        text = image_project(tmp_path, **RULES, data__publish=True, training__batch_sequences=2)
        swarm.project.write_text(text)
        swarm.sign()
        shutil.rmtree(tmp_path / "images")
        for folder in (tmp_path / "home" / "cache").glob("images-*"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        swarm.begin()
        swarm.start_learner("ada")
        swarm.all_merge("ada")

        def has_fetched():
            now = swarm.learner("ada")
            return now and now.shards.fetched_bytes > 0 and now.local_step > 50 and now

        now = swarm.until(has_fetched, "local steps on images that were fetched")
        assert now.notices == []

        def losses():
            seen = [one.loss for one in swarm.bodies("syncer", CheckpointEvaluated)]
            return len(seen) > 2 and seen

        seen = swarm.until(losses, "three held-out losses")
        assert min(seen) < seen[0]
