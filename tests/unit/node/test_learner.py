"""The learner's machine and what a syncer may send it: counted, disconnected, tried again."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from node.machine.fragment_sync import ADVANCE_TRIES
from node.machine.jobs import (
    Advance,
    Advanced,
    Capture,
    Captured,
    Deliver,
    Delivered,
    Feed,
    FetchState,
    FindSeat,
    LookAtSwarm,
    NoteReached,
    ShowReport,
    StartTrainer,
    StateFetched,
    Stepped,
    SyncerAnswers,
    Thaw,
    TrainerLost,
    TrainerReady,
)
from node.machine.learner import REFUSED_EXIT, SEEK_AGAIN
from node.machine.syncer_link import Link
from protocol import limits, wire
from protocol.log.records import (
    BlocksLeased,
    CheckpointEvaluated,
    CheckpointMarked,
    RunEnded,
    RunEnding,
    SeatTaken,
    Span,
    WeightsInitialised,
)
from protocol.machine import Connect, Failed, JobDone, Note, PeerDown, PeerUp, StopAsked
from protocol.messages import (
    AdoptedCharter,
    Alive,
    CertifiedRecord,
    Committed,
    Cursor,
    Goodbye,
    Heartbeat,
    Hello,
    IndexPart,
    LeaseRequest,
    Pull,
    Push,
    PushHeader,
    Refused,
    Report,
    Settled,
    Watch,
    Welcome,
)
from protocol.project import encode
from protocol.signing import seal
from protocol.trace import PeerMisbehaved
from simulator.stand_ins.tiny import charter_envelope, tiny_project
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    STRANGER,
    SYNCER,
    TWO,
    LearnerBench,
    Log,
    actions,
    certified,
    contribution,
    digest_of,
    disconnected,
    facts,
    heartbeat,
    merged,
    project,
    record,
    rounds,
    seat_found,
    state_digests,
    stops,
    weights,
)


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), weights())


@pytest.fixture
def bench(log):
    return LearnerBench().follow(log)


def faults(bench):
    return bench.machine.context.tally.faults


def assert_dropped(bench, effects, reason):
    """The offence is counted, the link ended, another try is planned, nothing stopped."""
    assert faults(bench) == {reason: 1}
    assert facts(effects, PeerMisbehaved)[0].reason == reason
    assert disconnected(effects) == [SYNCER.key]
    assert bench.machine.link is Link.WAITING
    assert stops(effects) == []
    assert bench.wake_s > bench.now_s
    bench.wait(2 * SEEK_AGAIN.steps_s[0])
    assert bench.machine.link is Link.CONNECTING


# Admission


def test_a_learner_introduces_itself_and_follows_the_index(log):
    bench = LearnerBench().greet()
    said = bench.last(SYNCER.key, Hello)
    assert (said.project, said.head_index) == (project().project, 0)
    bench.admit(log)
    assert bench.machine.link is Link.FOLLOWING
    assert bench.machine.context.state == log.state
    assert {job.fragment for job in bench.jobs(FetchState)} == set(range(FRAGMENTS))
    assert len(bench.jobs(StartTrainer)) == 1


def test_a_returning_learner_says_what_it_knows_and_goes_on_without_an_index(bench, log):
    bench.feed(PeerDown(SYNCER.key, "cable"))
    bench.wait(2.0)
    bench.feed(PeerUp(SYNCER.key))
    said = bench.last(SYNCER.key, Hello)
    assert (said.head_index, said.head) == (log.state.index, log.state.head)
    bench.say(SYNCER.key, Welcome(bench.charter, 0, 1, None))
    assert bench.machine.link is Link.FOLLOWING


def test_a_welcome_out_of_turn_ends_the_link(bench):
    effects = bench.say(SYNCER.key, Welcome(bench.charter, 0, 1, None))
    assert_dropped(bench, effects, "unexpected-message")


@pytest.mark.parametrize(
    "message",
    [Committed(()), Pull(1, 0, 0), Settled(1, 1, "late", ""), LeaseRequest(1), heartbeat()],
    ids=lambda message: type(message).__name__,
)
def test_anything_but_an_answer_to_hello_ends_the_link(message):
    bench = LearnerBench().greet()
    assert_dropped(bench, bench.say(SYNCER.key, message), "unexpected-message")


def test_a_part_of_an_index_with_nothing_in_it_ends_the_link():
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, IndexPart((), is_more=True))
    assert_dropped(bench, effects, "unexpected-message")


def test_a_charter_that_is_not_the_owners_ends_the_link():
    bench = LearnerBench().greet()
    forged = seal("charter", bench.tiny.project, bench.charter.payload, TWO)
    part = IndexPart((), charters=(AdoptedCharter(1, forged),))
    assert_dropped(bench, bench.say(SYNCER.key, part), "bad-signature")


def test_a_charter_that_comes_again_and_again_is_kept_once_and_ends_the_link(monkeypatch):
    monkeypatch.setattr(limits, "INDEX_ENTRIES_MAX", 9)
    bench = LearnerBench().greet()
    for at in range(1, 10):
        bench.say(SYNCER.key, IndexPart((), True, (AdoptedCharter(at, bench.charter),)))
    assert len(bench.all(SYNCER.key, Hello)) == 10
    part = IndexPart((), True, (AdoptedCharter(10, bench.charter),))
    assert_dropped(bench, bench.say(SYNCER.key, part), "limit-exceeded")


def test_a_welcome_without_an_index_ends_the_link_of_a_learner_that_has_no_log():
    """Records would follow, and nothing to prove them by."""
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, Welcome(bench.charter, 0, 1, None))
    assert_dropped(bench, effects, "unexpected-message")


def test_a_refusal_for_good_stops_the_daemon_with_its_own_exit_code():
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, Refused("banned", "the owner has banned this key", None))
    (stop,) = stops(effects)
    assert stop.exit_code == REFUSED_EXIT == 4
    assert "banned this key" in stop.reason
    assert faults(bench) == {}


def test_a_refusal_for_now_is_tried_again_after_the_stated_time():
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, Refused("full", "no room", 60.0))
    assert stops(effects) == []
    bench.wait(59.0)
    assert bench.machine.link is Link.WAITING
    bench.wait(2.0)
    assert bench.machine.link is Link.CONNECTING


def test_pauses_between_tries_grow_and_are_spread():
    bench = LearnerBench()
    bench.answer = lambda job: Failed("nobody there") if isinstance(job, FindSeat) else None
    bench.greet()
    pauses = []
    for _ in range(len(SEEK_AGAIN.steps_s) + 3):
        assert bench.machine.link is Link.WAITING
        low, high = bench.now_s, bench.now_s + 100.0
        for _ in range(40):  # When does it try again?
            middle = (low + high) / 2
            low, high = (middle, high) if bench.machine._retry_s > middle else (low, middle)
        pauses.append(high - bench.now_s)
        bench.wait(pauses[-1] + 1e-6)
    for pause_s, usual_s in zip(
        pauses, (*SEEK_AGAIN.steps_s, *SEEK_AGAIN.steps_s[-1:] * 3), strict=True
    ):
        assert 0.7 * usual_s <= pause_s <= 1.3 * usual_s + 1e-5


def test_a_syncer_that_can_be_reached_again_is_tried_at_once():
    bench = LearnerBench()
    bench.answer = lambda job: Failed("nobody there") if isinstance(job, FindSeat) else None
    bench.greet()
    for _ in range(len(SEEK_AGAIN.steps_s)):
        bench.wait(2 * SEEK_AGAIN.steps_s[-1])
    bench.answer = lambda job: None
    assert bench.machine.link is Link.WAITING
    bench.wait(3 * SEEK_AGAIN.steps_s[0])
    assert bench.machine.link is Link.WAITING, "its pauses are long by now"
    bench.feed(Note(SyncerAnswers()))
    bench.wait(2 * SEEK_AGAIN.steps_s[0])
    assert bench.machine.link is Link.SEEKING


def test_one_that_refuses_for_now_is_not_tried_sooner_because_it_can_be_reached():
    bench = LearnerBench().greet()
    bench.say(SYNCER.key, Refused("full", "no room", 60.0))
    bench.feed(Note(SyncerAnswers()))
    bench.wait(59.0)
    assert bench.machine.link is Link.WAITING
    bench.wait(2.0)
    assert bench.machine.link is Link.CONNECTING


# Charters


@pytest.mark.parametrize("domain", ["push", "record"])
def test_a_charter_signed_for_another_purpose_is_not_followed(log, domain):
    bench = LearnerBench().greet()
    tiny = project()
    wrong = seal(domain, tiny.project, encode(tiny.charter), tiny.owner)
    effects = bench.admit(log, charter=wrong)
    assert_dropped(bench, effects, "bad-signature")


def test_a_charter_of_somebody_else_is_not_followed(log):
    bench = LearnerBench().greet()
    tiny = project()
    forged = seal("charter", tiny.project, encode(tiny.charter), STRANGER)
    effects = bench.admit(log, charter=forged)
    assert_dropped(bench, effects, "bad-signature")


def test_a_charter_that_does_not_decode_is_not_followed(log):
    bench = LearnerBench().greet()
    noise = seal("charter", project().project, b"\xc1", project().owner)
    assert_dropped(bench, bench.admit(log, charter=noise), "malformed")


def test_a_charter_written_for_another_project_is_not_followed(log):
    bench = LearnerBench().greet()
    tiny = project()
    other = msgspec.structs.replace(tiny.charter, project=digest_of("other"))
    envelope = seal("charter", tiny.project, encode(other), tiny.owner)
    effects = bench.admit(log, charter=envelope)
    assert_dropped(bench, effects, "wrong-project")


def test_an_older_charter_does_not_replace_a_newer_one(log):
    tiny = project()
    bench = LearnerBench()
    newer = msgspec.structs.replace(tiny.charter, revision=9)
    bench.charter = seal("charter", tiny.project, encode(newer), tiny.owner)
    bench.greet()
    bench.admit(log, charter=charter_envelope(tiny))
    assert bench.machine.context.charter.revision == 9


def test_a_seat_with_a_forged_charter_is_not_even_dialled():
    bench = LearnerBench()
    tiny = project()
    forged = seal("charter", tiny.project, encode(tiny.charter), STRANGER)
    bench.answer = lambda job: seat_found(forged) if isinstance(job, FindSeat) else None
    bench.greet()
    assert faults(bench) == {"bad-signature": 1}
    assert not any(isinstance(effect, Connect) for effect in bench.effects)
    assert bench.machine.link is Link.WAITING


# The log


def test_committed_records_move_the_state(bench, log):
    bench.commit(log.add(merged()))
    assert bench.machine.context.state.global_step == 1
    assert faults(bench) == {}


def test_a_record_without_votes_of_voters_ends_the_link_and_changes_nothing(bench, log):
    before = bench.machine.context.state.summary()
    entry = log.add(merged())
    forged = certified(log.records[-1], STRANGER)
    effects = bench.commit(CertifiedRecord(entry.record, forged.certificate))
    assert bench.machine.context.state.summary() == before
    assert_dropped(bench, effects, "bad-signature")


def test_a_certificate_for_another_record_ends_the_link(bench, log):
    one, two = log.add(merged()), log.add(merged(fragment=1, global_step=2))
    effects = bench.commit(CertifiedRecord(one.record, two.certificate))
    assert_dropped(bench, effects, "bad-signature")


def test_a_record_out_of_order_ends_the_link(bench, log):
    log.add(merged())
    effects = bench.commit(log.add(merged(fragment=1, global_step=2)))
    assert_dropped(bench, effects, "malformed")


def test_the_same_record_twice_ends_the_link(bench, log):
    entry = log.add(merged())
    effects = bench.commit(entry, entry)
    assert bench.machine.context.state.global_step == 1
    assert_dropped(bench, effects, "malformed")


def test_a_record_of_another_history_ends_the_link(bench, log):
    fork = record(RunEnding("owner"), index=3, previous=digest_of("other"))
    assert_dropped(bench, bench.commit(certified(fork)), "malformed")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(merged(version=2), id="version gap"),
        pytest.param(merged(fragment=FRAGMENTS), id="unknown fragment"),
        pytest.param(weights(), id="weights again"),
    ],
)
def test_a_certified_record_that_makes_no_sense_ends_the_link(bench, log, body):
    nonsense = record(body, index=3, previous=log.state.head)
    assert_dropped(bench, bench.commit(certified(nonsense)), "malformed")


def test_a_certified_lease_that_makes_no_sense_is_no_crash(bench, log):
    bench.commit(log.add(BlocksLeased(TWO.key, 1, (Span(0, 4, 0),))))
    again = BlocksLeased(ONE.key, 1, (Span(2, 6, 0),))
    effects = bench.commit(certified(record(again, index=4, previous=log.state.head)))
    assert disconnected(effects) == [SYNCER.key]
    assert sum(faults(bench).values()) == 1


def test_records_before_the_bad_one_still_count(bench, log):
    good = log.add(merged())
    effects = bench.commit(good, good)
    assert bench.machine.context.state.index == 3
    assert disconnected(effects) == [SYNCER.key]


# The index


def spoilt_summary(log, **changes):
    return wire.encode(msgspec.structs.replace(log.state.summary(), **changes))


def test_an_index_without_a_certificate_for_a_fragment_ends_the_link(log):
    log.add(merged())
    bench = LearnerBench().greet()
    weights_only = (log.entries[1],)  # Without the merge of fragment 0.
    effects = bench.admit(log, origins=weights_only)
    assert not bench.machine.context.state.has_weights
    assert_dropped(bench, effects, "bad-signature")


def test_an_index_whose_summary_names_other_weights_than_certified_ends_the_link(log):
    fragments = list(log.state.fragments)
    fragments[2] = msgspec.structs.replace(fragments[2], state=state_digests("mine"))
    bench = LearnerBench().greet()
    summary = spoilt_summary(log, fragments=tuple(fragments))
    effects = bench.admit(log, summary=summary)
    assert_dropped(bench, effects, "bad-signature")


def test_an_index_that_swaps_two_fragments_ends_the_link(log):
    fragments = list(log.state.fragments)
    fragments[0], fragments[1] = fragments[1], fragments[0]
    bench = LearnerBench().greet()
    summary = spoilt_summary(log, fragments=tuple(fragments))
    effects = bench.admit(log, summary=summary)
    assert_dropped(bench, effects, "bad-signature")


@pytest.mark.parametrize("count", [0, FRAGMENTS - 1, FRAGMENTS + 1])
def test_an_index_with_another_number_of_fragments_ends_the_link(log, count):
    fragments = (log.state.fragments * 2)[:count]
    bench = LearnerBench().greet()
    summary = spoilt_summary(log, fragments=tuple(fragments))
    effects = bench.admit(log, summary=summary)
    assert_dropped(bench, effects, "unexpected-message")


def test_an_index_of_weights_for_fewer_fragments_than_it_lists_is_no_crash():
    few = Log(SeatTaken(SYNCER.key), WeightsInitialised((state_digests(0, 0),)))
    bench = LearnerBench().greet()
    fragments = tuple(few.state.fragments * FRAGMENTS)
    effects = bench.admit(few, summary=spoilt_summary(few, fragments=fragments))
    assert disconnected(effects) == [SYNCER.key]
    assert faults(bench) == {"bad-signature": 1}


@pytest.mark.parametrize("changes", [{"log_index": 7}, {"summary": b"\xc1"}, {"summary": b""}])
def test_an_index_that_contradicts_itself_ends_the_link(log, changes):
    bench = LearnerBench().greet()
    effects = bench.admit(log, **changes)
    reason = "malformed" if "summary" in changes else "unexpected-message"
    assert_dropped(bench, effects, reason)


# The inner loop


def finish(bench, kind, answer):
    """Answer every held job of this kind."""
    while jobs := bench.jobs(kind):
        bench.done(kind, answer(jobs[0]))


def test_nothing_is_delivered_between_a_capture_and_its_push(bench, log):
    finish(bench, FetchState, lambda job: StateFetched(((SYNCER.key, 1),)))
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    finish(bench, Deliver, lambda job: Delivered(job.version, 0, 0))
    bench.say(SYNCER.key, Pull(1, 0, 0))
    assert [job.fragment for job in bench.jobs(Capture)] == [0]
    bench.commit(log.add(merged(contributions=(contribution(learner=STRANGER.key),))))
    finish(bench, Advance, lambda job: Advanced())
    assert bench.jobs(Deliver) == []
    bench.done(Capture, Captured(0, digest_of("payload"), 16, 4, 1024, Cursor(0, 0)))
    assert bench.last(SYNCER.key, Push) is not None
    assert [(job.fragment, job.version) for job in bench.jobs(Deliver)] == [(0, 1)]


def pushes_of(bench):
    sent = bench.all(SYNCER.key, Push)
    return [wire.decode(one.header.payload, PushHeader).sequence for one in sent]


def test_a_payload_that_a_syncer_could_not_give_is_asked_of_it_again_once_it_is_back(bench, log):
    finish(bench, FetchState, lambda job: StateFetched(()))
    bench.commit(log.add(merged()))
    for _ in range(ADVANCE_TRIES):
        bench.done(Advance, Failed("unreachable"))
        bench.wait(3.0)
    bench.feed(PeerDown(SYNCER.key, "cable"))
    bench.wait(2.0)
    bench.done(FetchState, Failed("nobody has it"))
    bench.feed(PeerUp(SYNCER.key))
    effects = bench.say(SYNCER.key, Welcome(bench.charter, 0, 1, None))
    assert NoteReached(SYNCER.key) in actions(effects, NoteReached)
    assert [job.merged.version for job in bench.jobs(Advance)] == [1]
    assert not bench.jobs(FetchState)


@pytest.mark.parametrize(
    "first", [Captured(0, digest_of("a"), 16, 4, 1024, Cursor(0, 0)), Failed("no")]
)
def test_pushes_are_handed_in_in_the_order_of_their_captures(bench, log, first):
    finish(bench, FetchState, lambda job: StateFetched(((SYNCER.key, 1),)))
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    finish(bench, Deliver, lambda job: Delivered(job.version, 0, 0))
    bench.say(SYNCER.key, Pull(1, 0, 0))
    bench.say(SYNCER.key, Pull(2, 1, 0))
    one, other = [start for start in bench.held if isinstance(start.job, Capture)]
    bench.feed(JobDone(other.id, Captured(0, digest_of("b"), 16, 4, 1024, Cursor(0, 0))))
    assert pushes_of(bench) == [], "a smaller fragment may be encoded sooner"
    bench.feed(JobDone(one.id, first))
    assert pushes_of(bench) == ([1, 2] if isinstance(first, Captured) else [2])


@pytest.mark.parametrize(
    ("most", "learner", "was_captured", "is_assign"),
    [
        (4, STRANGER, False, False),
        (4, STRANGER, True, False),
        (4, ONE, True, True),
        (0, STRANGER, False, True),
        (0, STRANGER, True, True),
        (0, ONE, True, True),
    ],
)
def test_local_steps_outlive_a_merge_that_asked_others(most, learner, was_captured, is_assign):
    tiny = project(rounds(participants_max=most))
    log = Log(SeatTaken(SYNCER.key), weights(), tiny=tiny)
    bench = LearnerBench(tiny=tiny).follow(log)
    finish(bench, FetchState, lambda job: StateFetched(((SYNCER.key, 1),)))
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    finish(bench, Deliver, lambda job: Delivered(job.version, 0, 0))
    if was_captured:
        bench.say(SYNCER.key, Pull(1, 0, 0))
        bench.done(Capture, Captured(0, digest_of("payload"), 16, 4, 1024, Cursor(0, 0)))
    bench.commit(log.add(merged(contributions=(contribution(learner=learner.key, sequence=1),))))
    finish(bench, Advance, lambda job: Advanced())
    (job,) = bench.jobs(Deliver)
    assert (job.version, job.is_assign) == (1, is_assign)
    bench.done(Deliver, Delivered(1, 6, 6 * 32))
    local = bench.machine.fragment_sync.local_fragments[0]
    assert local.steps(6) == (0 if is_assign else 6)


@pytest.mark.parametrize(
    ("steps", "step_s", "is_assign"), [(8, 5.0, False), (9, 5.0, True), (8, 3.0, True)]
)
def test_who_is_lapped_keeps_up_to_h_local_steps(bench, log, steps, step_s, is_assign):
    finish(bench, FetchState, lambda job: StateFetched(((SYNCER.key, 1),)))
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    finish(bench, Deliver, lambda job: Delivered(job.version, 0, 0))
    for version in (1, 2):
        part = contribution(learner=STRANGER.key, sequence=version)
        bench.commit(log.add(merged(version=version, contributions=(part,))))
        finish(bench, Advance, lambda job: Advanced())
        (job,) = bench.jobs(Deliver)
        if version == 1:  # How long the others need is not known yet.
            assert job.is_assign
            bench.done(Deliver, Delivered(1, 0, 0))
            bench.feed(Note(Stepped(steps, steps * 32, 1.0, step_s, 1.0, 1.0, Cursor(0, 0))))
            bench.now_s += 4.0
    assert (job.version, job.is_assign) == (2, is_assign)
    bench.done(Deliver, Delivered(2, steps, steps * 32))
    local = bench.machine.fragment_sync.local_fragments[0]
    assert (local.steps(steps), local.discarded_steps) == ((0, steps) if is_assign else (8, 0))


def test_the_next_trainer_reads_nothing_that_is_in_a_push(bench, log):
    session = (ONE.key, bench.machine.context.setup.incarnation)
    bench.commit(log.add(BlocksLeased(*session, (Span(0, 6, 0),))))
    finish(bench, FetchState, lambda job: StateFetched(((SYNCER.key, 1),)))
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    finish(bench, Deliver, lambda job: Delivered(job.version, 0, 0))
    bench.say(SYNCER.key, Pull(1, 0, 0))
    bench.done(Capture, Captured(0, digest_of("payload"), 16, 4, 128, Cursor(1, 4)))
    assert bench.last(SYNCER.key, Push) is not None
    bench.feed(Note(TrainerLost(False, "killed")))
    bench.wait(10.0)
    bench.done(StartTrainer, TrainerReady("cpu", 1))
    fed = [effect.spans for effect in actions(bench.effects, Feed)]
    assert fed == [(Span(0, 6, 0),), (Span(2, 6, 0),)]


@pytest.mark.parametrize(
    ("wished", "taken"), [(None, (2, 16)), (1, (2, 0)), (9, (9, 0)), (99, (16, 0))]
)
def test_a_trainer_is_started_with_the_batch_that_its_owner_wishes(wished, taken):
    tiny = tiny_project(SYNCER.key, batch_sequences_max=16)
    bench = LearnerBench(tiny=tiny, batch_sequences=wished)
    bench.follow(Log(SeatTaken(SYNCER.key), weights(), tiny=tiny))
    (job,) = bench.jobs(StartTrainer)
    assert (job.inner.batch_sequences, job.inner.batch_sequences_max) == taken


# Ends


def test_a_finished_run_stops_the_learner_and_it_says_goodbye(bench, log):
    effects = bench.commit(log.add(RunEnded(1, 100, 2, 1.25)))
    (stop,) = stops(effects)
    assert stop.exit_code == 0
    assert "1.25" in stop.reason
    assert bench.last(SYNCER.key, Goodbye) is not None
    assert bench.machine.link is Link.ENDED


def test_a_run_that_had_ended_before_the_learner_came_stops_it_too(log):
    log.add(RunEnding("owner"))
    log.add(RunEnded(1, 100, 2, None))
    bench = LearnerBench().greet()
    effects = bench.admit(log)
    (stop,) = stops(effects)
    assert stop.exit_code == 0
    assert "complete" in stop.reason


def test_the_invite_of_its_link_is_in_every_hello():
    invite = seal("invite", project().project, b"x", STRANGER)
    bench = LearnerBench()
    bench.machine.setup = dataclasses.replace(bench.machine.setup, invite=invite)
    bench.greet()
    assert bench.last(SYNCER.key, Hello).invite == invite
    assert LearnerBench().greet().last(SYNCER.key, Hello).invite is None


def test_whoever_is_not_invited_stops_and_says_what_to_do():
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, Refused("not-invited", "ask its host for a link", None))
    (stop,) = stops(effects)
    assert stop.exit_code == REFUSED_EXIT
    assert stop.reason == "the syncer refused: ask its host for a link"


def test_a_goodbye_is_no_offence_and_is_tried_again(bench):
    effects = bench.say(SYNCER.key, Goodbye("restart"))
    assert disconnected(effects) == [SYNCER.key]
    assert (bench.machine.link, faults(bench)) == (Link.WAITING, {})
    bench.wait(2.0)
    assert bench.machine.link is Link.CONNECTING


@pytest.mark.parametrize(
    "snapshot_participant",
    [Goodbye("restart"), Refused("full", "no room", 1.0), Refused("banned", "no", None)],
    ids=["goodbye", "refused for now", "refused for good"],
)
def test_what_was_on_its_way_when_the_link_ended_is_no_crash(bench, log, snapshot_participant):
    # Both came with one read from the stream: it ends only after the second was handled.
    bench.commit(log.entries[0])
    assert bench.machine.link is Link.WAITING
    bench.say(SYNCER.key, snapshot_participant)
    bench.wait(5.0)
    assert bench.machine.link in (Link.CONNECTING, Link.WAITING)


def test_a_late_answer_about_the_seat_is_no_crash(bench):
    bench.say(SYNCER.key, Goodbye("restart"))
    bench.hold = {FindSeat}
    bench.wait(2.0)
    assert bench.machine.link is Link.SEEKING
    bench.say(SYNCER.key, Goodbye("again"))
    bench.wait(5.0)
    while bench.jobs(FindSeat):
        bench.done(FindSeat, seat_found(bench.charter))
    assert bench.machine.link is Link.CONNECTING


def test_whoever_is_not_the_leader_is_not_heard(bench):
    before = bench.machine.context.state.summary()
    for message in (Goodbye("from me"), Refused("banned", "go", None), Committed(())):
        bench.say(STRANGER.key, message)
    bench.feed(PeerDown(STRANGER.key, "left"))
    assert bench.machine.link is Link.FOLLOWING
    assert bench.machine.context.state.summary() == before
    assert faults(bench) == {}


def test_a_stopped_learner_says_goodbye_and_exits_well(bench):
    effects = bench.feed(StopAsked("owner"))
    assert [stop.exit_code for stop in stops(effects)] == [0]
    assert bench.last(SYNCER.key, Goodbye) == Goodbye("owner")


def test_pulls_of_fragments_that_are_not_there_change_nothing(bench):
    bench.say(SYNCER.key, Pull(1, FRAGMENTS, 0))
    bench.say(SYNCER.key, Settled(1, 99, "late", "never heard of"))
    bench.say(SYNCER.key, Settled(7, 1, "late", "of another session"))
    assert bench.machine.link is Link.FOLLOWING
    assert faults(bench) == {}


def test_a_mark_that_names_somebody_else_asks_nothing_of_this_learner(bench, log):
    bench.commit(log.add(CheckpointMarked(0, STRANGER.key)))
    assert bench.machine.fragment_sync.freezing is None
    bench.commit(log.add(CheckpointMarked(0, ONE.key)))
    assert bench.machine.fragment_sync.freezing.index == log.state.index


def frozen(bench):
    """The log index of the checkpoint that this learner has frozen, and whether it is its turn."""
    plan = bench.machine.fragment_sync.freezing
    return (plan.index, plan.is_asked) if plan is not None else None


def test_the_second_of_a_mark_freezes_it_and_measures_once_its_word_is_wanted(bench, log):
    bench.commit(log.add(CheckpointMarked(0, STRANGER.key, ONE.key)))
    mark = log.state.index
    assert frozen(bench) == (mark, False)
    bench.commit(log.add(CheckpointEvaluated(mark, 0, 0, STRANGER.key, 2.0)))
    assert frozen(bench) == (mark, True)


def test_the_second_forgets_a_mark_that_is_no_new_best_or_that_nobody_measured(bench, log):
    bench.commit(log.add(CheckpointMarked(0, STRANGER.key, ONE.key)))
    best = log.state.index
    for who in (STRANGER, ONE):
        bench.commit(log.add(CheckpointEvaluated(best, 0, 0, who.key, 2.0)))
    bench.commit(log.add(CheckpointMarked(0, STRANGER.key, ONE.key)))
    worse = log.state.index
    assert frozen(bench) == (worse, False)
    effects = bench.commit(log.add(CheckpointEvaluated(worse, 0, 0, STRANGER.key, 2.1)))
    assert frozen(bench) is None
    assert actions(effects, Thaw) == [Thaw(worse)]
    bench.commit(log.add(CheckpointMarked(0, STRANGER.key, ONE.key)))
    bench.commit(log.add(CheckpointMarked(0, STRANGER.key, TWO.key)))
    assert frozen(bench) is None


def test_an_answer_to_a_job_that_was_never_started_changes_nothing(bench):
    bench.feed(JobDone(12345, Failed("?")))
    assert bench.machine.link is Link.FOLLOWING


def test_news_is_told_no_more_often_than_the_syncer_asks_for(bench):
    bench.say(SYNCER.key, Alive(1, 2.0))
    bench.wait(2.0)
    told = len(bench.all(SYNCER.key, Heartbeat))
    for _ in range(5):
        bench.machine.trainer_control._is_news = True
        bench.wait(0.3)
    assert len(bench.all(SYNCER.key, Heartbeat)) == told
    bench.machine.trainer_control._is_news = True
    bench.wait(0.6)
    assert len(bench.all(SYNCER.key, Heartbeat)) == told + 1


# What its owner wants to see


def test_whoever_looks_at_a_learner_is_told_what_its_leader_says_of_the_swarm(bench):
    bench.feed(Note(LookAtSwarm()))
    look = bench.last(SYNCER.key, Watch)
    assert look == Watch(limits.WIRE_VERSION, project().project, is_once=True)
    told = bench.say(SYNCER.key, Report(b"how it is"))
    assert actions(told, ShowReport) == [ShowReport(b"how it is")]
    assert faults(bench) == {}


def test_without_a_leader_nobody_is_asked_how_the_swarm_is(bench):
    bench.feed(PeerDown(SYNCER.key, "cable"))
    bench.feed(Note(LookAtSwarm()))
    assert bench.last(SYNCER.key, Watch) is None


def test_a_report_before_the_welcome_ends_the_link():
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, Report(b"how it is"))
    assert_dropped(bench, effects, "unexpected-message")
