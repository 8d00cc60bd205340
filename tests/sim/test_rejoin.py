"""A learner comes back with the optimizer state of another one, whatever happens meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from node.machine.moments_client import Rejoin
from node.machine.moments_server import MomentsServerState
from protocol.log.records import BlocksReturned
from protocol.project import RoundSpec
from protocol.trace import MomentsOffered, MomentsTaken, RejoinChanged
from simulator.checkers.merging import Violation, check_local_steps_count_once
from simulator.scenarios.swarm import build_swarm
from tests.support.choices import first
from tests.support.swarm_faults import KINDS, afflict

ROUNDS = RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, "overwrite", "int4", "int4")
REBASE = RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, "rebase", "int4", "int4")
KILLED_S, BACK_S = 40.0, 45.0
PHASES = (
    Rejoin.TARGETING,
    Rejoin.SEEKING,
    Rejoin.CONNECTING,
    Rejoin.ASKING,
    Rejoin.FETCHING,
    Rejoin.HOLDING,
    Rejoin.INSTALLING,
)


def build(seed=1, *, rounds=ROUNDS, **changes):
    return build_swarm(seed, rounds=rounds, moments="peer", **changes)


def facts(swarm, kind, host=None, since_s=0.0):
    return [
        f
        for at_s, key, f in swarm.world.facts
        if isinstance(f, kind) and host in (None, key) and at_s >= since_s
    ]


def states(swarm, host, since_s=BACK_S):
    return [fact.state for fact in facts(swarm, RejoinChanged, host.key, since_s)]


def kill_and_return(swarm, number=1):
    """The learner that dies and comes back."""
    victim = swarm.learners[number]
    swarm.world.at(KILLED_S, victim.crash)
    swarm.world.at(BACK_S, victim.boot)
    return victim


def when(swarm, host, state, action, *, since_s=BACK_S):
    """Do this once, at the moment at which the host's recovery gets there."""
    done = []

    def watch(now_s, who, fact):
        is_it = isinstance(fact, RejoinChanged) and fact.state == state.value
        if who is host and is_it and now_s >= since_s and not done:
            done.append(now_s)
            swarm.world.after(0.0, action)

    swarm.world.watchers.append(watch)
    return done


def restart(swarm, host, *, after_s=3.0):
    if host.is_up:
        host.crash()
        swarm.world.after(after_s, lambda: None if host.is_up else host.boot())


def asked(swarm, victim):
    """The donor that the victim talks to now."""
    return swarm.world.hosts[victim.learner.moments_client.donor]


def assert_all_train(swarm, *, for_s=60.0):
    """Every learner trains, and is in merges; nothing is left over."""
    merges = swarm.merges
    swarm.world.run(swarm.world.now_s + for_s)
    swarm.check()
    assert swarm.merges > merges + 20
    for learner in swarm.learners:
        assert learner.learner.trainer_control.state == "training"
        assert learner.learner.context.tally.merged > 0
        assert learner.learner.moments_client.state in (Rejoin.SEASONED, Rejoin.FRESH)
        assert learner.learner.peer_exchange.moments_server.state is MomentsServerState.IDLE
        assert not learner.moments.offered
        assert not learner.moments.held


def test_a_killed_learner_comes_back_with_the_moments_of_another():
    swarm = build()
    victim = kill_and_return(swarm)
    swarm.world.run(70.0)
    ((_, host, taken),) = swarm.rejoins.taken
    assert host is victim
    assert taken.donor in {learner.key for learner in swarm.learners} - {victim.key}
    assert taken.steps > 30
    assert states(swarm, victim) == [state.value for state in (*PHASES, Rejoin.SEASONED)]
    counters = [int(values[-1]) for values in victim.trainer.moments]
    assert counters == [taken.steps + victim.trainer.local_step] * len(counters)
    assert_all_train(swarm)


def test_learners_that_come_first_have_nobody_to_ask_and_begin_at_once():
    swarm = build()
    swarm.world.run(30.0)
    assert swarm.rejoins.taken == []
    for learner in swarm.learners:
        assert learner.learner.moments_client.state is Rejoin.FRESH
        assert learner.trainer.local_step > 10


@pytest.mark.slow
def test_a_newcomer_gets_moments_as_well():
    swarm = build(steps_s=(0.3, 0.3, 0.3))
    late = swarm.learners[2]
    swarm.world.at(2.5, late.crash)
    swarm.world.at(50.0, late.boot)
    swarm.world.run(80.0)
    assert [host for _, host, _ in swarm.rejoins.taken] == [late]
    assert_all_train(swarm)


@pytest.mark.slow
def test_a_project_that_wants_fresh_moments_gets_them():
    swarm = build_swarm(1, rounds=ROUNDS)
    victim = kill_and_return(swarm)
    swarm.world.run(70.0)
    assert facts(swarm, RejoinChanged) == facts(swarm, MomentsOffered) == []
    assert victim.learner.moments_client.state is Rejoin.FRESH
    assert_all_train(swarm)


def test_a_lost_trainer_costs_its_unmerged_steps_and_gets_moments_again():
    swarm = build(7)
    victim = swarm.learners[0]
    swarm.world.at(KILLED_S, victim.lose_trainer)
    swarm.world.run(70.0)
    ((_, host, _),) = swarm.rejoins.taken
    assert host is victim
    tally = victim.learner.context.tally
    assert tally.trainer_restarts == 1
    assert 0 < tally.lost_steps <= 20
    swarm.check()


def test_a_host_that_is_back_within_a_moment_replaces_its_own_session():
    """Nobody has noticed yet that the former one is dead."""
    swarm = build()
    victim = swarm.learners[1]
    swarm.world.at(KILLED_S, victim.crash)
    swarm.world.at(KILLED_S + 0.1, victim.boot)
    swarm.world.run(KILLED_S - 1.0)
    former = victim.life
    swarm.world.run(KILLED_S + 1.0)
    session = swarm.syncer.syncer.leadership.members.sessions[victim.key]
    assert session.incarnation == victim.life > former
    swarm.world.run(80.0)
    returned = {
        record.body.incarnation
        for record in swarm.ledger.records
        if isinstance(record.body, BlocksReturned) and record.body.learner == victim.key
    }
    assert returned == {former}
    lives = [
        part.incarnation
        for body in swarm.ledger.merges
        for part in body.contributions
        if part.learner == victim.key
    ]
    assert lives == sorted(lives)
    assert lives[-1] == victim.life
    assert swarm.rejoins.taken[-1][1] is victim
    swarm.check()


@pytest.mark.slow
def test_nobody_waits_for_a_recovery():
    """The donor's local steps and the merges of the others go on as in a swarm without it."""
    done = {}
    for moments in ("fresh", "peer"):
        swarm = build_swarm(1, rounds=ROUNDS, moments=moments)
        kill_and_return(swarm)
        for learner in swarm.learners:
            learner.moments.stall_s = 3.0
        swarm.world.run(BACK_S)
        before = [learner.trainer.local_step for learner in (swarm.learners[0], swarm.learners[2])]
        merges = swarm.merges
        swarm.world.run(BACK_S + 10.0)
        after = [learner.trainer.local_step for learner in (swarm.learners[0], swarm.learners[2])]
        done[moments] = [now - then for now, then in zip(after, before, strict=True)]
        assert swarm.merges > merges + 5
    assert done["peer"] == pytest.approx(done["fresh"], abs=2)


# Faults in each phase.


@pytest.mark.parametrize("phase", first(1, PHASES), ids=lambda phase: phase.name.lower())
def test_a_requester_that_dies_in_any_phase_comes_back(phase):
    swarm = build(PHASES.index(phase))
    victim = kill_and_return(swarm)
    happened = when(swarm, victim, phase, lambda: restart(swarm, victim))
    swarm.world.run(90.0)
    assert len(happened) == 1
    assert_all_train(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("phase", first(1, PHASES), ids=lambda phase: phase.name.lower())
def test_a_trainer_that_dies_in_any_phase_is_no_harm(phase):
    swarm = build(PHASES.index(phase))
    victim = kill_and_return(swarm)
    happened = when(swarm, victim, phase, victim.lose_trainer)
    swarm.world.run(90.0)
    assert len(happened) == 1
    assert_all_train(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("phase", first(1, PHASES[2:]), ids=lambda phase: phase.name.lower())
def test_a_donor_that_dies_is_replaced_or_done_without(phase):
    swarm = build(PHASES.index(phase))
    victim = kill_and_return(swarm)
    dead = []

    def kill():
        if victim.learner.moments_client.donor is not None:
            dead.append(asked(swarm, victim))
            restart(swarm, dead[0])

    for learner in swarm.learners:
        learner.moments.stall_s = 0.5
    happened = when(swarm, victim, phase, kill)
    swarm.world.run(100.0)
    assert len(happened) == 1
    taken = [fact for _, host, fact in swarm.rejoins.taken if host is victim]
    if dead and phase in (Rejoin.CONNECTING, Rejoin.ASKING, Rejoin.FETCHING):
        assert all(fact.donor != dead[0].key for fact in taken[:1])
    assert_all_train(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("phase", first(1, PHASES[1:]), ids=lambda phase: phase.name.lower())
def test_a_donor_whose_trainer_dies_is_no_harm(phase):
    swarm = build(3)
    victim = kill_and_return(swarm)

    def kill():
        for learner in swarm.learners:
            if learner is not victim:
                learner.lose_trainer()

    happened = when(swarm, victim, phase, kill)
    swarm.world.run(100.0)
    assert len(happened) == 1
    assert_all_train(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("phase", first(1, PHASES), ids=lambda phase: phase.name.lower())
def test_a_lost_syncer_does_not_end_a_recovery(phase):
    """The donor has what is needed; only a new clock needs the syncer."""
    swarm = build(4)
    victim = kill_and_return(swarm)
    happened = when(swarm, victim, phase, lambda: restart(swarm, swarm.syncer, after_s=5.0))
    swarm.world.run(100.0)
    assert len(happened) == 1
    assert victim.learner.moments_client.state is Rejoin.SEASONED
    assert_all_train(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("phase", first(1, PHASES), ids=lambda phase: phase.name.lower())
def test_a_cut_to_the_syncer_does_not_end_a_recovery(phase):
    swarm = build(5)
    victim = kill_and_return(swarm)

    def cut():
        swarm.world.partition(victim.key, swarm.syncer.key, for_s=8.0)

    happened = when(swarm, victim, phase, cut)
    swarm.world.run(100.0)
    assert len(happened) == 1
    assert_all_train(swarm)


# Clocks.


@pytest.mark.slow
def test_a_recovery_that_the_swarm_outruns_aims_at_a_fresh_clock():
    swarm = build()
    victim = kill_and_return(swarm)

    def slow():
        for learner in swarm.learners:
            learner.moments.stall_s = 30.0

    def fast():
        for learner in swarm.learners:
            learner.moments.stall_s = 0.0

    slow()
    happened = when(swarm, victim, Rejoin.FETCHING, fast)
    swarm.world.run(100.0)
    assert happened
    told = states(swarm, victim)
    assert told.count(Rejoin.TARGETING.value) == 2
    assert told[-1] == Rejoin.SEASONED.value
    ((_, _, taken),) = swarm.rejoins.taken
    assert taken.behind <= ROUNDS.local_steps
    assert_all_train(swarm)


def test_the_only_donor_may_be_asked_again_by_whom_the_swarm_has_outrun():
    slow_rounds = RoundSpec(24, 1, 1, 0.9, 0.5, 10.0, 10.0, "overwrite", "int4", "int4")
    swarm = build(steps_s=(0.3, 0.3), rounds=slow_rounds)
    victim = kill_and_return(swarm)
    donor = swarm.learners[0]
    donor.moments.stall_s = 100.0
    when(swarm, victim, Rejoin.FETCHING, lambda: setattr(donor.moments, "stall_s", 0.0))
    swarm.world.run(120.0)
    told = states(swarm, victim)
    assert told.count(Rejoin.FETCHING.value) == 2
    assert told[-1] == Rejoin.SEASONED.value
    assert [host for _, host, _ in swarm.rejoins.taken][-1] is victim


@pytest.mark.slow
def test_a_recovery_that_is_always_outrun_ends_in_fresh_moments():
    swarm = build()
    victim = kill_and_return(swarm)
    for learner in swarm.learners:
        learner.moments.stall_s = 1000.0
    swarm.world.run(160.0)
    assert swarm.rejoins.taken == []
    told = states(swarm, victim)
    assert told.count(Rejoin.TARGETING.value) <= 3
    assert told[-1] == Rejoin.FRESH.value
    assert victim.trainer.local_step > 50
    for learner in swarm.learners:
        learner.moments.stall_s = 0.0
    assert_all_train(swarm)


@pytest.mark.slow
def test_a_trainer_that_dies_without_a_syncer_goes_on_with_fresh_moments():
    swarm = build()
    victim = swarm.learners[0]
    swarm.world.at(KILLED_S, swarm.syncer.crash)
    swarm.world.at(KILLED_S + 2.0, victim.lose_trainer)
    swarm.world.run(KILLED_S + 25.0)
    assert victim.learner.moments_client.state is Rejoin.FRESH
    assert victim.learner.trainer_control.trainer.value in ("stepping", "starved")
    swarm.syncer.boot()
    assert_all_train(swarm)


@pytest.mark.slow
def test_two_that_come_back_together_share_or_take_turns():
    swarm = build(steps_s=(0.3, 0.3, 0.3, 0.3))
    victims = swarm.learners[1:3]
    for victim in victims:
        swarm.world.at(KILLED_S, victim.crash)
        swarm.world.at(BACK_S, victim.boot)
    swarm.world.run(90.0)
    assert {host for at_s, host, _ in swarm.rejoins.taken if at_s > BACK_S} == set(victims)
    assert_all_train(swarm)


@pytest.mark.parametrize("seed", first(1, range(4)))
@pytest.mark.parametrize("rounds", first(1, [ROUNDS, REBASE]), ids=["overwrite", "rebase"])
def test_whatever_happens_is_safe_and_the_swarm_recovers(seed, rounds):
    # A full disk is a matter of the syncer alone, and has tests of its own.
    kinds = tuple(kind for kind in KINDS if kind != "disk-full")
    swarm = build(seed, rounds=rounds)
    for learner in swarm.learners:
        learner.moments.stall_s = 0.5 * seed
    afflict(swarm, seed, until_s=120.0, every_s=8.0, kinds=kinds)
    swarm.world.run(150.0)
    swarm.check()
    healed = swarm.merges
    swarm.world.run(220.0)
    swarm.check()
    assert swarm.merges > healed + 20


@pytest.mark.slow
def test_recoveries_under_misfortune_do_happen():
    taken = 0
    for seed in range(4):
        swarm = build(seed)
        afflict(swarm, seed, until_s=100.0, every_s=8.0)
        swarm.world.run(120.0)
        taken += len(facts(swarm, MomentsTaken))
    assert taken >= 4


# The checkers see what they are for.


def test_moments_of_nobody_are_noticed():
    swarm = build()
    victim = swarm.learners[0]
    swarm.world.run(20.0)
    fact = MomentsTaken(swarm.learners[1].key, (1, 0, 0, 0, 0), (2, 0, 0, 0, 0), 0, 5)
    with pytest.raises(Violation, match="nobody offered"):
        swarm.world.record(victim, fact)


def test_an_old_snapshot_is_noticed():
    swarm = build()
    swarm.world.run(20.0)
    donor, victim = swarm.learners[:2]
    swarm.world.record(donor, MomentsOffered((2, 0, 0, 0, 0), 4))
    fact = MomentsTaken(donor.key, (2, 0, 0, 1, 0), (2, 0, 0, 0, 0), 0, 5)
    with pytest.raises(Violation, match="before it subscribed"):
        swarm.world.record(victim, fact)


def test_a_step_handed_in_twice_is_noticed():
    swarm = build()
    swarm.world.run(40.0)
    learner = swarm.learners[0]
    check_local_steps_count_once(swarm.ledger, swarm.learners)
    for key, (trainer, step) in learner.captures.items():
        learner.captures[key] = (trainer, step - 4)
    with pytest.raises(Violation, match="twice"):
        check_local_steps_count_once(swarm.ledger, swarm.learners)


def test_tiny_moments_are_honest_ones():
    swarm = build()
    swarm.world.run(20.0)
    layout = swarm.syncer.layout.fragments
    for learner in swarm.learners:
        for fragment, values in zip(layout, learner.trainer.moments, strict=True):
            assert np.isfinite(values).all()
            assert values[fragment.numel : 2 * fragment.numel].min() >= 0
