"""A full project, and newcomers at its door."""

from __future__ import annotations

import pytest

from node.machine.syncer_link import Link
from protocol.project import LimitSpec, OuterSpec
from protocol.trace import FragmentCommitted
from simulator.scenarios.swarm import build_swarm
from tests.support.sybils import Sybil

LEARNERS = 256
LIMITS = LimitSpec(10**9, LEARNERS, 40, 8, 60.0, 8)


@pytest.mark.slow
def test_of_ten_newcomers_ten_are_welcomed_though_one_address_sends_270_keys():
    # The first learner has begun by the time they come; the others come after them.
    swarm = build_swarm(1, steps_s=(0.5,) * 11, limits=LIMITS, join_s=33.0)
    for number, learner in enumerate(swarm.learners):
        learner.network = f"203.0.113.{number}"
    sybils = [Sybil(swarm, number, "192.0.2.1") for number in range(270)]
    for sybil in sybils:
        swarm.world.after(2.0, sybil.boot)
    swarm.world.run(3.9)
    members = swarm.syncer.syncer.leadership.members
    assert len(list(members.live())) == LEARNERS
    swarm.world.run(45.0)
    assert [one.learner.link for one in swarm.learners] == [Link.FOLLOWING] * 11
    assert len(list(members.live())) == LEARNERS
    assert swarm.merges > 0
    swarm.check()


@pytest.mark.slow
def test_strangers_that_train_for_ever_hold_up_the_first_merges_only():
    """A first merge waits for half of who is here until its patience ends; no later one does."""
    trusted = OuterSpec(0.7, 0.5, 3.0, trust="earned")
    quiet = build_swarm(1, steps_s=(0.5,) * 4, outer=trusted)
    crowded = build_swarm(1, steps_s=(0.5,) * 4 + (1e6,) * 30, outer=trusted, join_s=5.0)
    merges = []
    for swarm in (quiet, crowded):
        swarm.world.run(100.0)
        former = swarm.merges
        swarm.world.run(160.0)
        merges.append(swarm.merges - former)
        swarm.check()
    patience_s = crowded.syncer.syncer.setup.charter.rounds.patience_s
    begun = [at for at, _, fact in crowded.world.facts if isinstance(fact, FragmentCommitted)]
    assert min(begun) > patience_s
    assert merges[1] > 0.8 * merges[0] > 20
