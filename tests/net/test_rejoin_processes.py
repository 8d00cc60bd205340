"""Real processes on loopback: who is killed comes back with another learner's optimizer state.

First a whole learner is killed and started again, then only the trainer of the other one.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from tests.net.swarms import begin, swarm_in
from tests.net.test_swarm_processes import is_gone, start_learner, status, until

pytestmark = [pytest.mark.net, pytest.mark.timeout(150)]

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


def merging_again(home, processes, name, *, above=0, pid=None):
    def look():
        processes.check("syncer", *LEARNERS)
        now = status(home, "learner", name)
        is_new = now is not None and now.trainer_pid not in (None, pid)
        return now if is_new and now.state == "training" and now.merged > above else None

    return until(look, timeout_s=60, what=f"{name} in merges")


def go_through_it(seen, processes, home, folder):
    changes = {"rounds.local_steps": 96, "training.moments": "peer"}
    ready = begin(processes, home, folder, changes)
    for name in LEARNERS:
        start_learner(processes, ready.join_link, name)
    seen.first = {name: merging_again(home, processes, name) for name in LEARNERS}

    trainer = seen.first["bob"].trainer_pid
    processes.kill("bob")
    until(lambda: is_gone(trainer), timeout_s=10, what="the orphan's end")
    start_learner(processes, ready.join_link, "bob")
    seen.returned = merging_again(home, processes, "bob")

    seen.before_trainer = status(home, "learner", "ada")
    os.kill(seen.before_trainer.trainer_pid, signal.SIGKILL)
    seen.after_trainer = merging_again(
        home,
        processes,
        "ada",
        above=seen.before_trainer.merged + 2,
        pid=seen.before_trainer.trainer_pid,
    )
    seen.syncer = status(home, "syncer")
    seen.outputs = {name: processes.output(name) for name in ("syncer", *LEARNERS)}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rejoin")
    seen = Seen()
    with swarm_in(folder, ("syncer", *LEARNERS)) as (home, processes):
        go_through_it(seen, processes, home, folder)
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
