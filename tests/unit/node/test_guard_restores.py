"""A learner whose swarm's guard goes back: it takes the restored weights; nothing void stays."""

from __future__ import annotations

import pytest
from msgspec import structs

from node.daemon import status
from node.machine.jobs import (
    Advance,
    Advanced,
    Capture,
    Captured,
    Deliver,
    Delivered,
    DropErrorFeedback,
    FetchState,
    ReplaceTrainer,
    StartTrainer,
    StateFetched,
    Stepped,
    Thaw,
    TrainerLost,
    TrainerReady,
)
from node.machine.trainer_states import TrainerState
from protocol.log.records import (
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    RestoreGivenUp,
    SeatTaken,
    WeightsRestored,
)
from protocol.machine import Failed, Note, PeerDown, PeerUp
from protocol.messages import Cursor, Pull
from protocol.trace import GuardWentBack
from protocol.trace import RestoreGivenUp as RestoreGivenUpFact
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    SYNCER,
    THREE,
    TWO,
    LearnerBench,
    Log,
    actions,
    contribution,
    facts,
    merged,
    sealed_charter,
    state_digests,
    weights,
)


class RestoreBench(LearnerBench):
    """A learner that trains in a guarded swarm, on version 1 of fragment 0, when it is wrecked."""

    def __init__(self):
        super().__init__()
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.follow(self.log)
        self.done(StartTrainer, TrainerReady("cpu", 8))
        while self.jobs(FetchState):
            self.done(FetchState, StateFetched(((SYNCER.key, 1),)))
        self.deliver()
        self.feed(Note(Stepped(20, 640, 1.0, 0.3, 6.0, 7.0, Cursor(0, 0))))
        charter = structs.replace(self.tiny.charter, revision=2, guard="restore")
        self.log.add(CharterAdopted(sealed_charter(charter)))
        self.merge(0)
        for loss in (5.0, 2.0):
            self.measure(loss)
        self.commit(*self.log.entries[2:])
        self.done(Advance, Advanced())
        self.deliver()
        assert self.trainer is TrainerState.STEPPING

    @property
    def trainer(self):
        return self.machine.trainer_control.trainer

    @property
    def locals(self):
        return self.machine.fragment_sync.local_fragments

    def deliver(self):
        while jobs := self.jobs(Deliver):
            self.done(Deliver, Delivered(jobs[0].version, 0, 0))

    def merge(self, fragment):
        version = self.log.state.fragments[fragment].version + 1
        step = self.log.state.global_step + 1
        return self.log.add(
            merged(
                fragment=fragment,
                version=version,
                global_step=step,
                round=step,
                state=state_digests(fragment, version),
                contributions=(contribution(learner=TWO.key, sequence=step),),
            )
        )

    def measure(self, loss, first=TWO):
        entries = [self.log.add(CheckpointMarked(0, first.key, THREE.key))]
        for who in (first, THREE):
            told = CheckpointEvaluated(self.log.state.checkpoint, 0, 0, who.key, loss)
            entries.append(self.log.add(told))
        return entries

    def pause(self):
        """The model is wrecked by merges of fragments 0 and 1; all of it is committed here."""
        entries = [self.merge(0), self.merge(1), *self.measure(9.7)]
        self.commit(*entries)
        assert self.machine.context.state.pause is not None

    def restored(self):
        state = self.log.state
        checkpoint, states = state.restoring
        versions = tuple(one.version + 1 for one in state.fragments)
        return self.log.add(
            WeightsRestored(
                state.pause.record, checkpoint, state.global_step, state.rounds, versions, states
            )
        )


@pytest.fixture
def bench():
    return RestoreBench()


def advance(bench):
    while bench.jobs(Advance):
        bench.done(Advance, Advanced())
    bench.deliver()


def test_it_rests_until_the_guard_has_gone_back(bench):
    bench.pause()
    assert bench.trainer is TrainerState.HELD
    said = status.sentence(bench.machine, bench.now_s)
    assert "This machine rests until the guard has gone back to it" in said


def test_every_fragment_comes_as_it_was_and_a_fresh_trainer_takes_it(bench):
    bench.pause()
    advance(bench)
    effects = bench.commit(bench.restored())
    (replaced,) = actions(effects, ReplaceTrainer)
    assert "went back" in replaced.reason
    assert len(actions(effects, DropErrorFeedback)) == 1
    (fact,) = facts(effects, GuardWentBack)
    assert "the held-out loss was 9.70, there it was 2.00" in fact.text
    fetched = {job.fragment: (job.version, job.state) for job in bench.jobs(FetchState)}
    newest = bench.machine.context.state.fragments
    assert fetched == {at: (one.version, one.state) for at, one in enumerate(newest)}
    assert [one.version for one in newest] == [3, 2, *[1] * (FRAGMENTS - 2)]
    bench.feed(Note(TrainerLost(False, "ended")))
    bench.wait(2.0)
    while bench.jobs(FetchState):
        bench.done(FetchState, StateFetched(((SYNCER.key, 1),)))
    bench.done(StartTrainer, TrainerReady("cpu", 8))
    jobs = bench.jobs(Deliver)
    assert all(job.is_assign for job in jobs)
    bench.deliver()
    assert bench.trainer is TrainerState.STEPPING


def test_void_weights_that_arrive_late_are_not_taken(bench):
    bench.pause()
    assert len(bench.jobs(Advance)) == 2, "outer steps that are under way"
    bench.commit(bench.restored())
    bench.done(Advance, Advanced())
    bench.done(Advance, Advanced())
    assert not bench.machine.fragment_sync.is_held
    assert {job.version for job in bench.jobs(FetchState) if job.fragment == 0} == {3}
    assert bench.jobs(Deliver) == []


def test_weights_that_do_not_come_leave_it_waiting_and_not_on_void_ones(bench):
    bench.pause()
    advance(bench)
    bench.commit(bench.restored())
    bench.feed(Note(TrainerLost(False, "ended")))
    for _ in range(FRAGMENTS):
        bench.done(FetchState, Failed("nobody has it"))
    bench.wait(2.0)
    bench.done(StartTrainer, TrainerReady("cpu", 8))
    assert bench.jobs(Deliver) == []
    bench.wait(10.0)
    assert bench.jobs(FetchState)


def test_a_merge_right_behind_it_is_fetched_as_a_whole(bench):
    bench.pause()
    advance(bench)
    bench.commit(bench.restored(), bench.merge(0))
    newest = bench.machine.context.state.fragments[0]
    while job := next((one for one in bench.jobs(FetchState) if one.fragment == 0), None):
        bench.done(FetchState, StateFetched(((SYNCER.key, 1),)))
        last = job
    assert (last.version, last.state) == (newest.version, newest.state)


def test_a_push_whose_fate_is_open_is_in_vain(bench):
    bench.say(SYNCER.key, Pull(2, 0, 1))
    bench.done(Capture, Captured(1, bytes(32), 132, 20, 640, Cursor(0, 0)))
    assert bench.locals[0].push is not None
    bench.pause()
    bench.commit(bench.restored())
    assert bench.locals[0].push is None
    assert bench.machine.context.tally.outcomes == {"abandoned": 1}


def test_what_was_frozen_of_void_weights_is_measured_no_more(bench):
    bench.commit(bench.merge(0), bench.merge(1), *bench.measure(9.7, first=ONE)[:1])
    assert bench.machine.fragment_sync.freezing is not None
    index = bench.log.state.checkpoint
    entries = bench.log.entries[-2:]
    bench.commit(*entries)
    effects = bench.commit(bench.restored())
    assert bench.machine.fragment_sync.freezing is None
    assert Thaw(index) in actions(effects, Thaw)


def test_who_was_away_meanwhile_does_the_same(bench):
    bench.feed(PeerDown(SYNCER.key, "gone"))
    bench.merge(0)
    bench.measure(9.7)
    bench.restored()
    bench.merge(2)
    bench.wait(2.0)
    bench.feed(PeerUp(SYNCER.key))
    effects = bench.admit(bench.log)
    (replaced,) = actions(effects, ReplaceTrainer)
    assert "went back" in replaced.reason
    fetched = {job.fragment: job.version for job in bench.jobs(FetchState)}
    assert fetched == {at: one.version for at, one in enumerate(bench.log.state.fragments)}


def test_who_was_away_after_it_replaces_nothing(bench):
    bench.pause()
    advance(bench)
    bench.commit(bench.restored())
    bench.feed(PeerDown(SYNCER.key, "gone"))
    bench.merge(2)
    bench.wait(2.0)
    bench.feed(PeerUp(SYNCER.key))
    assert actions(bench.admit(bench.log), ReplaceTrainer) == []


def test_that_nobody_has_the_weights_is_told(bench):
    bench.pause()
    record = bench.log.state.pause.record
    effects = bench.commit(bench.log.add(RestoreGivenUp(record)))
    (fact,) = facts(effects, RestoreGivenUpFact)
    assert "because no syncer holds that checkpoint" in fact.text
    said = status.sentence(bench.machine, bench.now_s)
    assert "until the project's owner goes back or goes on" in said
