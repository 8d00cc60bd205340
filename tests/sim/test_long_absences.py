"""Absences that last longer than anybody's text, leases or patience: after them all goes on."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from node.machine.jobs import PauseAsked, ResumeAsked
from node.machine.syncer_link import Link
from node.machine.trainer_states import TrainerState
from protocol import limits
from protocol.machine import Note
from protocol.messages import IndexPart
from protocol.project import RoundSpec
from simulator.scenarios.scenarios import FAULT_KINDS
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.tiny import LIMITS
from tests.support.choices import first
from tests.support.swarm_faults import afflict

HEALED_S = 90.0
"""Until everybody is back: a learner seeks its syncer every 12 s at last, and patience is 60 s."""


def drawn_swarm(seed, chance):
    """Learners that differ little, so that each of them counts in time; all else is drawn."""
    learners, syncers = chance.choice((1, 2, 3, 4)), chance.choice((1, 1, 2, 3))
    batch = chance.choice((2, 64))
    rounds = RoundSpec(
        local_steps=chance.choice((8, 24)),
        overlap_steps=chance.choice((1, 2, 4)),
        quorum=min(learners, chance.choice((1, 1, 2, 3))),
        grace_safety=0.9,
        pace_share=chance.choice((0.0, 0.5, 0.9)),
        patience_s=chance.choice((10.0, 60.0)),
        pull_timeout_s=chance.choice((10.0, 30.0)),
        apply=chance.choice(("overwrite", "rebase")),
        up_codec="int4",
        down_codec="int4",
        eligible=chance.choice(("cycle", "step")),
        participants_max=chance.choice((0, 0, 2)),
        mergers_max=chance.choice((1, 3)),
    )
    limits = structs.replace(
        LIMITS,
        tokens=10**12,
        lease_blocks=chance.choice((64, 1024)),
        lease_s=chance.choice((20.0, 120.0, 3600.0)),
    )
    return build_swarm(
        seed,
        syncers=syncers,
        witnesses=chance.choice((0, 1, 2)) if syncers < 3 else 0,
        steps_s=tuple(chance.choice((0.3, 0.4)) for _ in range(learners)),
        batches=(batch,) * learners if batch > 2 else (),
        rounds=rounds,
        limits=limits,
        durability=chance.choice(("leader", "standby", "majority")),
        moments=chance.choice(("fresh", "peer")),
        shard_blocks=chance.choice((0, 64)),
    )


def pause_one(swarm, chance, until_s):
    who, at_s = chance.choice(swarm.learners), chance.uniform(30.0, until_s - 60.0)
    for time_s, word in ((at_s, PauseAsked(None)), (chance.uniform(at_s, until_s), ResumeAsked())):
        swarm.world.at(time_s, lambda word=word: who.is_up and who.take(Note(word)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", first(1, (1, 0, *range(2, 24))))
def test_after_long_absences_every_learner_trains_and_counts_again(seed):
    chance = random.Random(f"long absences {seed}")
    swarm = drawn_swarm(seed, chance)
    until_s = chance.choice((300.0, 600.0))
    away_s, every_s = (5.0, chance.choice((60.0, 250.0))), chance.choice((20.0, 60.0))
    kinds = tuple(kind for kind in FAULT_KINDS if kind != "out-of-memory")
    afflict(swarm, seed, until_s=until_s, every_s=every_s, away_s=away_s, kinds=kinds)
    if chance.random() < 0.3:
        pause_one(swarm, chance, until_s)
    swarm.world.run(until_s + HEALED_S)
    before = len(swarm.ledger.merges)
    swarm.world.run(until_s + 2 * HEALED_S)
    swarm.check()
    counted = {part.learner for one in swarm.ledger.merges[before:] for part in one.contributions}
    for one in swarm.learners:
        machine = one.learner
        assert machine.link is Link.FOLLOWING, one.name
        assert machine.trainer_control.trainer is TrainerState.STEPPING, one.name
        assert one.key in counted, one.name


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_more_than_may_wait_for_a_peer_is_told_in_pieces(monkeypatch, is_restarted):
    """Merges of hundreds of learners fill megabytes within minutes; here the limits are small."""
    monkeypatch.setattr(limits, "ENTRIES_BYTES_MAX", 700)
    monkeypatch.setattr(limits, "PIECES_AT_ONCE_MAX", 1)
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 8 << 10)
    swarm = build_swarm(1, steps_s=(0.3, 0.3, 0.3, 0.3))
    leader, one = swarm.syncer, swarm.learners[-1]
    said = []
    swarm.world.taps.append(lambda what, host, peer, message: said.append((host, message)))
    swarm.world.run(10.0)
    if is_restarted:
        one.crash()
        swarm.world.after(40.0, one.boot)
    else:
        swarm.world.partition(one.key, leader.key, for_s=40.0)
    swarm.world.run(120.0)
    assert one.key in {part.learner for part in swarm.ledger.merges[-1].contributions}
    parts = [message for host, message in said if host is one and isinstance(message, IndexPart)]
    assert any(part.is_more for part in parts)
    swarm.check()
