"""The only syncer's store is deleted, and it starts again: learners keep what they have."""

from __future__ import annotations

import copy

import pytest

from node.machine.syncer_link import Link
from protocol.trace import FragmentApplied, FragmentCommitted
from simulator.scenarios.swarm import build_swarm


def merged_and_down(syncers=1):
    """Syncers that merged with three learners and are down now."""
    made = build_swarm(1, syncers=syncers)
    made.world.run(40.0)
    assert made.merges > 20
    for syncer in made.syncers:
        syncer.crash()
    made.world.run(41.0)
    return made


@pytest.fixture
def swarm():
    return merged_and_down()


def judge_anew(swarm):
    """What is certified from here on may be another history."""
    swarm.ledger.void_behind(0, swarm.syncer.tiny.charter)
    swarm.checker.void_behind(0)


def held(swarm):
    """Of every learner: its log's head, and its newest versions."""
    return [
        (state.index, state.head, [one.version for one in state.fragments])
        for state in (learner.learner.context.state for learner in swarm.learners)
    ]


def told(swarm, kind, since_s):
    return [fact for at_s, _, fact in swarm.world.facts if at_s >= since_s and type(fact) is kind]


@pytest.mark.parametrize("lost", ["deleted", "older"])
def test_a_syncer_without_its_store_stops_and_learners_keep_everything(swarm, lost):
    before, syncer = held(swarm), swarm.syncer
    steps = [learner.trainer.local_step for learner in swarm.learners]
    judge_anew(swarm)
    if lost == "deleted":
        syncer.wipe()
    else:
        syncer.disk.log = syncer.disk.log[:-9]
        syncer.disk.proofs = syncer.disk.proofs[: len(syncer.disk.log)]
    syncer.boot()
    swarm.world.run(52.0)
    assert syncer.syncer.phase == "stopped", "within ten seconds"
    assert "shoal project reset-seat" in syncer.syncer.lost.text
    swarm.world.run(120.0)
    assert held(swarm) == before
    assert not told(swarm, FragmentCommitted, 41.0)
    assert not told(swarm, FragmentApplied, 60.0)
    for learner, then in zip(swarm.learners, steps, strict=True):
        assert learner.learner.link is not Link.FOLLOWING
        assert "shoal project reset-seat" in learner.learner.younger
        assert learner.trainer.local_step > then, "it trains on while it has text"


def test_with_the_former_store_back_the_swarm_goes_on_where_it_was(swarm):
    before, syncer = held(swarm), swarm.syncer
    former = copy.deepcopy(syncer.disk)
    entries, records = dict(swarm.ledger.entries), list(swarm.ledger.records)
    merges, versions = list(swarm.ledger.merges), dict(swarm.ledger.versions)
    judge_anew(swarm)
    syncer.wipe()
    syncer.boot()
    swarm.world.run(60.0)
    assert held(swarm) == before
    syncer.crash()
    swarm.ledger.entries, swarm.ledger.records = entries, records
    swarm.ledger.merges, swarm.ledger.versions = merges, versions
    swarm.checker.void_behind(0)
    syncer.disk = former
    syncer.boot()
    swarm.world.run(100.0)
    assert syncer.syncer.phase == "training"
    for then, now, learner in zip(before, held(swarm), swarm.learners, strict=True):
        assert now[0] > then[0]
        assert all(new >= old for new, old in zip(now[2], then[2], strict=True))
        assert learner.learner.younger == ""
    swarm.check()


def test_voters_that_all_lost_their_stores_elect_a_leader_that_stops_too():
    swarm = merged_and_down(syncers=3)
    before = held(swarm)
    judge_anew(swarm)
    for syncer in swarm.syncers:
        syncer.wipe()
        syncer.boot()
    swarm.world.run(120.0)
    assert swarm.syncer.syncer.phase == "stopped"
    assert held(swarm) == before
    assert not told(swarm, FragmentCommitted, 41.0)
