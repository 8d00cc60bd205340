"""Real processes on loopback: who is killed comes back with another learner's optimizer state.

First a whole learner is killed and started again, then only the trainer of the other one.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from tests.net.swarms import TinySwarm, is_gone

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

LEARNERS = ("ada", "bob")
SEASONED = "moments of another learner"


@dataclass
class Seen:
    """What was seen on the way."""

    first: Any = None
    """The statuses of those who began with nobody to ask."""
    returned: Any = None
    """The killed learner when it was in merges again."""
    before_trainer: Any = None
    after_trainer: Any = None
    """The other one before its trainer was killed, and in merges again."""
    syncer: Any = None
    outputs: Any = None


def merging_again(swarm, name, *, above=0, pid=None):
    def look():
        now = swarm.learner(name)
        is_new = now is not None and now.trainer_pid not in (None, pid)
        return now if is_new and now.state == "training" and now.merged > above else None

    return swarm.until(look, f"{name} in merges")


def go_through_it(seen, swarm):
    swarm.prepare(rounds__local_steps=96, training__moments="peer")
    swarm.begin()
    for name in LEARNERS:
        swarm.start_learner(name, "--duty", "0.5")
    seen.first = {name: merging_again(swarm, name) for name in LEARNERS}

    trainer = seen.first["bob"].trainer_pid
    swarm.kill("bob")
    swarm.until(lambda: is_gone(trainer), "the orphan's end")
    swarm.start_learner("bob", "--duty", "0.5")
    seen.returned = merging_again(swarm, "bob")

    seen.before_trainer = swarm.learner("ada")
    pid = seen.before_trainer.trainer_pid
    os.kill(pid, signal.SIGKILL)
    seen.after_trainer = merging_again(swarm, "ada", above=seen.before_trainer.merged + 2, pid=pid)
    seen.syncer = swarm.syncer()
    seen.outputs = swarm.outputs()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    seen = Seen()
    with TinySwarm(tmp_path_factory.mktemp("rejoin")) as swarm:
        go_through_it(seen, swarm)
        yield seen


def test_the_first_one_had_nobody_to_ask(seen):
    assert any(one.moments.startswith("fresh moments") for one in seen.first.values())


def test_a_killed_learner_merges_again_with_the_moments_of_the_other(seen):
    assert seen.returned.moments.startswith(SEASONED)
    assert seen.returned.merged > 0
    assert seen.returned.local_step > 0
    assert "optimizer state of" in seen.outputs["bob"]


def test_a_killed_trainer_gets_the_moments_of_the_other_as_well(seen):
    before, after = seen.before_trainer, seen.after_trainer
    assert after.moments.startswith(SEASONED)
    assert after.pid == before.pid
    assert after.trainer_restarts == before.trainer_restarts + 1
    assert after.merged > before.merged


def test_nobody_did_anything_wrong(seen):
    assert seen.syncer.faults == {}
    assert seen.after_trainer.faults == seen.returned.faults == {}
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, name
