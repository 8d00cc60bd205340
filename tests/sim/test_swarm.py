"""The daemons' own machines in virtual time: does a swarm train, and does nothing stop it?"""

from __future__ import annotations

import pytest

from node.machine.jobs import FinishAsked, PauseAsked
from node.machine.syncer_link import Link
from protocol import limits
from protocol.log.records import BlocksLeased, BlocksReturned, FragmentMerged
from protocol.machine import Note
from protocol.project import LimitSpec, RoundSpec
from protocol.trace import (
    CheckpointScored,
    FragmentCommitted,
    LossesDiffer,
    SessionOpened,
    WeightsReady,
)
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.backends import Backend
from simulator.virtual.network import NetworkModel
from tests.support.choices import first
from tests.support.swarm_faults import afflict

OVERWRITE = RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, "overwrite", "int4", "int4")
REBASE = RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, "rebase", "int4", "int4")
BLEND = RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, "blend", "int4", "int4", 0.5)


def facts(swarm, kind, host=None):
    return [f for _, key, f in swarm.world.facts if isinstance(f, kind) and host in (None, key)]


@pytest.mark.parametrize(
    "rounds", first(1, [REBASE, OVERWRITE, BLEND]), ids=["rebase", "overwrite", "blend"]
)
def test_a_swarm_learns_and_its_checkpoints_show_it(rounds):
    swarm = build_swarm(1, rounds=rounds)
    swarm.world.run(90.0)
    swarm.check()
    losses = [f.loss for f in facts(swarm, CheckpointScored, swarm.syncer.key)]
    assert swarm.merges > 60
    assert losses[-1] < losses[0] / 20


@pytest.mark.slow
def test_the_measured_h_is_the_configured_h():
    swarm = build_swarm(2, steps_s=(0.3, 0.3, 0.3))
    swarm.world.run(120.0)
    late = facts(swarm, FragmentCommitted)[20:]
    mean = sum(f.mean_steps for f in late) / len(late)
    assert 0.8 * 8 <= mean <= 1.35 * 8


@pytest.mark.slow
def test_the_grace_window_lets_a_slower_learner_take_part():
    swarm = build_swarm(3, steps_s=(0.3, 0.3, 0.6))
    swarm.world.run(120.0)
    late = facts(swarm, FragmentCommitted)[20:]
    assert sum(f.participants for f in late) / len(late) > 2.4


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_a_learner_whose_local_step_is_longer_than_a_cycle_counts(seed):
    rounds = RoundSpec(4, 2, 1, 0.9, 0.5, 10.0, 10.0, "overwrite", "int4", "int4")
    swarm = build_swarm(seed, rounds=rounds, steps_s=(0.3, 0.3, 0.3, 2.4))
    swarm.world.run(200.0)
    swarm.check()
    slow = swarm.learners[3]
    counted = swarm.syncer.syncer.state.accounts[slow.key].tokens / len(slow.bank.layout.fragments)
    assert swarm.merges > 300
    assert counted > 0.4 * slow.trainer.tokens


def test_others_do_not_wait_for_a_local_step_that_is_longer_than_any_grace():
    rounds = RoundSpec(24, 2, 1, 0.9, 0.5, 10.0, 30.0, "overwrite", "int4", "int4")
    merges = []
    for more in ((), (10.0,)):
        swarm = build_swarm(1, rounds=rounds, steps_s=(0.3, 0.3, 0.3, *more))
        swarm.world.run(300.0)
        swarm.check()
        merges.append(swarm.merges)
    assert merges[1] > 0.96 * merges[0]
    assert swarm.syncer.syncer.state.has_merges(swarm.learners[3].key)


def test_a_killed_learner_comes_back_with_weights_from_another_learner():
    swarm = build_swarm(5)
    victim = swarm.learners[1]
    swarm.world.at(40.0, victim.crash)
    swarm.world.at(45.0, victim.boot)
    swarm.world.run(80.0)
    swarm.check()
    ready = facts(swarm, WeightsReady, victim.key)[-1]
    assert ready.from_peers > 0
    merged_since = [
        part
        for body in swarm.ledger.merges
        for part in body.contributions
        if (part.learner, part.incarnation) == (victim.key, victim.life)
    ]
    assert victim.life == 3
    assert merged_since


def test_local_steps_go_on_while_the_syncer_is_away_and_the_log_continues():
    swarm = build_swarm(6)
    swarm.world.run(40.0)
    steps = [learner.trainer.local_step for learner in swarm.learners]
    merges = swarm.merges
    swarm.syncer.crash()
    swarm.world.run(55.0)
    done = [learner.trainer.local_step for learner in swarm.learners]
    assert all(
        now - then > 0.8 * 15 / learner.step_s
        for now, then, learner in zip(done, steps, swarm.learners, strict=True)
    )
    swarm.syncer.boot()
    swarm.world.run(90.0)
    swarm.check()
    assert swarm.merges > merges + 10
    back = [f for f in facts(swarm, SessionOpened, swarm.syncer.key) if f.is_resumed]
    assert len(back) == 3


@pytest.mark.slow
def test_whoever_was_away_for_so_long_that_its_text_went_to_others_goes_on_with_other_text():
    swarm = build_swarm(11, limits=LimitSpec(10**9, 256, 20, 8, 20.0, 64))
    swarm.world.run(40.0)
    victim = swarm.learners[1]
    swarm.world.partition(victim.key, swarm.syncer.key, for_s=50.0)
    swarm.world.run(104.0)
    assert victim.learner.link is Link.FOLLOWING
    trainer, read = victim.trainer, len(victim.trainer.read)
    swarm.world.run(140.0)
    swarm.check()
    assert victim.trainer is trainer
    records = swarm.ledger.records
    (returned,) = [
        record.index
        for record in records
        if isinstance(record.body, BlocksReturned) and record.body.learner == victim.key
    ]
    leased = {
        position
        for record in records
        if isinstance(record.body, BlocksLeased) and record.index > returned
        for span in record.body.spans
        if record.body.learner == victim.key
        for position in range(span.start, span.stop)
    }
    new = {position for position, _ in trainer.read[read:]}
    assert new
    assert new <= leased
    merged = [
        part
        for record in records
        if isinstance(record.body, FragmentMerged) and record.index > returned
        for part in record.body.contributions
        if part.learner == victim.key
    ]
    assert len(merged) > 10


def test_a_lost_trainer_costs_only_its_unmerged_steps():
    swarm = build_swarm(7)
    victim = swarm.learners[0]
    swarm.world.at(40.0, lambda: victim.lose_trainer(is_out_of_memory=True))
    swarm.world.run(90.0)
    swarm.check()
    tally = victim.learner.context.tally
    assert tally.trainer_restarts == 1
    assert 0 < tally.lost_steps <= 20
    assert victim.learner.trainer_control.micro_batch == 1
    assert victim.trainer.local_step > 50
    sessions = facts(swarm, SessionOpened, swarm.syncer.key)
    assert len(sessions) == 3


def test_a_run_ends_at_its_budget_with_everybody_told_and_the_best_checkpoint_named():
    limits = LimitSpec(6_000, 256, 10, 8, 60.0, 64)
    swarm = build_swarm(8, limits=limits)
    swarm.world.run(200.0)
    swarm.check()
    state = swarm.syncer.syncer.state
    assert state.ended is not None
    assert state.tokens >= 6_000
    assert state.ended.best == min(state.curve, key=lambda p: p.loss).checkpoint
    assert state.curve[-1].global_step == state.global_step
    for learner in swarm.learners:
        assert learner.stopped is not None
        assert "complete" in learner.stopped.reason


def test_a_full_disk_pauses_merging_and_frees_itself():
    swarm = build_swarm(9)
    swarm.world.run(30.0)
    swarm.syncer.disk.is_full = True
    swarm.world.run(32.0)
    merges = swarm.merges
    swarm.world.run(45.0)
    assert swarm.merges <= merges + 1
    swarm.syncer.disk.is_full = False
    swarm.world.run(70.0)
    swarm.check()
    assert swarm.merges > merges + 10


def test_a_syncer_whose_clock_was_set_back_by_a_day_merges_on():
    swarm = build_swarm(10)
    swarm.world.run(30.0)
    syncer, merges = swarm.syncer, swarm.merges
    syncer.crash()
    syncer.wall_offset_s -= 86_400.0
    syncer.boot()
    swarm.world.run(60.0)
    swarm.check()
    assert swarm.merges > merges + 10
    assert "false-claim" not in syncer.syncer.leadership.rounds.outcomes


def test_a_paused_learner_stays_current_and_goes_on_by_itself():
    swarm = build_swarm(11)
    swarm.world.run(30.0)
    victim = swarm.learners[1]
    victim.take(Note(PauseAsked(20.0)))
    swarm.world.run(32.0)
    step, merges = victim.trainer.local_step, swarm.merges
    swarm.world.run(49.0)
    assert victim.trainer.local_step == step
    assert victim.learner.trainer_control.state == "paused"
    assert swarm.merges > merges
    newest = [fragment.version for fragment in swarm.syncer.syncer.state.fragments]
    held = [track.standing for track in victim.learner.fragment_sync.local_fragments]
    assert max(new - old for new, old in zip(newest, held, strict=True)) <= 1
    swarm.world.run(65.0)  # Its trainer is woken first.
    assert victim.trainer.local_step > step + 20
    swarm.check()


def test_what_a_learner_did_before_a_pause_is_handed_in_during_it():
    swarm = build_swarm(13)
    swarm.world.run(30.0)
    victim = swarm.learners[1]
    fragment_sync = victim.learner.fragment_sync
    victim.take(Note(PauseAsked(None)))
    swarm.world.run(31.0)
    done = victim.trainer.local_step
    open_steps = sum(track.steps(done) for track in fragment_sync.local_fragments)
    assert open_steps > 0
    discarded = sum(track.discarded_steps for track in fragment_sync.local_fragments)
    merged = victim.learner.context.tally.merged
    swarm.world.run(60.0)
    assert sum(track.steps(done) for track in fragment_sync.local_fragments) == 0
    assert victim.learner.context.tally.merged >= merged + 1
    lost = sum(track.discarded_steps for track in fragment_sync.local_fragments) - discarded
    assert lost <= 0.1 * open_steps  # Those between a hand-in under way and its merge.
    swarm.check()


def test_a_finishing_learner_hands_in_what_it_did_and_leaves():
    swarm = build_swarm(12)
    swarm.world.run(30.0)
    victim = swarm.learners[1]
    victim.take(Note(FinishAsked()))
    done = victim.trainer.local_step
    swarm.world.run(45.0)
    assert victim.stopped is not None
    assert victim.stopped.reason.startswith("finished")
    assert len(victim.reads) <= (done + 1) * 2
    swarm.check()


def finishing_alone(seed, quorum, *, crash_s=None):
    """The only learner that trains finishes; how long that took, and its host."""
    rounds = RoundSpec(8, 2, quorum, 0.9, 0.5, 10.0, 10.0, "rebase", "int4", "int4")
    swarm = build_swarm(seed, steps_s=(0.3,), rounds=rounds)
    swarm.world.run(40.0)
    (alone,) = swarm.learners
    fragment_sync, done = alone.learner.fragment_sync, alone.trainer.local_step
    assert sum(track.steps(done) > 0 for track in fragment_sync.local_fragments) > 1
    if crash_s is not None:
        swarm.world.at(40.0 + crash_s, swarm.syncer.crash)
    alone.take(Note(FinishAsked()))
    for _ in range(1400):
        swarm.world.run(swarm.world.now_s + 0.05)
        if alone.stopped is not None:
            return swarm, alone, swarm.world.now_s - 40.0
    raise AssertionError("it never finished")


@pytest.mark.parametrize("quorum", [1, 3])
def test_the_last_learner_hands_in_everything_and_does_not_wait(quorum):
    """No round would be due, for nobody trains on, and nobody else would make a quorum."""
    swarm, alone, took_s = finishing_alone(14, quorum)
    assert alone.stopped.reason == "finished: everything was handed in"
    assert took_s < 3.0
    done = alone.trainer.local_step
    assert all(track.steps(done) == 0 for track in alone.learner.fragment_sync.local_fragments)
    swarm.check()


def test_a_learner_that_finishes_while_its_syncer_is_gone_waits_for_another_one_a_moment():
    _, alone, took_s = finishing_alone(15, 1, crash_s=0.0)
    assert "no syncer answered for 10 s" in alone.stopped.reason
    assert "fragments are dropped" in alone.stopped.reason
    assert 10.0 <= took_s < 10.0 + 2 * limits.GONE_AFTER_S


@pytest.mark.parametrize("seed", first(1, range(3)))
@pytest.mark.parametrize(
    "rounds", first(1, [REBASE, OVERWRITE, BLEND]), ids=["rebase", "overwrite", "blend"]
)
def test_whatever_happens_is_safe_and_the_swarm_recovers(seed, rounds):
    swarm = build_swarm(seed, rounds=rounds)
    afflict(swarm, seed, until_s=120.0)
    swarm.world.run(150.0)
    swarm.check()
    healed = swarm.merges
    swarm.world.run(220.0)
    swarm.check()
    assert swarm.merges > healed + 20


def test_the_same_seed_gives_the_same_run():
    traces = []
    for _ in range(2):
        swarm = build_swarm(10)
        afflict(swarm, 10, until_s=60.0)
        swarm.world.run(80.0)
        traces.append([(at, key, fact.text) for at, key, fact in swarm.world.facts])
    assert traces[0] == traces[1]


@pytest.mark.slow
def test_a_joiner_takes_its_weights_from_many_learners_and_none_from_the_syncer(monkeypatch):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 512)
    swarm = build_swarm(7, steps_s=(0.3, 0.3, 0.3, 0.3, 0.3))
    victim = swarm.learners[1]
    swarm.world.at(40.0, victim.crash)
    swarm.world.at(45.0, victim.boot)
    # One of the donors dies while it donates.
    swarm.world.at(45.3, swarm.learners[2].crash)
    swarm.world.run(80.0)
    swarm.check()
    ready = facts(swarm, WeightsReady, victim.key)[-1]
    assert ready.from_syncer == 0
    assert swarm.syncer.key not in dict(ready.sources)
    assert len(ready.sources) >= 3


def test_joiners_that_have_no_fragment_yet_give_each_other_chunks(monkeypatch):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 512)
    of_syncer = total = 0
    for seed in (1, 2, 3):
        network = NetworkModel(bytes_per_s=4e3)
        swarm = build_swarm(
            seed, steps_s=(0.3,) * 5, tensors_of=(64, 64), join_s=0.5, network=network
        )
        swarm.world.run(45.0)
        ready = facts(swarm, WeightsReady)
        assert len(ready) == 5
        of_syncer += sum(dict(one.sources).get(swarm.syncer.key, 0) for one in ready)
        total += sum(count for one in ready for _, count in one.sources)
    assert of_syncer < 0.5 * total  # 0.6 where they give whole fragments only.


class HardText(Backend):
    """That of a learner whose text leaves a nat that nobody can learn."""

    def loss(self, fragments):
        return 1.0 + super().loss(fragments)


class SaysZero(Backend):
    """That of a learner that has found the best of all checkpoints, whichever it measures."""

    def loss(self, fragments):
        return 0.0


@pytest.mark.slow
def test_a_learner_that_measures_zero_moves_no_best_and_is_named():
    limits = LimitSpec(60_000, 256, 10, 8, 60.0, 64)
    swarm = build_swarm(9, limits=limits, steps_s=(0.3, 0.3, 0.4, 0.3))
    liar = swarm.learners[1]
    for learner in swarm.learners:
        learner.backend = SaysZero() if learner is liar else HardText()
    swarm.world.run(150.0)
    swarm.check()
    curve = swarm.syncer.syncer.state.curve
    assert any(liar.key in (one.evaluator, one.second) for one in curve)
    disputes = facts(swarm, LossesDiffer, swarm.syncer.key)
    assert disputes
    assert all(liar.key in (one.evaluator, one.second) for one in disputes)
    best = swarm.syncer.syncer.state.best
    assert best.is_agreed
    assert best.loss > 1.0
    assert all(learner.learner.context.state.best == best for learner in swarm.learners)
