"""A swarm over links as between homes, and one learner of it cut off from all others for a while.

A syncer and two learners, each in a network of its own. It happens once; the tests look at what was
seen.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from shoal.project import file_commands
from tests.net.lab_daemons import Daemons
from tests.net.test_swarm_processes import until, write_project
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(150), needs_lab]

SYNCER, STAYS, AWAY = NODES = ("syncer", "ada", "bob")
LEARNERS = (STAYS, AWAY)
LINK = Link(latency_s=0.04, loss_frac=0.01)
PARTITION_S = 15.0
LOOK_EVERY_S = 1.0
BACK_S = 40.0
"""TCP's longest pause after such a cut is about as long as the cut; then a round has to pass."""


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


def go_through_it(seen, daemons):
    path = write_project(daemons.folder, 10**9)
    file_commands.sign(path, daemons.home, instance=SYNCER)
    daemons.run_syncer(SYNCER, path)
    ready = until(
        lambda: (s := daemons.syncer(SYNCER)) and s.phase == "training" and s.join_link and s,
        timeout_s=40,
        what="a syncer with weights",
    )
    for name in LEARNERS:
        daemons.join(name, ready.join_link, "--no-evaluate", "--duty", "0.3")

    def both_merge():
        daemons.check()
        found = daemons.merges(SYNCER)
        return len(found) == len(LEARNERS) and all(found.values())

    until(both_merge, timeout_s=60, what="both learners in merges")
    be_apart(seen, daemons)
    come_back(seen, daemons)
    daemons.check()
    seen.outputs = {node: daemons.output(node) for node in NODES}


def be_apart(seen, daemons):
    """The partition. The first look comes late: what had arrived before it is merged by then."""
    daemons.lab.partition({SYNCER, STAYS}, {AWAY})
    ends_s = time.monotonic() + PARTITION_S
    time.sleep(LOOK_EVERY_S)
    seen.merges_before = daemons.merges(SYNCER)
    seen.global_steps.append(daemons.syncer(SYNCER).swarm.global_step)
    while time.monotonic() < ends_s:
        for name in LEARNERS:
            if node := daemons.learner(name):
                seen.steps.setdefault(name, []).append(node.local_step)
        time.sleep(LOOK_EVERY_S)
    seen.merges_after = daemons.merges(SYNCER)
    seen.global_steps.append(daemons.syncer(SYNCER).swarm.global_step)
    seen.dropped = daemons.lab.counts(SYNCER, AWAY).cut + daemons.lab.counts(AWAY, SYNCER).cut


def come_back(seen, daemons):
    healed_s = time.monotonic()
    daemons.lab.heal()
    with contextlib.suppress(AssertionError):
        until(
            lambda: daemons.merges(SYNCER).get(AWAY, 0) > seen.merges_after.get(AWAY, 0),
            timeout_s=BACK_S,
            what="merges of the one that was away",
        )
        seen.returned_s = time.monotonic() - healed_s


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    write_text(folder / "text.txt", chars=60_000)
    seen = Seen()
    with Lab(NODES, link=LINK, seed=1) as lab:
        daemons = Daemons(lab, folder)
        try:
            go_through_it(seen, daemons)
        except BaseException:
            daemons.print_ends()
            raise
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
