"""What holds for any message, any bytes, any order of events."""

from __future__ import annotations

import string

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from protocol import wire
from protocol.errors import LimitExceeded, MalformedMessage
from protocol.log.leases import LeaseBook
from protocol.log.records import (
    BlocksLeased,
    BlocksReturned,
    CheckpointEvaluated,
    CheckpointMarked,
    Record,
    SeatTaken,
    record_hash,
)
from protocol.log.state import SwarmState, SwarmSummary
from protocol.machine import JobDone, PeerDown, PeerUp, Received, Send, Start, Started, Woke
from protocol.messages import Committed, Cursor, Evaluation, LeaseRequest, Message
from protocol.project import Charter
from protocol.quorum import GraceWindow
from protocol.rounds import PullState, Round, RoundState
from syncer_node.raft.jobs import Append
from tests.support.builders import (
    FRAGMENTS,
    LEARNERS,
    SYNCER,
    Log,
    SyncerBench,
    contribution,
    heartbeat,
    hello,
    merged,
    project,
    push_header,
    rounds,
    sealed_push,
    state_digests,
    weights,
)
from tests.support.strategies import (
    bodies,
    documents,
    each_of,
    learner_messages,
    messages,
    push_headers,
    records,
    syncer_messages,
    voter_messages,
)

quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FIVE = LEARNERS[:5]


# Bytes


@quick
@given(messages)
def test_any_message_survives_the_wire_unchanged(message):
    frame = wire.encode(message)
    assert wire.decode_message(frame) == message
    assert wire.encode(wire.decode_message(frame)) == frame


@quick
@given(st.one_of(records, push_headers, documents))
def test_any_stored_document_survives_unchanged(value):
    assert wire.decode(wire.encode(value), type(value)) == value


@quick
@given(bodies)
def test_a_record_of_any_body_has_a_hash_of_its_own(body):
    one = Record(bytes(32), 0, 1, 1, bytes(32), 0.0, body)
    other = msgspec.structs.replace(one, term=2)
    assert record_hash(wire.encode(one)) != record_hash(wire.encode(other))


def decoded_or_refused(frame):
    """The message in these bytes, None if they were refused; any other exception is a bug."""
    try:
        message = wire.decode_message(frame)
    except (MalformedMessage, LimitExceeded):
        return None
    assert wire.encode(message) == frame
    return message


@quick
@given(messages, st.data())
def test_any_flipped_bit_is_refused_or_makes_another_message(message, data):
    frame = bytearray(wire.encode(message))
    for _ in range(8):
        at = data.draw(st.integers(0, len(frame) - 1))
        spoilt = bytearray(frame)
        spoilt[at] ^= 1 << data.draw(st.integers(0, 7))
        found = decoded_or_refused(bytes(spoilt))
        assert found is None or wire.encode(found) != frame  # By its bytes: 0.0 equals -0.0.


@quick
@given(messages)
def test_any_truncation_is_refused(message):
    frame = wire.encode(message)
    cuts = {0, 1, 2, len(frame) // 2, len(frame) - 2, len(frame) - 1} & set(range(len(frame)))
    assert all(decoded_or_refused(frame[:cut]) is None for cut in cuts)


@quick
@given(messages, st.binary(min_size=1, max_size=8))
def test_anything_behind_a_message_is_refused(message, more):
    assert decoded_or_refused(wire.encode(message) + more) is None


@settings(quick, max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_else(noise):
    decoded_or_refused(noise)
    for kind in (Record, Charter, SwarmSummary):
        with pytest.raises((MalformedMessage, LimitExceeded)):
            wire.decode(noise, kind)


TAGS = [kind.__struct_config__.tag for kind in each_of(Message)]
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(string.printable, max_size=4)
    | st.binary(max_size=64),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@settings(quick, max_examples=200)
@given(st.sampled_from(TAGS), st.lists(plain, max_size=14))
def test_any_well_formed_list_with_a_known_tag_is_refused_or_a_message(tag, fields):
    decoded_or_refused(msgspec.msgpack.encode([tag, *fields]))


# Leases


lease_steps = st.lists(
    st.tuples(
        st.sampled_from(["lease", "read", "read", "give back"]),
        st.integers(0, 2),
        st.integers(0, 12),
        st.integers(0, 5),
    ),
    max_size=40,
)


def occupied(book):
    """Every position that is held or given back, each as often as it occurs."""
    spans = [span for held in book.held.values() for span in held] + book.returned
    return sorted(at for span in spans for at in range(span.start, span.stop))


@settings(quick, max_examples=150)
@given(lease_steps)
def test_no_block_is_held_twice_and_none_is_lost(steps):
    book, done = LeaseBook(), set()
    for kind, who, number, sequence in steps:
        session = (FIVE[who].key, 1)
        before = set(occupied(book))
        if kind == "lease":
            book.lease(session, book.pick(max(1, number)), 0.0, 4)
        elif kind == "give back":
            book.give_back(session)
            assert set(occupied(book)) == before
        else:
            mine = {at for s in book.held.get(session, []) for at in range(s.start, s.stop)}
            book.advance(session, Cursor(number, sequence), 4)
            finished = before - set(occupied(book))
            assert finished <= mine
            done |= finished
        now = occupied(book)
        assert len(now) == len(set(now))
        assert set(now) | done == set(range(book.next_position))
        assert not set(now) & done


@settings(quick, max_examples=100)
@given(lease_steps)
def test_reading_never_goes_back(steps):
    book = LeaseBook()
    furthest = {}
    for kind, who, number, sequence in steps:
        session = (FIVE[who].key, 1)
        if kind == "lease":
            book.lease(session, book.pick(max(1, number)), 0.0, 4)
        elif kind == "give back":
            book.give_back(session)
        else:
            book.advance(session, Cursor(number, sequence), 4)
        for spans in [*book.held.values(), book.returned]:
            for span in spans:
                assert 0 <= span.skip < 4
                assert span.start < span.stop
                assert span.skip >= furthest.get(span.start, 0)
                furthest[span.start] = span.skip


# The log


state_steps = st.lists(
    st.tuples(
        st.sampled_from(["lease", "return", "merge", "merge", "mark", "score", "seat"]),
        st.integers(0, FRAGMENTS - 1),
        st.integers(0, 9),
        st.floats(0.0, 10.0),
    ),
    max_size=25,
)


def grow(log, kind, number, other, real):
    """One more valid record, made of drawn numbers."""
    state = log.state
    learner = FIVE[number % len(FIVE)].key
    match kind:
        case "lease":
            log.add(BlocksLeased(learner, 1, state.leases.pick(other + 1)))
        case "return":
            log.add(BlocksReturned(learner, 1))
        case "merge":
            part = contribution(
                learner=learner, tokens=other, scale=min(1.0, real), cursor=Cursor(other, number)
            )
            version = state.fragments[number].version + 1
            log.add(
                merged(
                    round=state.rounds + 1,
                    global_step=state.global_step + 1,
                    fragment=number,
                    version=version,
                    state=state_digests(number, version),
                    contributions=(part,),
                )
            )
        case "mark":
            log.add(CheckpointMarked(state.global_step, learner))
        case "score":
            log.add(CheckpointEvaluated(other, number, other, learner, real))
        case "seat":
            log.add(SeatTaken(learner))


@quick
@given(state_steps)
@example([("lease", 0, 0, 0.0), ("merge", 0, 0, 0.0), ("lease", 0, 0, 0.0), ("lease", 0, 0, 0.0)])
def test_a_summary_holds_everything_that_later_records_need(steps):
    log = Log(SeatTaken(SYNCER.key), weights())
    half = len(steps) // 2
    for step in steps[:half]:
        grow(log, *step)
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    restored = SwarmState.restore(summary, log.state.block_sequences)
    seen = len(log.records)
    for step in steps[half:]:
        grow(log, *step)
    for entry, one in zip(log.entries[seen:], log.records[seen:], strict=True):
        restored.apply(one, record_hash(entry.record))
    assert restored.summary() == log.state.summary()
    assert restored.best == log.state.best
    assert restored.tokens == log.state.tokens


# Rounds


def step_round(one, draw):
    """Something happens to one ticket, or nothing."""
    open_tickets = [
        (peer, ticket)
        for peer, ticket in sorted(one.tickets.items())
        if ticket.state in (PullState.ASKED, PullState.SENDING)
    ]
    if not open_tickets:
        return
    _, ticket = draw(st.sampled_from(open_tickets))
    ticket.state = draw(st.sampled_from([PullState.SENDING, PullState.ARRIVED, PullState.FAILED]))
    ticket.header = push_header()
    if ticket.state is PullState.ARRIVED:
        one.arrive(ticket)


@settings(quick, max_examples=150)
@given(st.data())
def test_a_round_always_ends_by_its_deadlines(data):
    spec = rounds(
        quorum=data.draw(st.integers(1, 6)),
        patience_s=data.draw(st.floats(0.1, 30.0)),
        pull_timeout_s=data.draw(st.floats(0.1, 30.0)),
    )
    window = GraceWindow(data.draw(st.floats(0.0, 1.0)), data.draw(st.integers(1, 4)))
    for average in (window.opening, window.quorum, window.sync):
        if data.draw(st.booleans()):
            average.observe(data.draw(st.floats(0.0, 60.0)))
    slowest_s = data.draw(st.floats(0.0, 10.0))
    opened_s = now_s = data.draw(st.floats(0.0, 1e6))
    one = Round(1, 0, 1, now_s, spec)
    for learner in FIVE[: data.draw(st.integers(0, 5))]:
        one.ask(learner.key, now_s)
    verdict, looks = "", 0
    while verdict not in ("close", "abandon"):
        verdict = one.look(
            now_s, live=data.draw(st.integers(0, 5)), window=window, slowest_step_s=slowest_s
        )
        if verdict == "quorum":
            assert 0.0 <= one.grace_s <= slowest_s
            continue
        if verdict in ("close", "abandon"):
            break
        looks += 1
        assert looks < 30
        deadline_s = one.deadline_s(now_s)
        assert deadline_s is not None
        assert deadline_s > now_s, "a round that waits must not wake at once"
        if data.draw(st.booleans()):
            step_round(one, data.draw)
            now_s += (deadline_s - now_s) / 2
        else:
            now_s = deadline_s
    longest_s = max(spec.patience_s, spec.pull_timeout_s) + slowest_s
    assert now_s <= opened_s + longest_s + 1e-6
    arrived = len(one.arrived)
    assert (verdict == "abandon") == (arrived == 0)
    assert one.state in (RoundState.OPEN, RoundState.GRACE)


# The syncer, fed with anything


def plausible(draw, seat, peer):
    """A message that gets further than noise does: of now, or nearly."""
    newest = [fragment.version for fragment in seat.state.fragments]
    open_rounds = sorted(seat.rounds.rounds.values(), key=lambda one: one.number)
    kind = draw(st.sampled_from(["beat", "beat", "push", "push", "push", "lease", "evaluation"]))
    if kind == "beat":
        return heartbeat(
            local_step=draw(st.integers(0, 300)),
            steps=tuple(draw(st.sampled_from([8, 8, 20, 0])) for _ in newest),
            versions=tuple(
                max(0, version - draw(st.sampled_from([0, 0, 1]))) for version in newest
            ),
            step_s=draw(st.floats(0.0, 2.0)),
            state=draw(st.sampled_from(["training", "training", "training", "starved"])),
        )
    if kind == "push":
        asked = [one for one in open_rounds if peer in one.tickets] or open_rounds
        current = draw(st.sampled_from(asked)) if asked else None
        known = seat.members.sessions.get(peer)
        session = known.key if known else (peer, 1)
        return sealed_push(
            next(one for one in FIVE if one.key == peer),
            incarnation=session[1],
            sequence=seat.rounds.last_sequence.get(session, 0) + draw(st.sampled_from([1, 1, 0])),
            round=current.number if current else draw(st.integers(0, 3)),
            fragment=current.fragment if current else draw(st.integers(0, FRAGMENTS)),
            base_version=max(0, current.version - 1) if current else 0,
            steps=draw(st.sampled_from([8, 8, 8, 0, 9])),
        )
    if kind == "lease":
        return LeaseRequest(draw(st.integers(1, 9)))
    return Evaluation(seat.evaluating.pending, draw(st.floats(0.0, 9.0)), 1, 1.0)


class Fuzzed:
    """A syncer whose jobs are answered late and in any order, by a disk that remembers."""

    def __init__(self):
        self.bench = SyncerBench(project(rounds(quorum=2, patience_s=2.0, pull_timeout_s=5.0)))
        self.stored = set()
        self.waiting = []
        self.now_s = 0.0

    def feed(self, event):
        for effect in self.bench.machine.handle(event, self.now_s):
            if isinstance(effect, Start):
                self.waiting.append(effect)
            elif isinstance(effect, Send):
                message = wire.decode_message(wire.encode(effect.message))
                if isinstance(message, Committed):
                    assert {e.certificate.index for e in message.entries} <= self.stored

    def answer(self, at):
        start = self.waiting.pop(at)
        if isinstance(start.job, Append):
            after = start.job.after
            self.stored |= set(range(after + 1, after + len(start.job.records) + 1))
        self.feed(JobDone(start.id, self.bench.answer(start.job)))

    def begin(self):
        """Weights made, three learners here, trained and asked to hand in."""
        self.feed(Started())
        while self.waiting:
            self.answer(0)
        for learner in FIVE[:3]:
            self.feed(Received(learner.key, hello(evaluates=True)))
            self.feed(Received(learner.key, LeaseRequest(8)))
            while self.waiting:
                self.answer(0)
        self.now_s = 5.0
        for learner in FIVE[:3]:
            self.feed(Received(learner.key, heartbeat()))

    def go_on(self, draw):
        """Some time passes, then something happens."""
        self.now_s += draw(st.sampled_from([0.0] + [0.03] * 12 + [0.5, 3.0]))
        peer = draw(st.sampled_from(FIVE)).key
        match draw(
            st.sampled_from(["say"] * 3 + ["answer"] * 2 + ["wake", "up", "down", "babble"])
        ):
            case "answer" if self.waiting:
                late = draw(st.sampled_from([0, 0, len(self.waiting) - 1]))
                self.answer(late)
            case "up":
                self.feed(PeerUp(peer))
                self.feed(Received(peer, hello(incarnation=draw(st.integers(0, 3)))))
            case "down":
                self.feed(PeerDown(peer, "cable"))
            case "say":
                self.feed(Received(peer, plausible(draw, self.bench.seat, peer)))
            case "babble":
                said = st.one_of(learner_messages, syncer_messages, voter_messages)
                self.feed(Received(peer, draw(said)))
            case _:
                self.feed(Woke())


@pytest.mark.slow
@settings(quick, max_examples=80)
@given(st.data())
def test_the_syncer_survives_anything_and_broadcasts_only_what_is_stored(data):
    fuzzed = Fuzzed()
    fuzzed.begin()
    for _ in range(data.draw(st.integers(10, 60))):
        fuzzed.go_on(data.draw)
    assert fuzzed.bench.machine.state.index <= len(fuzzed.stored)
