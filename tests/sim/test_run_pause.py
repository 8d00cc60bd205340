"""The owner pauses the whole run: nothing is merged or trained until the owner lets it go on."""

from __future__ import annotations

import pytest

from node.machine.trainer_states import TrainerState
from protocol.log.state import SwarmState
from simulator.scenarios.swarm import build_swarm
from tests.support.choices import first

SINCE_S = 1.7e9
BEGUN_MAX = 2
"""Merges that may be under way when the charter comes into force: tau."""


def state_of(swarm) -> SwarmState:
    return swarm.syncer.syncer.state


def run_until(swarm, is_so, within_s=60.0):
    start_s = swarm.world.now_s
    swarm.world.run(start_s + within_s, stop=is_so)
    assert is_so(), f"not within {within_s} s"


def states(swarm):
    return {one.learner.trainer_control.state for one in swarm.learners}


def is_free(swarm):
    """Whether no learner keeps a trainer's memory."""
    trainers = {one.learner.trainer_control.trainer for one in swarm.learners}
    return trainers <= {TrainerState.SUSPENDED, TrainerState.DOWN}


def paused(seed=1, **built):
    swarm = build_swarm(seed, **{"syncers": 3, **built})
    swarm.world.run(40.0)
    merges = swarm.merges
    assert merges > 10
    swarm.revise(paused_at_s=SINCE_S)
    run_until(swarm, lambda: state_of(swarm).owner_paused_at_s == SINCE_S)
    run_until(swarm, lambda: states(swarm) == {"paused"} and is_free(swarm))
    swarm.world.run(swarm.world.now_s + 5.0)
    return swarm


def assert_rests(swarm, for_s=120.0):
    merges, tokens = swarm.merges, state_of(swarm).tokens
    swarm.world.run(swarm.world.now_s + for_s)
    assert (swarm.merges, state_of(swarm).tokens) == (merges, tokens)
    assert states(swarm) == {"paused"}
    assert not swarm.syncer.syncer.leadership.rounds.rounds


@pytest.mark.parametrize("seed", first(1, (1, 2, 3, 4)))
def test_a_paused_run_rests_and_goes_on_where_it_was(seed):
    swarm = paused(seed)
    assert_rests(swarm)
    merges, lost = swarm.merges, [one.learner.context.tally.lost_steps for one in swarm.learners]
    swarm.revise(paused_at_s=None)
    run_until(swarm, lambda: swarm.merges > merges + 10)
    assert states(swarm) == {"training"}
    assert [one.learner.context.tally.lost_steps for one in swarm.learners] == lost
    assert state_of(swarm).owner_paused_at_s is None
    swarm.check()


def test_merges_that_were_begun_are_finished_and_no_new_ones_begin():
    swarm = build_swarm(1, syncers=3)
    swarm.world.run(40.0)
    swarm.revise(paused_at_s=SINCE_S)
    run_until(swarm, lambda: state_of(swarm).owner_paused_at_s is not None)
    before = swarm.merges
    swarm.world.run(swarm.world.now_s + 60.0)
    assert swarm.merges <= before + BEGUN_MAX
    outcomes = swarm.syncer.syncer.leadership.rounds.outcomes
    assert not outcomes.get("abandoned"), "what was handed in was not in vain"
    swarm.check()


def test_a_new_leader_and_a_learner_that_comes_meanwhile_rest_too():
    swarm = paused()
    victim, late = swarm.syncer, swarm.learners[0]
    victim.crash()
    late.crash()
    run_until(swarm, lambda: swarm.syncer is not victim and swarm.syncer.syncer.leadership)
    late.boot()
    run_until(swarm, lambda: late.learner.context.state.owner_paused_at_s == SINCE_S)
    swarm.world.run(swarm.world.now_s + 20.0)
    assert late.trainer is None, "no memory is taken for a trainer that would stand still"
    assert_rests(swarm, 60.0)
    victim.boot()
    swarm.world.run(swarm.world.now_s + 20.0)
    assert victim.syncer.state.owner_paused_at_s == SINCE_S
    merges = swarm.merges
    swarm.revise(paused_at_s=None)
    run_until(swarm, lambda: swarm.merges > merges + 10 and states(swarm) == {"training"})
    swarm.check()
