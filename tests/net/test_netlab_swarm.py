"""A swarm over links as between homes, and one learner of it cut off from all others for a while.

A syncer and two learners, each in a network of its own. It happens once; the tests look at what was
seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200), needs_lab]

SYNCER, STAYS, AWAY = NODES = ("syncer", "ada", "bob")
LEARNERS = (STAYS, AWAY)
LINK = Link(latency_s=0.04, loss_frac=0.01)
PARTITION_S = 15.0
LOOK_EVERY_S = 1.0
LOOKS_AT_REST = 5


@dataclass
class Seen:
    """What was seen on the way."""

    merges_before: dict[str, int] = field(default_factory=dict)
    """Of each learner, when the partition had begun."""
    merges_after: dict[str, int] = field(default_factory=dict)
    """... and at its end."""
    global_steps: list[int] = field(default_factory=list)
    """The same two moments."""
    steps: dict[str, list[int]] = field(default_factory=dict)
    """Local steps of each learner, once a second of the partition."""
    dropped: int = 0
    returned_s: float | None = None
    """How long after healing a merge had the other side in it again; None if none had."""
    outputs: dict[str, str] = field(default_factory=dict)


def go_through_it(seen, swarm):
    swarm.prepare()
    swarm.begin()
    for name in LEARNERS:
        swarm.start_learner(name, "--no-evaluate", "--duty", "0.3")

    swarm.all_merge(*LEARNERS)
    be_apart(seen, swarm)
    come_back(seen, swarm)
    swarm.processes.check()
    seen.outputs = {node: swarm.output(node) for node in NODES}


def settled(swarm):
    """Merges of each learner once those of the one that is away have rested for some looks, in
    which the other one's went on: what had arrived before the partition is merged by then, however
    slow the machine is. A round that waits for the one that is away holds back what it sent."""
    merges = swarm.merge_counts()
    looks, begin = 0, merges.get(STAYS, 0)
    while looks < LOOKS_AT_REST or merges.get(STAYS, 0) < begin + LOOKS_AT_REST:
        time.sleep(LOOK_EVERY_S)
        now = swarm.merge_counts()
        is_at_rest = now.get(AWAY) == merges.get(AWAY)
        looks, begin = (looks + 1, begin) if is_at_rest else (0, now.get(STAYS, 0))
        merges = now
    return merges


def be_apart(seen, swarm):
    """The partition, from when it has come to rest."""
    swarm.lab.partition({SYNCER, STAYS}, {AWAY})
    seen.merges_before = settled(swarm)
    ends_s = time.monotonic() + PARTITION_S
    seen.global_steps.append(swarm.syncer().swarm.global_step)
    while time.monotonic() < ends_s:
        for name in LEARNERS:
            if node := swarm.learner(name):
                seen.steps.setdefault(name, []).append(node.local_step)
        time.sleep(LOOK_EVERY_S)
    seen.merges_after = swarm.merge_counts()
    seen.global_steps.append(swarm.syncer().swarm.global_step)
    seen.dropped = swarm.lab.counts(SYNCER, AWAY).cut + swarm.lab.counts(AWAY, SYNCER).cut


def come_back(seen, swarm):
    healed_s = time.monotonic()
    swarm.lab.heal()
    swarm.until(
        lambda: swarm.merge_counts().get(AWAY, 0) > seen.merges_after.get(AWAY, 0),
        "merges of the one that was away",
    )
    seen.returned_s = time.monotonic() - healed_s


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    seen = Seen()
    with Lab(NODES, link=LINK, seed=1) as lab, LabSwarm(lab, folder) as swarm:
        go_through_it(seen, swarm)
    return seen


def test_local_steps_never_stop(seen):
    for name in LEARNERS:
        steps = seen.steps[name]
        assert len(steps) > PARTITION_S / LOOK_EVERY_S / 2
        assert all(later > earlier for earlier, later in pairwise(steps)), steps


def test_the_one_that_is_away_is_in_no_merge(seen):
    assert seen.dropped > 0
    assert seen.merges_after.get(AWAY, 0) <= seen.merges_before[AWAY]


def test_merging_goes_on_with_the_other(seen):
    before, after = seen.global_steps
    assert after > before
    assert seen.merges_after[STAYS] > seen.merges_before[STAYS]


def test_it_merges_again_after_healing(seen):
    assert seen.returned_s is not None


def test_nobody_prints_a_traceback(seen):
    for node, output in seen.outputs.items():
        assert "Traceback" not in output, node
