"""A model wrecked in virtual time: merging pauses, through failovers, until the owner speaks."""

from __future__ import annotations

import msgspec
import pytest

from protocol.log.state import SwarmState
from protocol.project import Origin
from simulator.scenarios.swarm import build_swarm
from tests.support.choices import first

EVERY = 8
"""Global steps between two measurements."""

WRECKING = 20.0
"""An outer learning rate that no run survives; the usual one is 0.7."""

PROPOSED_MAX = 2
"""Merges that may have been proposed before the record with which a pause begins: tau."""


def state_of(swarm) -> SwarmState:
    return swarm.syncer.syncer.state


def sound(seed=1, *, guard="pause", **built):
    """A guarded swarm that has learned."""
    swarm = build_swarm(seed, **{"syncers": 3, **built})
    swarm.world.run(5.0)
    limits = swarm.syncer.syncer.setup.charter.limits
    swarm.revise(guard=guard, limits=msgspec.structs.replace(limits, evaluate_every=EVERY))
    swarm.world.run(40.0)
    assert len(state_of(swarm).curve) >= 4
    return swarm


def learning_rate(swarm, rate):
    outer = swarm.syncer.syncer.setup.charter.outer
    return {"outer": msgspec.structs.replace(outer, learning_rate=rate)}


def run_until(swarm, is_so, within_s=60.0):
    start_s = swarm.world.now_s
    swarm.world.run(start_s + within_s, stop=is_so)
    assert is_so(), f"not within {within_s} s"


def is_paused(swarm):
    up = [one for one in swarm.syncers if one.is_up]
    return all(one.syncer.state.pause is not None for one in up)


def wrecked(seed=1, **built):
    """The same after the owner's mistake, once everybody rests."""
    swarm = sound(seed, **built)
    before = state_of(swarm).global_step
    swarm.revise(**learning_rate(swarm, WRECKING))
    run_until(swarm, lambda: is_paused(swarm))
    pause = state_of(swarm).pause
    assert pause.measured.global_step <= before + 2 * EVERY, "the first or second measurement"
    assert swarm.merges <= pause.measured.global_step + EVERY
    rest(swarm)
    return swarm


def rest(swarm):
    """Wait until nobody trains, and local steps that were under way are done."""
    run_until(swarm, lambda: states(swarm) == {"paused"})
    swarm.world.run(swarm.world.now_s + 3.0)


def states(swarm):
    return {one.learner.trainer_control.state for one in swarm.learners}


def assert_rest(swarm, for_s=60.0):
    """Nothing is merged, asked, or trained."""
    merges, steps = swarm.merges, [one.trainer.local_step for one in swarm.learners]
    swarm.world.run(swarm.world.now_s + for_s)
    assert swarm.merges == merges
    assert [one.trainer.local_step for one in swarm.learners] == steps
    assert not swarm.syncer.syncer.leadership.rounds.rounds


@pytest.mark.parametrize("seed", first(1, (1, 2, 3, 4)))
def test_a_wrecked_model_is_merged_no_further_and_nobody_trains_in_vain(seed):
    swarm = wrecked(seed)
    assert_rest(swarm)
    pauses = {one.syncer.state.pause for one in swarm.syncers}
    pauses |= {one.learner.context.state.pause for one in swarm.learners}
    assert len(pauses) == 1, "everybody folds the same"
    assert None not in pauses
    swarm.check()


def test_a_new_leader_and_a_restart_go_on_pausing():
    swarm = wrecked()
    pause, victim = state_of(swarm).pause, swarm.syncer
    victim.crash()
    run_until(swarm, lambda: swarm.syncer is not victim and swarm.syncer.syncer.leadership)
    swarm.world.run(swarm.world.now_s + 10.0)
    assert_rest(swarm)
    assert state_of(swarm).pause == pause
    victim.boot()
    swarm.world.run(swarm.world.now_s + 20.0)
    assert victim.syncer.state.pause == pause
    assert_rest(swarm, 30.0)
    swarm.check()


def test_a_learner_that_comes_meanwhile_rests_too():
    swarm = wrecked()
    late = swarm.learners[0]
    late.crash()
    swarm.world.run(swarm.world.now_s + 2.0)
    late.boot()
    run_until(swarm, lambda: late.trainer is not None)
    rest(swarm)
    assert_rest(swarm, 30.0)


@pytest.mark.slow
def test_the_owners_word_lets_merging_go_on_without_a_new_pause_for_the_same():
    swarm = wrecked()
    record, merges = state_of(swarm).pause.record, swarm.merges
    swarm.revise(resumed=record, **learning_rate(swarm, 0.7))
    run_until(swarm, lambda: swarm.merges > merges + 5 * EVERY)
    assert states(swarm) == {"training"}
    assert state_of(swarm).pause is None
    swarm.check()


@pytest.mark.slow
def test_a_model_that_is_wrecked_further_pauses_again():
    swarm = wrecked()
    record, merges = state_of(swarm).pause.record, swarm.merges
    swarm.revise(resumed=record)
    run_until(swarm, lambda: swarm.merges > merges)
    run_until(swarm, lambda: is_paused(swarm), 120.0)
    assert state_of(swarm).pause.record != record


def test_the_owner_goes_back_to_the_best_checkpoint():
    """What `shoal project undo` signs."""
    swarm = wrecked()
    trainers = [one.trainers for one in swarm.learners]
    best = state_of(swarm).pause.best
    go_back(swarm, best.checkpoint)
    run_until(swarm, lambda: state_of(swarm).epoch == 1 and states(swarm) == {"training"})
    assert swarm.merges <= best.global_step + PROPOSED_MAX
    run_until(swarm, lambda: state_of(swarm).global_step > best.global_step + 3 * EVERY)
    losses = [one.loss for one in state_of(swarm).curve if one.global_step > best.global_step]
    assert max(losses) < 10 * best.loss
    assert state_of(swarm).pause is None
    again = [one.trainers - before for one, before in zip(swarm.learners, trainers, strict=True)]
    assert again == [1] * len(trainers), "their moments were of what is void"
    swarm.check()


def go_back(swarm, index):
    log, former = swarm.syncer.syncer.raft.log, swarm.syncer.syncer.setup.charter
    changes = {
        "epoch": former.epoch + 1,
        "origin": Origin(index, log.entry(index).digest),
        **learning_rate(swarm, 0.7),
    }
    charter = msgspec.structs.replace(former, revision=former.revision + 1, **changes)
    swarm.world.owner_epoch = charter.epoch
    swarm.ledger.void_behind(index, charter)
    swarm.checker.void_behind(index)
    swarm.revise(**changes)


def test_with_one_learner_two_measurements_in_a_row_say_so():
    swarm = wrecked(syncers=1, steps_s=(0.3,))
    assert state_of(swarm).pause.measured.is_alone
    assert_rest(swarm)


@pytest.mark.slow
def test_a_sound_run_is_never_paused():
    swarm = sound()
    swarm.world.run(400.0)
    assert state_of(swarm).pause is None
    assert len(swarm.ledger.merges) > 100


@pytest.mark.slow
def test_without_a_guard_the_wreck_is_merged_on():
    swarm = sound(guard="off")
    swarm.revise(**learning_rate(swarm, WRECKING))
    merges = swarm.merges
    run_until(swarm, lambda: swarm.merges > merges + 5 * EVERY)
    assert not is_paused(swarm)
