"""A model wrecked in virtual time: the guard goes back to the best checkpoint by itself."""

from __future__ import annotations

import msgspec
import pytest

from protocol.log.records import WeightsRestored
from protocol.log.restoring import SOUND_MIN
from protocol.project import RoundSpec
from simulator.hosts.tape import SwarmTape
from simulator.replay.replay import replay
from simulator.scenarios.swarm import build_swarm
from tests.support.choices import first

EVERY = 8
"""Global steps between two measurements."""

WRECKING, USUAL = 20.0, 0.7
"""Outer learning rates: one that no run survives, and the usual one."""


def state_of(swarm):
    return swarm.syncer.syncer.state


def revise_rate(swarm, rate):
    outer = swarm.syncer.syncer.setup.charter.outer
    swarm.revise(outer=msgspec.structs.replace(outer, learning_rate=rate))


def sound(seed=1, *, guard="restore", **built):
    """A guarded swarm that has learned."""
    swarm = build_swarm(seed, **{"syncers": 3, **built})
    swarm.world.run(5.0)
    limits = swarm.syncer.syncer.setup.charter.limits
    swarm.revise(guard=guard, limits=msgspec.structs.replace(limits, evaluate_every=EVERY))
    swarm.world.run(40.0)
    assert state_of(swarm).best.is_agreed
    return swarm


def run_until(swarm, is_so, within_s=90.0):
    swarm.world.run(swarm.world.now_s + within_s, stop=is_so)
    assert is_so(), f"not within {within_s} s"


def is_paused(swarm):
    return all(one.syncer.state.pause is not None for one in swarm.syncers if one.is_up)


def restores(swarm):
    return [one.body for one in swarm.ledger.records if isinstance(one.body, WeightsRestored)]


def wreck(swarm):
    """The owner's mistake, until the guard has seen it; the usual rate again."""
    revise_rate(swarm, WRECKING)
    run_until(swarm, lambda: state_of(swarm).pause is not None)
    pause = state_of(swarm).pause
    revise_rate(swarm, USUAL)
    return pause


def restored(swarm, count=1):
    """Wrecked, and gone back so often."""
    pause = wreck(swarm)
    run_until(swarm, lambda: len(restores(swarm)) == count)
    return pause


def states(swarm):
    return {one.learner.trainer_control.state for one in swarm.learners}


def assert_trains_on(swarm, steps=3 * EVERY):
    """Everybody does, on the same weights, and the loss is sound."""
    step, best = state_of(swarm).global_step, state_of(swarm).restored.pause.best
    run_until(swarm, lambda: state_of(swarm).global_step >= step + steps, 120.0)
    losses = [one.loss for one in state_of(swarm).curve if one.checkpoint > best.checkpoint]
    assert losses
    assert max(losses) < 10 * best.loss
    assert state_of(swarm).pause is None
    assert states(swarm) == {"training"}


def assert_one_history(swarm):
    """Replicas hold the same bits and the same state; all checks hold."""
    swarm.world.run(swarm.world.now_s + 0.01)
    for host in [one for one in swarm.syncers if one.is_up]:
        assert host.syncer.state.restored == state_of(swarm).restored
        for at, fragment in enumerate(host.syncer.state.fragments):
            if host.bank.current(at).number == fragment.version:
                assert host.bank.current(at).state == fragment.state
    for learner in swarm.learners:
        assert learner.learner.context.state.restored == state_of(swarm).restored
    swarm.check()


@pytest.mark.parametrize("seed", first(1, (1, 2, 3, 4)))
def test_the_guard_goes_back_and_the_swarm_trains_on(seed):
    swarm = sound(seed)
    trainers = [one.trainers for one in swarm.learners]
    pause = restored(swarm)
    body, state = restores(swarm)[0], state_of(swarm)
    assert (body.checkpoint, body.pause) == (pause.best.checkpoint, pause.record)
    assert state.restored.pause == pause
    assert state.epoch == 0
    assert state.accounts
    assert_trains_on(swarm)
    again = [one.trainers - before for one, before in zip(swarm.learners, trainers, strict=True)]
    assert again == [1] * len(trainers), "their moments were of what is void"
    assert_one_history(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("apply", first(1, ["rebase", "blend"]))
def test_displacements_that_live_on_do_not_outlive_it(apply):
    rounds = RoundSpec(8, 2, 1, 0.9, 0.5, 20.0, 20.0, apply, "int4", "int4")
    swarm = sound(rounds=rounds)
    restored(swarm)
    assert_trains_on(swarm)
    assert_one_history(swarm)


@pytest.mark.slow
def test_a_new_leader_goes_back_where_the_former_one_died_before_it_did():
    swarm = sound()
    wreck(swarm)
    victim = swarm.syncer
    victim.crash()
    run_until(swarm, lambda: bool(restores(swarm)))
    assert_trains_on(swarm)
    victim.boot()
    swarm.world.run(swarm.world.now_s + 20.0)
    assert victim.syncer.state.restored == state_of(swarm).restored
    assert_one_history(swarm)


def test_a_restart_right_behind_it_comes_to_the_same_weights():
    swarm = sound(syncers=1)
    restored(swarm)
    host = swarm.syncer
    host.crash()
    host.boot()
    run_until(swarm, lambda: host.syncer.leadership is not None)
    assert host.syncer.standby.held == [one.version for one in host.syncer.state.fragments]
    assert_trains_on(swarm)
    assert_one_history(swarm)


@pytest.mark.slow
def test_a_leader_without_the_checkpoint_gets_it_from_another_syncer():
    swarm = sound()
    leader = swarm.syncer
    revise_rate(swarm, WRECKING)
    run_until(swarm, lambda: state_of(swarm).pause is not None)
    leader.disk.checkpoints.clear()
    run_until(swarm, lambda: bool(restores(swarm)))
    assert swarm.syncer is leader
    revise_rate(swarm, USUAL)
    assert_trains_on(swarm)
    assert_one_history(swarm)


def test_where_no_syncer_has_the_checkpoint_the_owner_decides():
    swarm = sound(syncers=1)
    revise_rate(swarm, WRECKING)
    run_until(swarm, lambda: state_of(swarm).pause is not None)
    swarm.syncer.disk.checkpoints.clear()
    run_until(swarm, lambda: state_of(swarm).pause.is_given_up)
    assert state_of(swarm).restore_refusal == "no syncer holds that checkpoint"
    merges, record = swarm.merges, state_of(swarm).pause.record
    swarm.world.run(swarm.world.now_s + 60.0)
    assert (swarm.merges, restores(swarm)) == (merges, [])
    outer = swarm.syncer.syncer.setup.charter.outer
    swarm.revise(resumed=record, outer=msgspec.structs.replace(outer, learning_rate=USUAL))
    run_until(swarm, lambda: swarm.merges > merges)


def test_what_is_wrecked_again_at_once_waits_for_the_owner():
    swarm = sound()
    revise_rate(swarm, WRECKING)
    run_until(swarm, lambda: len(restores(swarm)) == 1)
    run_until(swarm, lambda: is_paused(swarm), 180.0)
    assert state_of(swarm).restore_refusal
    swarm.world.run(swarm.world.now_s + 120.0)
    assert len(restores(swarm)) == 1
    assert is_paused(swarm)
    swarm.check()


@pytest.mark.slow
def test_after_a_sound_while_it_goes_back_again_to_later_weights():
    swarm = sound()
    first_time = restored(swarm)
    since = state_of(swarm).restored.index

    def is_better():
        curve = [one for one in state_of(swarm).curve if one.checkpoint > since]
        best = state_of(swarm).best
        return len(curve) >= SOUND_MIN and best.is_agreed and best.checkpoint > since

    run_until(swarm, is_better, 600.0)
    second_time = restored(swarm, 2)
    assert second_time.best.loss < first_time.best.loss
    assert_trains_on(swarm)
    assert_one_history(swarm)


def test_a_learner_that_was_away_meanwhile_comes_back_to_the_restored_weights():
    swarm = sound()
    revise_rate(swarm, WRECKING)
    run_until(swarm, lambda: state_of(swarm).pause is not None)
    away = swarm.learners[0]
    away.crash()
    revise_rate(swarm, USUAL)
    run_until(swarm, lambda: bool(restores(swarm)))
    swarm.world.run(swarm.world.now_s + 10.0)
    away.boot()
    assert_trains_on(swarm)
    assert_one_history(swarm)


def test_with_one_learner_the_owner_decides():
    swarm = build_swarm(1, steps_s=(0.3,))
    swarm.world.run(5.0)
    limits = swarm.syncer.syncer.setup.charter.limits
    swarm.revise(guard="restore", limits=msgspec.structs.replace(limits, evaluate_every=EVERY))
    swarm.world.run(40.0)
    wreck(swarm)
    assert state_of(swarm).restore_refusal == "one learner alone measured that checkpoint"
    swarm.world.run(swarm.world.now_s + 60.0)
    assert restores(swarm) == []


@pytest.mark.slow
def test_a_tape_of_it_replays_to_the_same(tmp_path):
    tape = SwarmTape(tmp_path, mib_max=64)
    swarm = sound(tape=tape.of)
    restored(swarm)
    assert_trains_on(swarm)
    assert not tape.close()
    report = replay(tmp_path, tmp_path)
    assert len(report.merged) == swarm.merges == len(report.audited)
    assert report.pushes_reproduced == report.pushes > 0, "also of trainers that began anew"
