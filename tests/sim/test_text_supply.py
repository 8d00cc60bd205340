"""Text in a swarm: who reads on never waits for it, and who asks for all of it does."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from node.machine.trainer_states import TrainerState
from protocol.messages import LeaseRequest
from protocol.trace import TrainerChanged
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.tiny import LIMITS
from simulator.virtual.nodes import Speed, SpeedModel
from syncer_node.machine.text_supply import OWN_FACTOR, RESERVE_S
from tests.support.choices import first

LONG = structs.replace(LIMITS, tokens=10**12, lease_blocks=1024)
BATCH = 2


def starved(swarm, since_s):
    """Who waited for text after that time."""
    return [
        (now_s, key)
        for now_s, key, fact in swarm.world.facts
        if now_s > since_s and isinstance(fact, TrainerChanged) and fact.state == "starved"
    ]


def sequences(host, learner):
    """Ever leased to a learner's session."""
    return host.syncer.state.leases.granted[learner.key, learner.incarnation]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_slow_learner_that_becomes_ten_times_as_fast_never_waits_for_text(seed):
    swarm = build_swarm(seed, steps_s=(0.5, 0.5, 0.5, 5.0), limits=LONG)
    swarm.world.run(300.0)
    begun_s = min(now_s for now_s, _, fact in swarm.world.facts if isinstance(fact, TrainerChanged))
    swarm.learners[3].trainer.speed = Speed(SpeedModel(0.5), random.Random(seed))
    swarm.world.run(700.0)
    swarm.check()
    assert starved(swarm, begun_s + 20.0) == []
    assert swarm.learners[3].trainer.local_step > 600


@pytest.mark.slow
def test_a_learner_with_a_batch_eight_times_as_large_never_waits_and_is_never_refused():
    swarm = build_swarm(3, steps_s=(0.5,) * 4, limits=LONG, batches=(BATCH,) * 3 + (8 * BATCH,))
    swarm.world.run(300.0)
    swarm.check()
    begun_s = min(now_s for now_s, _, fact in swarm.world.facts if isinstance(fact, TrainerChanged))
    assert starved(swarm, begun_s + 20.0) == []
    *others, strong = swarm.learners
    assert set(swarm.syncer.syncer.leadership.rounds.outcomes) <= {"merged", "late", "stale"}
    accounts = swarm.syncer.syncer.state.accounts
    assert accounts[strong.key].tokens > 6 * max(accounts[one.key].tokens for one in others)
    peers = swarm.syncer.syncer.leadership.members.sessions
    tokens = {key: session.tokens_per_step(32, 512) for key, session in peers.items()}
    assert tokens == {one.key: 32.0 for one in others} | {strong.key: 256.0}


@pytest.mark.slow
def test_who_asks_for_text_all_the_time_gets_its_reserve_and_its_rate():
    swarm = build_swarm(4, steps_s=(0.5, 0.5, 0.5, 0.5), limits=LONG)
    greedy, syncer = swarm.learners[3], swarm.syncer

    def ask():
        swarm.world.send(greedy, syncer.key, LeaseRequest(1024))
        swarm.world.after(1.0, ask)

    swarm.world.at(30.0, ask)
    swarm.world.run(600.0)
    swarm.check()
    assert starved(swarm, 40.0) == []
    honest = sequences(syncer, swarm.learners[0])
    read_per_s = BATCH / 0.5
    rate = OWN_FACTOR * read_per_s * 1.2
    assert honest < sequences(syncer, greedy) < rate * (RESERVE_S + 600.0)


FAST = {"steps_s": (0.3,) * 3, "batches": (64,) * 3, "limits": LONG}
"""Learners that read the most blocks that one may hold in less than 80 s."""


def starved_now(swarm):
    return [one.learner.trainer_control.trainer is TrainerState.STARVED for one in swarm.learners]


# With 120 the syncer's last merge before it dies reaches nobody.
@pytest.mark.parametrize("seed", first(2, (0, 120, 1, 2)))
def test_learners_that_ran_out_of_text_while_the_syncer_was_away_hand_in_and_go_on(seed):
    swarm = build_swarm(seed, **FAST)
    swarm.world.run(60.0)
    swarm.syncer.crash()
    swarm.world.run(560.0)
    assert starved_now(swarm) == [True] * 3
    merges, steps = swarm.merges, [one.trainer.local_step for one in swarm.learners]
    swarm.syncer.boot()
    swarm.world.run(600.0)
    swarm.check()
    assert swarm.merges > merges + 5
    assert starved_now(swarm) == [False] * 3
    assert all(
        one.trainer.local_step > then + 40 for one, then in zip(swarm.learners, steps, strict=True)
    )


def test_text_lasts_for_two_minutes_without_a_syncer_however_fast_it_is_read():
    swarm = build_swarm(1, **FAST)
    swarm.world.run(300.0)
    swarm.syncer.crash()
    swarm.world.run(420.0)
    assert starved_now(swarm) == [False] * 3


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_a_learner_that_ran_out_of_text_while_others_merged_gets_text(seed):
    limits = structs.replace(LONG, lease_s=3600.0)
    swarm = build_swarm(seed, **{**FAST, "limits": limits})
    swarm.world.run(60.0)
    away = swarm.learners[0]
    swarm.world.partition(away.key, swarm.syncer.key, for_s=500.0)
    swarm.world.run(560.0)
    assert starved_now(swarm) == [True, False, False]
    steps = away.trainer.local_step
    swarm.world.run(620.0)
    swarm.check()
    assert starved_now(swarm) == [False] * 3
    assert away.trainer.local_step > steps + 80
