"""The only syncer's store is deleted, as real processes: learners keep what they have."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from host.files.home import Home
from protocol.errors import UserError
from shoal.project import recover_from_learners
from tests.net.swarms import TinySwarm, shoal
from tests.support.builders import weights
from tests.support.hosted_logs import hosted_log

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

LEARNERS = ("ada", "bob")
OPTIONS = ("--duty", "0.3", "--no-evaluate")
SELDOM = 384
"""Local steps between two merges of a fragment, where it matters how many of them are missed: of
more than four, whole weights come."""

PEER = "12D3KooWGRUfNnHJbiQyh3HW2pQTcAcm1MGVvpFbHi1BLsQZRS6d"


@contextlib.contextmanager
def merging_swarm(folder, local_steps=8):
    with TinySwarm(folder) as made:
        made.prepare(rounds__quorum=1, rounds__local_steps=local_steps, limits__evaluate_every=1000)
        made.begin()
        for name in LEARNERS:
            made.start_learner(name, *OPTIONS)
        made.all_merge(*LEARNERS)
        yield made


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with merging_swarm(tmp_path_factory.mktemp("lost")) as made:
        yield made


def learners(swarm):
    found = {name: swarm.learner(name) for name in LEARNERS}
    return found if all(found.values()) else None


def reset_from_learners(swarm, link):
    swarm.tell("syncer", "stop")
    assert swarm.ended("syncer") == 0
    reset = ["project", "reset-seat", str(swarm.project), "--from-learners", link, "--yes"]
    done = shoal(swarm.home, *reset)
    assert done.returncode == 0, done.stderr
    assert "epoch 1 begins behind record" in done.stdout
    assert "on the word of learner" in done.stdout


def test_without_its_store_the_syncer_stops_and_with_what_learners_hold_it_goes_on(swarm):
    swarm.kill("syncer")
    # The last that the syncer said may not be looked at yet.
    seen = max(
        one.swarm.global_step
        for one in swarm.until(lambda: learners(swarm), "both learners").values()
    )
    shutil.rmtree(swarm.store("syncer"))
    swarm.start_syncer()

    def stopped():
        now, said = swarm.syncer(), learners(swarm)
        is_told = said and all(one.younger for one in said.values())
        return (now, said) if now and now.phase == "stopped" and is_told else None

    syncer, said = swarm.until(stopped, "a syncer that stopped, and learners that know it")
    assert "shoal project reset-seat" in syncer.sentence
    assert syncer.swarm.global_step == 0
    lost_step = max(one.swarm.global_step for one in said.values())
    assert seen <= lost_step <= seen + 1
    for one in said.values():
        assert one.swarm.global_step in (lost_step, lost_step - 1), "it keeps its log"
        assert one.weights_held == len(one.versions), "and its weights"
        assert max(one.versions) > 0
        assert "shoal project reset-seat" in one.sentence
    told = swarm.run("status")
    assert "shoal project reset-seat" in told
    assert "All is well" not in told

    reset_from_learners(swarm, syncer.join_link)
    swarm.start_syncer()

    def goes_on():
        now, said = swarm.syncer(), learners(swarm)
        is_on = now and now.swarm.epoch == 1 and now.swarm.global_step > lost_step
        return now if is_on and said and not any(one.younger for one in said.values()) else None

    swarm.until(goes_on, "merges behind the newest step that a learner had")


def test_what_everybody_kept_when_they_were_switched_off_is_enough_to_go_on(tmp_path):
    with merging_swarm(tmp_path, local_steps=SELDOM) as swarm:
        for name in LEARNERS:
            swarm.tell(name, "stop")
            assert swarm.ended(name) == 0
            assert "fragments for the next start" in swarm.output(name)
        before = swarm.syncer().swarm.global_step
        swarm.kill("syncer")
        shutil.rmtree(swarm.store("syncer"))

        swarm.start_syncer()
        for name in LEARNERS:
            swarm.start_learner(name, *OPTIONS)
        stopped = swarm.until(
            lambda: (now := swarm.syncer()) and now.phase == "stopped" and now,
            "a syncer that stopped",
        )
        swarm.until(
            lambda: all("all of them from this disk" in swarm.output(name) for name in LEARNERS),
            "weights that were kept",
        )
        reset_from_learners(swarm, stopped.join_link)
        swarm.start_syncer()
        swarm.until(
            lambda: (now := swarm.syncer()) and now.swarm.global_step > before and now,
            "merges behind those of before",
        )
        assert not any("Traceback" in output for output in swarm.outputs().values())


def test_who_is_started_again_fetches_no_weights(tmp_path):
    with merging_swarm(tmp_path, local_steps=SELDOM) as swarm:
        swarm.tell("ada", "stop")
        assert swarm.ended("ada") == 0
        kept = Home(tmp_path / "home").root / "cache" / "begun-weights"
        assert list(kept.glob("*/*/bookmark"))
        swarm.start_learner("ada", *OPTIONS)
        swarm.until(
            lambda: "all of them from this disk" in swarm.output("ada"), "kept weights", limit_s=60
        )
        assert "goes on from record" in swarm.output("ada")
        swarm.all_merge("ada")
        assert swarm.learner("ada").weights_sources == {}
        assert not list(kept.glob("*")), "once it is taken up, it is gone"


def test_who_finds_no_learner_reads_why(tmp_path, monkeypatch):
    monkeypatch.setattr(recover_from_learners, "CONNECT_S", 5.0)
    opened = hosted_log(tmp_path, [(1.7e9, weights())]).opened
    with pytest.raises(UserError, match=r"No learner was found \((none of|the swarm answers)"):
        recover_from_learners.find_newest(opened, (f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}",))
