"""Owners whose lists are as long as they may be, and who change the rules again and again."""

from __future__ import annotations

import random

import pytest

from node.machine.syncer_link import Link
from protocol import limits
from simulator.scenarios.swarm import build_swarm

FRAGMENTS = 12


def some(number, size, seed):
    """So many different values of nobody."""
    rng = random.Random(seed)
    return tuple(sorted(rng.randbytes(size) for _ in range(number)))


def revise_often(swarm, times):
    """More charters than merges, none of them like another, all lists as long as they may be."""
    banned = some(limits.BANNED_MAX, 32, 1)
    lists = {
        "allowed": some(limits.ALLOWED_MAX, 32, 2),
        "revoked": some(limits.INVITES_REVOKED_MAX, 16, 3),
    }
    for left in range(times, 0, -1):
        swarm.revise(banned=banned[left:], **lists)
        swarm.world.run(swarm.world.now_s + 0.3)


@pytest.mark.parametrize("is_paused", [pytest.param(False, marks=pytest.mark.slow), True])
def test_who_joins_gets_all_charters_however_long_they_are(is_paused):
    """A fragment's newest version is proven under the charter that it was made under."""
    swarm = build_swarm(1, fragments=FRAGMENTS, tensors_of=(FRAGMENTS, 64))
    *_, eve = swarm.learners
    swarm.world.run(40.0)
    eve.crash()
    revise_often(swarm, 30)
    state = swarm.syncer.syncer.state
    told_bytes = sum(len(one.charter.payload) for one in state.charters)
    assert told_bytes > limits.PIECES_AT_ONCE_MAX * limits.ENTRIES_BYTES_MAX
    if is_paused:
        swarm.revise(paused_at_s=1.0)
        swarm.world.run(swarm.world.now_s + 5.0)
    eve.boot()
    swarm.world.run(swarm.world.now_s + 5.0)
    assert eve.learner.link is Link.FOLLOWING
    assert len(eve.learner.context.state.charters) == len(state.charters)
    if is_paused:
        swarm.revise(paused_at_s=None)
    swarm.world.run(swarm.world.now_s + 30.0)
    swarm.check()
    assert len(state.charters) == 1
