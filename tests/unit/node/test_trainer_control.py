"""Pauses of a learner: by its owner's word, by its settings, and what becomes of the trainer."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec import structs

from node.daemon import status
from node.machine.fragment_sync import DELIVER_AGAIN_S
from node.machine.graceful_leave import FINISH_S_MAX
from node.machine.jobs import (
    Advance,
    Advanced,
    BeginSteps,
    Capture,
    Captured,
    CeilingChanged,
    Deliver,
    Delivered,
    Evaluate,
    EvaluatedLoss,
    FetchState,
    FinishAsked,
    Governed,
    HoldSteps,
    MemoryShort,
    NotRestored,
    PauseAsked,
    ReleaseSteps,
    ReplaceTrainer,
    ResumeAsked,
    StartTrainer,
    Starved,
    StateFetched,
    Stepped,
    SuspendTrainer,
    TrainerLost,
    TrainerReady,
    TrainerSuspended,
    TrainerUnfit,
    WakeTrainer,
)
from node.machine.memory_rest import RESTS
from node.machine.trainer_control import SUSPEND_RETRY_S, UNFIT, WAKES_MAX
from node.machine.trainer_states import TrainerState
from protocol import limits, wire
from protocol.ids import short
from protocol.log.records import (
    BlocksLeased,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    PushProbed,
    SeatTaken,
    Span,
)
from protocol.machine import Failed, Note, PeerDown, PeerUp
from protocol.messages import (
    Alive,
    Cursor,
    Evaluation,
    Gain,
    Goodbye,
    Heartbeat,
    LeaseRequest,
    Pull,
    Push,
)
from protocol.project import Origin
from protocol.trace import LearnerSuspended, TrainerChanged
from tests.support.builders import (
    ONE,
    SYNCER,
    THREE,
    TWO,
    LearnerBench,
    Log,
    actions,
    contribution,
    digest_of,
    facts,
    merged,
    sealed_charter,
    stops,
    weights,
)


class PauseBench(LearnerBench):
    """A learner that trains."""

    def __init__(self):
        super().__init__()
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.follow(self.log)
        self.done(StartTrainer, TrainerReady("cpu", 8))
        while self.jobs(FetchState):
            self.done(FetchState, StateFetched(((SYNCER.key, 1),)))
        while jobs := self.jobs(Deliver):
            self.done(Deliver, Delivered(jobs[0].version, 0, 0))
        self.step(20)
        assert self.trainer is TrainerState.STEPPING

    @property
    def trainer(self):
        return self.machine.trainer_control.trainer

    def note(self, value):
        return self.feed(Note(value))

    def step(self, number):
        return self.note(Stepped(number, 32 * number, 1.0, 0.3, 6.0, 7.0, Cursor(0, 0)))

    def suspend(self, value=None):
        self.note(value or PauseAsked(None))
        self.done(SuspendTrainer, TrainerSuspended())
        assert self.trainer is TrainerState.SUSPENDED

    def said(self):
        return status.sentence(self.machine, self.now_s)

    def beat(self):
        self.wait(1.1)
        return self.last(SYNCER.key, Heartbeat)


@pytest.fixture
def bench():
    return PauseBench()


def test_who_does_not_count_reads_why_and_what_to_do(bench):
    for version, (trust, said) in enumerate([(0.0, "does not count"), (1.0, "Training.")], 1):
        part = contribution(sequence=version, trust=trust)
        bench.commit(bench.log.add(merged(version=version, contributions=(part,))))
        assert said in bench.said()
    assert bench.said() == "Training."


@pytest.mark.parametrize(
    ("has_read", "detail", "said"),
    [
        (False, "no text is here yet", "Idle: no text is here yet; it is asked for."),
        (
            True,
            "all leased text is read",
            "Idle: all text leased to this host is read; more is asked for.",
        ),
    ],
)
def test_a_trainer_that_waits_says_whether_it_had_any_text(has_read, detail, said):
    bench = LearnerBench().follow(Log(SeatTaken(SYNCER.key), weights()))
    bench.done(StartTrainer, TrainerReady("cpu", 8))
    while bench.jobs(FetchState):
        bench.done(FetchState, StateFetched(((SYNCER.key, 1),)))
    while jobs := bench.jobs(Deliver):
        bench.done(Deliver, Delivered(jobs[0].version, 0, 0))
    if has_read:
        bench.feed(Note(Stepped(1, 32, 1.0, 0.3, 6.0, 7.0, Cursor(0, 0))))
    told = facts(bench.feed(Note(Starved())), TrainerChanged)
    assert [(one.state, one.detail) for one in told] == [("starved", detail)]
    assert status.sentence(bench.machine, bench.now_s) == said


@pytest.mark.parametrize("has_other_text", [False, True])
def test_the_syncer_is_told_where_the_text_is_another_one(has_other_text):
    bench = LearnerBench().follow(Log(SeatTaken(SYNCER.key), weights()))
    bench.done(StartTrainer, TrainerReady("cpu", 8, has_other_text=has_other_text))
    assert bench.machine.trainer_control.heartbeat().has_other_text is has_other_text


def test_who_is_suspended_reads_what_was_measured_and_what_to_do(bench):
    gains = Gain(3.0, 0.01, 0.01, 64), Gain(3.0, 0.01, 0.01, 64)
    probed = PushProbed(ONE.key, 1, 1, 0, TWO.key, *gains, -3.0)
    bench.commit(bench.log.add(probed))
    assert "Suspended" not in bench.said()
    effects = bench.commit(bench.log.add(msgspec.structs.replace(probed, suspends=True)))
    said = bench.said()
    assert said.startswith("Suspended: nothing that it hands in counts, because 1 of 1 learners")
    assert "on average by +0.0 standard errors in 2 probes" in said
    assert f"`shoal project reinstate {short(ONE.key)}`" in said
    assert facts(effects, LearnerSuspended)[0].learner == ONE.key


def test_a_pause_suspends_the_trainer_and_the_end_of_it_wakes_it_where_it_stood(bench):
    bench.suspend(PauseAsked(20.0))
    beat = bench.beat()
    assert (beat.state, beat.local_step) == ("paused", 20)
    assert bench.said().startswith("Paused by its owner for 19 s more.")
    bench.wait(20.0)
    assert bench.trainer is TrainerState.WAKING
    assert "where it left off" in bench.said()
    begun = len(actions(bench.effects, BeginSteps))
    bench.done(WakeTrainer, TrainerReady("cpu", 8))
    assert bench.trainer is TrainerState.STEPPING
    assert len(actions(bench.effects, BeginSteps)) == begun + 1
    tally = bench.machine.context.tally
    assert (tally.lost_steps, tally.trainer_restarts) == (0, 0)
    assert len(bench.jobs(StartTrainer)) == 0


def test_settings_pause_like_their_owner_and_say_why(bench):
    bench.suspend(Governed("it runs on battery"))
    assert bench.said() == "Paused because it runs on battery. The weights stay current."
    bench.note(ResumeAsked())
    assert bench.trainer is TrainerState.SUSPENDED  # The battery is still what it runs on.
    bench.note(Governed(""))
    assert bench.trainer is TrainerState.WAKING


def test_both_pauses_must_end(bench):
    bench.suspend(PauseAsked(None))
    bench.note(Governed("steam runs"))
    assert "until resumed" in bench.said()
    assert "It could not train anyway, because steam runs." in bench.said()
    bench.note(ResumeAsked())
    assert bench.trainer is TrainerState.SUSPENDED
    assert bench.said().startswith("Paused because steam runs.")
    bench.note(Governed(""))
    assert bench.trainer is TrainerState.WAKING


def test_a_suspended_learner_still_answers_pulls_and_takes_deliveries(bench):
    bench.suspend()
    bench.say(SYNCER.key, Pull(1, 0, 0))
    bench.done(Capture, Captured(0, digest_of("push"), 100, 20, 640, Cursor(0, 0)))
    assert bench.last(SYNCER.key, Push)
    assert bench.all(SYNCER.key, Push)
    before = len(bench.all(SYNCER.key, LeaseRequest))
    bench.wait(30.0)
    assert len(bench.all(SYNCER.key, LeaseRequest)) == before


def test_a_trainer_that_cannot_be_suspended_holds_and_is_tried_again(bench):
    bench.note(PauseAsked(None))
    bench.done(SuspendTrainer, Failed("the disk is full"))
    assert bench.trainer is TrainerState.HELD
    assert "its memory stays taken: the disk is full" in bench.machine.trainer_control.detail
    assert bench.jobs(SuspendTrainer) == []
    bench.wait(SUSPEND_RETRY_S + 1.0)
    assert len(bench.jobs(SuspendTrainer)) == 1
    bench.done(SuspendTrainer, Failed("the disk is full"))
    assert actions(bench.note(ResumeAsked()), ReleaseSteps)
    assert bench.trainer is TrainerState.STEPPING


def test_a_pause_that_ends_while_the_trainer_is_suspended_wakes_it_at_once(bench):
    bench.note(PauseAsked(None))
    bench.note(ResumeAsked())
    assert bench.trainer is TrainerState.SUSPENDING
    bench.done(SuspendTrainer, TrainerSuspended())
    assert bench.trainer is TrainerState.WAKING
    bench.note(PauseAsked(None))
    bench.done(WakeTrainer, TrainerReady("cpu", 8))
    assert bench.trainer is TrainerState.SUSPENDING


def test_a_trainer_that_does_not_start_is_tried_for_ever(bench):
    bench.suspend()
    bench.note(ResumeAsked())
    for _ in range(3 * WAKES_MAX):
        effects = bench.done(WakeTrainer, Failed("no memory."))
        assert not actions(effects, ReplaceTrainer)
        assert (
            bench.said() == "The trainer will be woken again soon, with its full state: no memory."
        )
        bench.wait(60.0)
        assert bench.trainer is TrainerState.WAKING
    bench.done(WakeTrainer, TrainerReady("cpu", 1))
    assert bench.machine.context.tally.lost_steps == 0


def an_unfit_learner():
    bench = LearnerBench().follow(Log(SeatTaken(SYNCER.key), weights()))
    return bench, TrainerUnfit("The training text has 30 tokens.", "data")


def starts_in(bench, limit_s):
    """Seconds until the next trainer is started."""
    began_s = bench.now_s
    while not bench.jobs(StartTrainer):
        bench.wait(1.0)
        assert bench.now_s - began_s < limit_s
    return bench.now_s - began_s


def test_a_trainer_that_cannot_train_here_is_tried_ever_more_seldom():
    bench, unfit = an_unfit_learner()
    for pause_s in (*UNFIT.steps_s, UNFIT.steps_s[-1]):
        bench.done(StartTrainer, unfit)
        assert starts_in(bench, pause_s + 10.0) >= pause_s - 1.0
    bench.done(StartTrainer, TrainerReady("cpu", 8))
    assert bench.machine.trainer_control.heartbeat().unfit == ""


def test_its_owner_reads_why_and_tries_at_once_and_others_hear_no_more_than_the_kind():
    bench, unfit = an_unfit_learner()
    bench.done(StartTrainer, unfit)
    assert status.node_state(bench.machine) == "unfit"
    said = status.sentence(bench.machine, bench.now_s)
    assert said.startswith(
        "This machine cannot train: The training text has 30 tokens. Name a copy"
    )
    beat = bench.machine.trainer_control.heartbeat()
    assert beat.unfit == "data"
    assert b"30 tokens" not in wire.encode(beat)
    bench.feed(Note(ResumeAsked()))
    assert bench.jobs(StartTrainer)


def test_a_trainer_that_cannot_train_takes_no_text_from_others():
    bench, unfit = an_unfit_learner()
    bench.done(StartTrainer, unfit)
    bench.sent.clear()
    starts_in(bench, 60.0)
    bench.wait(4.0)
    assert bench.last(SYNCER.key, Heartbeat).unfit == "data"
    assert not [m for m in bench.sent.get(SYNCER.key, []) if isinstance(m, LeaseRequest)]


def test_a_state_that_no_trainer_takes_up_is_given_up_at_last(bench):
    bench.suspend()
    bench.note(ResumeAsked())
    for tried in range(1, WAKES_MAX + 1):
        assert bench.trainer is TrainerState.WAKING
        bench.note(TrainerLost(False, "killed"))
        assert bench.trainer is TrainerState.WAKING
        effects = bench.done(WakeTrainer, NotRestored("killed"))
        assert bench.trainer is TrainerState.SUSPENDED
        assert bool(actions(effects, ReplaceTrainer)) == (tried == WAKES_MAX)
        if tried < WAKES_MAX:
            bench.wait(60.0)
    bench.note(TrainerLost(False, "its state could not be restored"))
    assert bench.trainer is TrainerState.DOWN
    assert bench.machine.context.tally.lost_steps > 0


def test_a_suspended_state_that_is_gone_starts_a_trainer_anew(bench):
    bench.suspend()
    bench.note(ResumeAsked())
    bench.done(WakeTrainer, TrainerLost(False, "its suspended state is gone"))
    assert bench.trainer is TrainerState.DOWN
    bench.wait(2.0)
    assert bench.trainer is TrainerState.STARTING


def test_a_trainer_that_dies_while_it_is_suspended_is_started_after_the_pause(bench):
    bench.note(PauseAsked(None))
    bench.note(TrainerLost(False, "killed"))
    bench.done(SuspendTrainer, Failed("the trainer ended"))
    assert bench.trainer is TrainerState.DOWN
    bench.wait(100.0)
    assert bench.trainer is TrainerState.DOWN  # A paused machine starts none.
    bench.note(ResumeAsked())
    assert bench.trainer is TrainerState.STARTING


def test_what_a_trainer_that_is_gone_could_not_take_up_is_given_again_after_a_while(bench):
    """Its end may be known to us later only, as while a suspended one that is void is woken."""
    bench.commit(bench.log.add(merged()))
    bench.done(Advance, Advanced())
    for _ in range(3):
        bench.done(Deliver, Failed("there is no trainer"))
        assert bench.jobs(Deliver) == []
        bench.wait(0.9 * DELIVER_AGAIN_S)
        assert bench.jobs(Deliver) == []
        bench.wait(0.2 * DELIVER_AGAIN_S)
    (again,) = bench.jobs(Deliver)
    assert again.is_assign
    bench.done(Deliver, Delivered(again.version, 20, 640))
    bench.wait(1.0)
    assert bench.jobs(Deliver) == []


def test_a_trainer_that_has_not_begun_is_ended_by_a_pause():
    bench = LearnerBench().follow(Log(SeatTaken(SYNCER.key), weights()))
    effects = bench.feed(Note(PauseAsked(None)))
    assert len(actions(effects, ReplaceTrainer)) == 1
    assert actions(bench.wait(1.0) or [], ReplaceTrainer) == []
    bench.done(StartTrainer, Failed("its owner paused it"))
    assert bench.machine.trainer_control.trainer is TrainerState.DOWN
    bench.wait(5.0)
    assert bench.jobs(StartTrainer) == []
    bench.feed(Note(ResumeAsked()))
    assert len(bench.jobs(StartTrainer)) == 1


def test_a_suspended_learner_that_finishes_stays_suspended(bench):
    bench.suspend()
    bench.note(FinishAsked())
    assert bench.trainer is TrainerState.SUSPENDED
    assert bench.machine.trainer_control.state == "finishing"
    assert bench.said().startswith("Finishing")
    assert actions(bench.effects, HoldSteps) == []


def test_who_finishes_with_nothing_to_hand_in_leaves_at_once():
    bench = LearnerBench().follow(Log(SeatTaken(SYNCER.key), weights()))
    (stop,) = stops(bench.feed(Note(FinishAsked())))
    assert stop.reason == "finished: everything was handed in"


def test_who_finishes_says_what_is_left_and_what_it_waits_for(bench):
    bench.note(FinishAsked())
    fragments = len(bench.machine.fragment_sync.local_fragments)
    assert bench.said() == (
        f"Finishing: handing in finished work, {fragments} of {fragments} fragments left, then "
        "stopping."
    )
    bench.say(SYNCER.key, Goodbye("restart"))
    assert "waiting briefly for a syncer" in bench.said()


def test_finishing_takes_a_minute_at_most_and_what_is_dropped_is_said(bench):
    bench.note(FinishAsked())
    ends_s = bench.now_s + FINISH_S_MAX
    found = []
    while bench.now_s < ends_s + 2.0 and not found:
        bench.say(SYNCER.key, Alive(0))
        found = stops(bench.wait(1.0) or [])
    assert found[0].reason.startswith(
        "finished: 60 s were not enough to hand in everything; local steps on"
    )


def test_a_learner_that_goes_on_after_all_does_not_leave(bench):
    bench.note(FinishAsked())
    bench.note(ResumeAsked())
    assert bench.machine.trainer_control.graceful_leave.deadline_s() is None
    assert bench.machine.trainer_control.graceful_leave.look(has_receipt=True) == ""


def test_memory_at_its_ceiling_halves_the_micro_batch_without_losing_a_step(bench):
    bench.note(MemoryShort("it takes 3 GiB and limits.ram_bytes_max is 3 GiB"))
    bench.done(SuspendTrainer, TrainerSuspended())
    (job,) = bench.jobs(WakeTrainer)
    assert job.micro_batch == 4
    bench.done(WakeTrainer, TrainerReady("cpu", 4))
    assert bench.trainer is TrainerState.STEPPING
    assert bench.machine.context.tally.lost_steps == 0


def test_other_training_settings_end_a_suspended_trainer_too(bench):
    bench.suspend()
    bench.machine.trainer_control.on_inner_changed()
    assert actions(bench.machine.effects.drain(), ReplaceTrainer)


def test_a_pause_without_an_end_has_none(bench):
    bench.suspend(PauseAsked(None))
    assert bench.machine.trainer_control.paused_until_s == math.inf
    bench.wait(1e6)
    assert bench.trainer is TrainerState.SUSPENDED


def test_who_has_nothing_to_read_and_nothing_to_hand_in_says_so_at_once(bench):
    first, second = bench.all(SYNCER.key, LeaseRequest)[-1], LeaseRequest(1024)
    assert first.blocks > 0
    leased = BlocksLeased(ONE.key, 1, (Span(0, 16, 0),))
    bench.commit(bench.log.add(leased))
    bench.wait(0.1)
    second = bench.all(SYNCER.key, LeaseRequest)[-1]
    assert second is not first
    assert not second.is_spent  # There is text.
    read = 16 * bench.tiny.genesis.data.block_sequences * 16
    bench.note(Stepped(40, read, 1.0, 0.3, 6.0, 7.0, Cursor(16, 0)))
    bench.note(Starved())
    assert bench.said() == "Idle: all text leased to this host is read; more is asked for."
    asked = len(bench.all(SYNCER.key, LeaseRequest))
    bench.wait(0.1)
    assert len(bench.all(SYNCER.key, LeaseRequest)) == asked  # What it read may be handed in.
    bench.machine.fragment_sync.start_over()
    for local in bench.machine.fragment_sync.local_fragments:
        local.marked_step = 40  # Others' merges overtook all of it.
    bench.wait(0.1)
    assert bench.all(SYNCER.key, LeaseRequest)[asked:] == [LeaseRequest(second.blocks, True)]
    bench.wait(0.1)
    assert len(bench.all(SYNCER.key, LeaseRequest)) == asked + 1
    bench.feed(PeerDown(SYNCER.key, "gone"))
    assert bench.said().endswith("It goes on once a syncer answers.")


def test_a_lease_that_was_never_answered_keeps_no_held_learner_awake():
    bench = PauseBench()
    assert bench.all(SYNCER.key, LeaseRequest)
    bench.note(PauseAsked(None))
    bench.done(SuspendTrainer, Failed("the disk is full"))
    assert bench.trainer is TrainerState.HELD
    began_s = bench.now_s
    for _ in range(12):
        assert bench.wake_s is not None
        bench.wait(max(bench.wake_s - bench.now_s, 0.0))
    assert bench.now_s >= began_s + 10.0


# The guard of the swarm


def wrecked(bench):
    """The records by which the guard pauses merging, and the state behind them."""
    log = bench.log
    log.add(CharterAdopted(sealed_charter(structs.replace(bench.tiny.charter, guard="pause"))))
    for loss in (5.0, 2.0, 9.7):
        log.add(CheckpointMarked(0, TWO.key, THREE.key))
        for who in (TWO, THREE):
            log.add(CheckpointEvaluated(log.state.checkpoint, 0, 0, who.key, loss))
    assert log.state.pause is not None
    return log.entries[2:]


def gone_on(bench):
    charter = structs.replace(
        bench.tiny.charter, revision=2, guard="pause", resumed=bench.log.state.pause.record
    )
    return bench.log.add(CharterAdopted(sealed_charter(charter)))


def test_learners_rest_while_the_guard_pauses_merging_and_then_go_on(bench):
    effects = bench.commit(*wrecked(bench))
    assert bench.trainer is TrainerState.HELD
    assert len(actions(effects, HoldSteps)) == 1
    assert bench.beat().state == "paused"
    assert bench.said().startswith(
        "Paused by the guard: merging is paused since 2023-11-14 22:13 UTC: the held-out loss is "
    )
    asked = len(bench.all(SYNCER.key, LeaseRequest))
    for _ in range(20):
        bench.wait(3.0)
        bench.say(SYNCER.key, Alive(bench.log.state.index, 4.0))
    assert len(bench.all(SYNCER.key, LeaseRequest)) == asked
    effects = bench.commit(gone_on(bench))
    assert bench.trainer is TrainerState.STEPPING
    assert len(actions(effects, ReleaseSteps)) == 1
    assert bench.said() == "Training."


def test_its_owners_pause_goes_on_after_that_of_the_guard(bench):
    bench.commit(*wrecked(bench))
    bench.suspend()
    assert bench.said().startswith("Paused by its owner until resumed.")
    bench.commit(gone_on(bench))
    assert bench.trainer is TrainerState.SUSPENDED
    bench.note(ResumeAsked())
    assert bench.trainer is TrainerState.WAKING


def test_who_comes_while_it_is_paused_rests_as_soon_as_it_could_train(bench):
    bench.commit(*wrecked(bench))
    bench.note(TrainerLost(False, "killed"))
    bench.wait(2.0)
    bench.done(StartTrainer, TrainerReady("cpu", 8))
    while jobs := bench.jobs(Deliver):
        bench.done(Deliver, Delivered(jobs[0].version, 0, 0))
    assert bench.trainer is TrainerState.HELD


@pytest.mark.parametrize(
    ("loss", "told"),
    [(2.5, 2.5), (math.nan, limits.LOSS_MAX), (math.inf, limits.LOSS_MAX), (1e7, limits.LOSS_MAX)],
)
def test_a_loss_that_is_no_number_or_too_high_is_told_as_the_bound(bench, loss, told):
    bench.commit(bench.log.add(CheckpointMarked(0, bench.machine.setup.signer.key)))
    bench.done(Evaluate, EvaluatedLoss(loss, 128, 1.0))
    assert bench.last(SYNCER.key, Evaluation).loss == told


def test_an_evaluation_that_failed_says_nothing(bench):
    bench.commit(bench.log.add(CheckpointMarked(0, bench.machine.setup.signer.key)))
    bench.done(Evaluate, Failed("out of memory"))
    assert bench.last(SYNCER.key, Evaluation) is None


def test_who_finishes_while_it_is_paused_does_not_wait_for_rounds_that_do_not_open(bench):
    bench.commit(*wrecked(bench))
    bench.note(FinishAsked())
    (words,) = stops(bench.effects)
    assert "the guard pauses merging" in str(words)


# The owner goes back


def new_epoch(bench, log, origin):
    """The owner began an epoch behind this record; the leader has this log."""
    charter = structs.replace(
        bench.tiny.charter, revision=2, epoch=1, origin=Origin(origin, bytes(32))
    )
    log.state.epoch = 1
    bench.feed(PeerDown(SYNCER.key, "a new epoch"))
    bench.wait(2.0)
    bench.feed(PeerUp(SYNCER.key))
    return bench.admit(log, charter=sealed_charter(charter))


def test_what_the_owner_voided_leaves_the_optimizer_too(bench):
    behind = Log(SeatTaken(SYNCER.key), weights())
    bench.commit(bench.log.add(merged(version=1)))
    effects = new_epoch(bench, behind, origin=2)
    (replaced,) = actions(effects, ReplaceTrainer)
    assert "went back" in replaced.reason


def test_an_epoch_that_voids_nothing_here_replaces_no_trainer(bench):
    bench.commit(bench.log.add(merged(version=1)))
    effects = new_epoch(bench, bench.log, origin=3)
    assert actions(effects, ReplaceTrainer) == []


# Too little memory


ENOUGH = "The trainer holds 1.20 GiB. Raise limits.ram_bytes_max to at least 2.1 GiB."


def short_of_memory():
    bench = LearnerBench().follow(Log(SeatTaken(SYNCER.key), weights()))
    return bench, TrainerUnfit(ENOUGH, "memory")


def test_a_ceiling_that_is_too_low_is_said_once_and_tried_ever_more_seldom():
    bench, short = short_of_memory()
    said = set()
    for pause_s in (*RESTS.steps_s, RESTS.steps_s[-1]):
        bench.done(StartTrainer, short)
        began_s = bench.now_s
        while not bench.jobs(StartTrainer):
            assert status.node_state(bench.machine) == "paused"
            said.add(status.sentence(bench.machine, bench.now_s).partition(" `shoal resume`")[0])
            bench.wait(10.0)
        assert bench.now_s - began_s >= pause_s - 1.0
        assert status.node_state(bench.machine) == "paused", "a try is no other state"
    assert said == {f"Paused for want of memory: {ENOUGH}"}
    assert bench.machine.trainer_control.heartbeat().unfit == ""
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    assert status.node_state(bench.machine) != "paused"


@pytest.mark.parametrize("word", [ResumeAsked(), CeilingChanged()])
def test_its_owner_ends_the_rest_at_once(word):
    bench, short = short_of_memory()
    bench.done(StartTrainer, short)
    bench.wait(1.0)
    assert not bench.jobs(StartTrainer)
    bench.feed(Note(word))
    assert bench.jobs(StartTrainer)


def test_out_of_memory_with_one_sequence_rests_and_does_not_flap():
    bench, _ = short_of_memory()
    for rest_s in RESTS.steps_s[:3]:
        bench.done(StartTrainer, TrainerReady("cpu", 1))
        bench.feed(Note(Stepped(1, 32, 2.0, 0.1, 1.0, 1.0, Cursor(0, 0))))
        bench.feed(Note(TrainerLost(True, "Out of memory (malloc).")))
        assert "with a micro-batch of one sequence" in status.sentence(bench.machine, bench.now_s)
        assert starts_in(bench, rest_s + 10.0) >= rest_s - 1.0
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    for step in range(1, 12):
        bench.wait(60.0)
        bench.feed(Note(Stepped(step, 32 * step, 2.0, 0.1, 1.0, 1.0, Cursor(0, 0))))
    bench.feed(Note(TrainerLost(True, "Out of memory (malloc).")))
    assert starts_in(bench, 70.0) >= RESTS.steps_s[0] - 1.0, "ten good minutes begin anew"


def test_a_suspended_trainer_that_has_too_little_memory_to_wake_rests_too(bench):
    bench.suspend()
    bench.note(ResumeAsked())
    for rest_s in RESTS.steps_s[:2]:
        bench.done(WakeTrainer, TrainerUnfit(ENOUGH, "memory"))
        assert bench.said().startswith(f"Paused for want of memory: {ENOUGH}")
        bench.wait(rest_s - 2.0)
        assert bench.trainer is TrainerState.SUSPENDED
        bench.wait(4.0)
        assert bench.trainer is TrainerState.WAKING
    bench.done(WakeTrainer, TrainerReady("cpu", 1))
    assert bench.machine.context.tally.lost_steps == 0


# A run that its owner paused


def run_charter(bench, revision, paused_at_s):
    charter = structs.replace(bench.tiny.charter, revision=revision, paused_at_s=paused_at_s)
    return bench.log.add(CharterAdopted(sealed_charter(charter)))


def test_while_the_owner_pauses_the_run_a_learner_frees_its_memory_and_then_goes_on(bench):
    bench.commit(run_charter(bench, 2, 1.7e9))
    assert bench.trainer is TrainerState.SUSPENDING
    bench.done(SuspendTrainer, TrainerSuspended())
    assert (bench.trainer, bench.beat().state) == (TrainerState.SUSPENDED, "paused")
    assert bench.said().startswith(
        "Paused by the project's owner since 2023-11-14 22:13 UTC. This machine rests,"
    )
    bench.commit(run_charter(bench, 3, None))
    assert bench.trainer is TrainerState.WAKING
    bench.done(WakeTrainer, TrainerReady("cpu", 8))
    assert bench.said() == "Training."
    assert bench.machine.context.tally.lost_steps == 0


def test_the_word_of_this_machines_owner_holds_beside_that_of_the_runs(bench):
    bench.suspend()
    bench.commit(run_charter(bench, 2, 1.7e9))
    assert bench.said().startswith("Paused by its owner until resumed.")
    assert bench.said().endswith("Paused by the project's owner since 2023-11-14 22:13 UTC, too.")
    bench.note(ResumeAsked())
    assert bench.trainer is TrainerState.SUSPENDED
    assert bench.said().startswith("Paused by the project's owner")
    bench.commit(run_charter(bench, 3, None))
    assert bench.trainer is TrainerState.WAKING


def test_who_wants_to_leave_meanwhile_need_not_wait(bench):
    bench.commit(run_charter(bench, 2, 1.7e9))
    bench.done(SuspendTrainer, TrainerSuspended())
    effects = bench.note(FinishAsked())
    assert "the project's owner pauses merging" in stops(effects)[0].reason
