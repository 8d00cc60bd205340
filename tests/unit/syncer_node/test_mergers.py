"""Orders between leader and merger, answered well, badly, late, or not at all."""

from __future__ import annotations

import pytest

from protocol import messages, wire
from protocol.effect_queue import EffectQueue
from protocol.errors import UnexpectedMessage
from protocol.log.records import StateDigests
from protocol.machine import Do, Emit, Failed, Send, Start
from protocol.numerics.payload_sizes import payload_bytes
from protocol.trace import MergerAssigned, MergerFailed
from syncer_node.machine import jobs
from syncer_node.machine.merging import mergers as leader_side
from syncer_node.machine.merging import orders
from syncer_node.machine.merging.assignment import STAYS, WINDOW_PUSHES, Assignment, Load
from syncer_node.machine.merging.merger import Merger
from syncer_node.machine.merging.mergers import Mergers
from tests.support.builders import ONE, SYNCER, TWO, digest_of, project, push_header

OWN = SYNCER.key
A, B = b"a" * 32, b"b" * 32
NUMEL = 256
OUTER = project().charter.outer
SEAT = (OWN, 0, 3)
AGAINST = jobs.Against(1.5, (2.0,), True, 2**64 - 1, (8,), (b"12",), 0.5, 0.25, 0.1, 0.2)
STATE = StateDigests(digest_of("theta"), digest_of("momentum"))


def fetch_job(learner=ONE, *, fragment=1, sequence=1, left_s=20.0):
    header = push_header(fragment=fragment, sequence=sequence, digest=digest_of(learner.key))
    return jobs.FetchPush(learner.key, header.round, header, left_s, True)


def merge_job(*fetches, fragment=1, against=None):
    parts = tuple(jobs.MergePart(one.peer, one.header, 1.0) for one in fetches)
    return jobs.Merge(7, fragment, 1, "int4", OUTER, parts, against)


def result_of(job, **changes):
    some = len(job.parts)
    found = {
        "payload": digest_of("payload"),
        "payload_bytes": payload_bytes("int4", NUMEL),
        "state": STATE,
        "norms": (1.0,) * some,
        "scales": (1.0,) * some,
        "cosines": (0.5,) * some,
        "trusts": (1.0,) * some,
        "shares": (1.0 / some,) * some,
        "seconds": 0.5,
        **changes,
    }
    return jobs.Merged(**found)


class LeaderBench:
    """A leader's side, whose fragment 1 is merged by A."""

    def __init__(self, *able):
        self.effects = EffectQueue()
        self.able = able
        self.fetched, self.merged, self.lost = [], [], []
        self.mergers = Mergers(
            effects=self.effects,
            own=OWN,
            epoch=0,
            term=3,
            able=lambda: tuple(self.able),
            fetched=lambda job, result: self.fetched.append((job, result)),
            merged=lambda job, result: self.merged.append((job, result)),
            lose=self._lose,
            most=0,
            pull_timeout_s=20.0,
            assignment=Assignment((NUMEL,) * 4),
        )
        for fragment in range(4):
            self.mergers.open(fragment)
        self.drain()

    def _lose(self, job, pushes):
        self.lost += pushes
        left = tuple(part for part in job.parts if part.push not in pushes)
        return jobs.Merge(7, job.fragment, 1, "int4", OUTER, left) if left else None

    def drain(self):
        return self.effects.drain()

    def sent(self, kind):
        """What was sent of this kind, and to whom; everything else of this event is forgotten."""
        found = [one for one in self.drain() if isinstance(one, Send | Start)]
        return [
            (one.peer, one.message)
            for one in found
            if isinstance(one, Send) and isinstance(one.message, kind)
        ]

    def started(self, kind):
        found = [one.job for one in self.drain() if isinstance(one, Start)]
        return [job for job in found if isinstance(job, kind)]

    def hold(self, *fetches, now_s=1.0):
        """A has these pushes."""
        for job in fetches:
            self.mergers.fetch(job, now_s)
            ((merger, order),) = self.sent(messages.FetchOrder)
            self.mergers.receive(merger, messages.PushHeld(0, 3, order.order), now_s + 0.5)

    def ordered(self, job, now_s=2.0):
        self.mergers.merge(job, now_s)
        ((merger, order),) = self.sent(messages.MergeOrder)
        return merger, order


@pytest.fixture
def bench():
    made = LeaderBench(A, B)
    assert made.mergers.of(1) == A
    assert made.mergers.of(0) == made.mergers.of(3) == OWN
    return made


# From jobs to messages and back.


@pytest.mark.parametrize("against", [None, AGAINST])
def test_a_merger_is_given_the_very_job_that_the_leader_would_carry_out(against):
    job = merge_job(fetch_job(), fetch_job(TWO), against=against)
    order = orders.merge_order(job, 0, 3, 9)
    assert orders.merge_job(wire.decode_message(wire.encode(order))) == job


def test_a_result_comes_back_as_it_was_found():
    job = merge_job(fetch_job(), fetch_job(TWO))
    found = result_of(
        job,
        tensors=(b"12", b"34"),
        tensors_clipped=(0, 2),
        expected=(1.0, 0.5),
        repeats=(0.1, -0.1),
        echoes=(0.2, 0.0),
        novelties=(None, 0.3),
    )
    done = orders.merge_done(orders.merge_order(job, 0, 3, 9), found)
    back = orders.merged(wire.decode_message(wire.encode(done)), A)
    assert back == jobs.Merged(
        **{name: getattr(found, name) for name in found.__slots__ if name != "merger"}, merger=A
    )


# The leader.


def test_a_push_is_fetched_and_merged_by_the_merger_of_its_fragment(bench):
    fetch = fetch_job()
    bench.mergers.fetch(fetch, 1.0)
    ((merger, order),) = bench.sent(messages.FetchOrder)
    assert (merger, order.learner, order.source) == (A, ONE.key, ONE.key)
    assert order.left_s == 20.0
    bench.mergers.receive(A, messages.PushHeld(0, 3, order.order), 2.0)
    assert bench.fetched == [(fetch, jobs.PushFetched())]
    job = merge_job(fetch)
    merger, order = bench.ordered(job)
    assert merger == A
    bench.mergers.receive(A, orders.merge_done(order, result_of(job)), 3.0)
    (taking,) = bench.started(jobs.TakeMerge)
    assert bench.merged == [], "nothing counts before the leader took the same step"
    bench.mergers.on_taken(taking, jobs.MergeTaken(), 4.0)
    ((merged, result),) = bench.merged
    assert merged == job
    assert (result.merger, result.state) == (A, STATE)
    bench.mergers.forget((fetch.push,))
    ((merger, dropped),) = bench.sent(messages.DropPushes)
    assert merger == A
    assert dropped.pushes == (messages.PushName(*fetch.push),)


def test_a_fragment_of_the_leader_costs_no_message(bench):
    fetch = fetch_job(fragment=0)
    bench.mergers.fetch(fetch, 1.0)
    assert bench.started(jobs.FetchPush) == [fetch]
    bench.mergers.on_fetched_here(fetch, jobs.PushFetched(), 2.0)
    job = merge_job(fetch, fragment=0)
    bench.mergers.merge(job, 2.0)
    assert bench.started(jobs.Merge) == [job]
    bench.mergers.on_merged_here(job, result_of(job), 3.0)
    assert [one for one, _ in bench.merged] == [job]
    bench.mergers.forget((fetch.push,))
    assert bench.drain() == [Do(jobs.Forget((fetch.push,)))]


def test_what_a_merger_refuses_is_the_learners_fault(bench):
    bench.mergers.fetch(fetch_job(), 1.0)
    ((_, order),) = bench.sent(messages.FetchOrder)
    told = messages.PushHeld(0, 3, order.order, "malformed-payload", "not finite")
    bench.mergers.receive(A, told, 2.0)
    assert [one for _, one in bench.fetched] == [
        jobs.PushRefused("malformed-payload", "not finite")
    ]


def test_what_a_merger_cannot_fetch_the_leader_fetches_and_hands_on(bench):
    fetch = fetch_job()
    bench.mergers.fetch(fetch, 1.0)
    ((_, order),) = bench.sent(messages.FetchOrder)
    bench.mergers.receive(A, messages.OrderFailed(0, 3, order.order, "unreachable"), 3.0)
    (own,) = bench.started(jobs.FetchPush)
    assert (own.push, own.left_s) == (fetch.push, 18.0)
    bench.mergers.on_fetched_here(own, jobs.PushFetched(), 4.0)
    assert [one for _, one in bench.fetched] == [jobs.PushFetched()]
    bench.mergers.merge(merge_job(fetch), 5.0)
    effects = bench.drain()
    assert Do(jobs.OfferPush(fetch.push, fetch.header.digest)) in effects
    (again,) = [one.message for one in effects if isinstance(one, Send)]
    assert again.source == OWN
    bench.mergers.receive(A, messages.PushHeld(0, 3, again.order), 6.0)
    assert len(bench.sent(messages.MergeOrder)) == 1
    bench.mergers.fetch(fetch_job(sequence=2), 7.0)
    assert bench.sent(messages.FetchOrder) == [], "it goes on to be the leader's for a while"


def test_a_push_that_comes_too_late_at_a_merger_has_its_fate(bench):
    bench.mergers.fetch(fetch_job(left_s=5.0), 1.0)
    bench.drain()
    bench.mergers.look(5.9)
    assert bench.fetched == []
    assert bench.mergers.deadline_s() == 8.0
    bench.mergers.look(8.0)
    ((_, result),) = bench.fetched
    assert isinstance(result, Failed)


def test_a_merger_that_is_lost_gives_its_fetches_and_merges_to_another(bench):
    here, under_way = fetch_job(), fetch_job(TWO, sequence=2)
    bench.hold(here)
    _, order = bench.ordered(merge_job(here))
    bench.mergers.fetch(under_way, 3.0)
    bench.drain()
    bench.able = (B,)
    bench.mergers.on_down(A)
    sent = [one for one in bench.drain() if isinstance(one, Send | Emit)]
    fetches = [one.message for one in sent if isinstance(one, Send)]
    assert {(one.learner, one.source) for one in fetches} == {
        (ONE.key, ONE.key),
        (TWO.key, TWO.key),
    }
    assert {one.peer for one in sent if isinstance(one, Send)} == {bench.mergers.of(1)} == {B}
    told = [one.fact for one in sent if isinstance(one, Emit)]
    assert [type(one) for one in told].count(MergerFailed) == 1
    assert any(isinstance(one, MergerAssigned) for one in told)
    late = messages.MergeDone
    assert isinstance(orders.merge_done(order, result_of(merge_job(here))), late)
    bench.mergers.receive(A, orders.merge_done(order, result_of(merge_job(here))), 4.0)
    assert bench.started(jobs.TakeMerge) == [], "an answer that nobody waits for any more"
    (gathered,) = [one for one in fetches if one.learner == ONE.key]
    bench.mergers.receive(B, messages.PushHeld(0, 3, gathered.order), 5.0)
    ((merger, again),) = bench.sent(messages.MergeOrder)
    assert merger == B
    assert again.parts == order.parts


def test_the_leader_merges_itself_where_no_merger_can(bench):
    fetch = fetch_job()
    bench.hold(fetch)
    _, order = bench.ordered(merge_job(fetch))
    bench.able = ()
    bench.mergers.receive(A, messages.OrderFailed(0, 3, order.order, "disk full"), 3.0)
    (gather,) = bench.started(jobs.FetchPush)
    assert gather.source is None
    bench.mergers.on_fetched_here(gather, Failed("gone"), 4.0)
    (gather,) = bench.started(jobs.FetchPush)
    assert gather.source == A, "who held it may still give it"
    bench.mergers.on_fetched_here(gather, jobs.PushFetched(), 5.0)
    assert bench.started(jobs.Merge) == [merge_job(fetch)]


def test_pushes_that_nobody_has_any_more_are_left_out_with_a_word(bench):
    gone, here = fetch_job(), fetch_job(TWO)
    bench.hold(gone, here)
    bench.ordered(merge_job(gone, here))
    bench.able = ()
    bench.mergers.on_down(A)
    for gather in bench.started(jobs.FetchPush):
        result = jobs.PushFetched() if gather.peer == TWO.key else Failed("gone")
        bench.mergers.on_fetched_here(gather, result, 4.0)
    assert bench.lost == [gone.push]
    (job,) = bench.started(jobs.Merge)
    assert [part.learner for part in job.parts] == [TWO.key]


def test_a_merge_of_which_all_pushes_are_gone_ends(bench):
    gone = fetch_job()
    bench.hold(gone)
    bench.ordered(merge_job(gone))
    bench.able = ()
    bench.mergers.on_down(A)
    (gather,) = bench.started(jobs.FetchPush)
    bench.mergers.on_fetched_here(gather, Failed("gone"), 4.0)
    assert bench.lost == [gone.push]
    assert not bench.mergers.merging
    assert bench.merged == []


@pytest.mark.parametrize(
    "wrong",
    [{"payload_bytes": 3}, {"norms": (1.0, 1.0)}],
    ids=["another size", "another count"],
)
def test_an_answer_to_another_merge_is_an_offence_and_does_not_count(bench, wrong):
    fetch, other = fetch_job(), fetch_job(TWO)
    bench.hold(fetch)
    job = merge_job(fetch)
    _, order = bench.ordered(job)
    if "norms" in wrong:
        two = merge_job(fetch, other)
        done = orders.merge_done(orders.merge_order(two, 0, 3, order.order), result_of(two))
    else:
        done = orders.merge_done(order, result_of(job, **wrong))
    with pytest.raises(UnexpectedMessage, match="a merge of"):
        bench.mergers.receive(A, done, 3.0)
    assert bench.mergers.of(1) != A


def test_a_merge_that_comes_out_differently_is_done_again_elsewhere(bench):
    fetch = fetch_job()
    bench.hold(fetch)
    job = merge_job(fetch)
    _, order = bench.ordered(job)
    bench.mergers.receive(A, orders.merge_done(order, result_of(job)), 3.0)
    (taking,) = bench.started(jobs.TakeMerge)
    bench.mergers.on_taken(taking, Failed("it came out differently"), 4.0)
    assert bench.merged == []
    ((merger, again),) = bench.sent(messages.FetchOrder)
    assert merger == B
    assert again.source == ONE.key
    bench.mergers.on_taken(taking, jobs.MergeTaken(), 5.0)
    assert bench.merged == [], "too late"


def test_only_who_was_asked_is_heard(bench):
    fetch = fetch_job()
    bench.mergers.fetch(fetch, 1.0)
    ((_, order),) = bench.sent(messages.FetchOrder)
    bench.mergers.receive(B, messages.PushHeld(0, 3, order.order), 2.0)
    bench.mergers.receive(B, messages.OrderFailed(0, 3, order.order, "no"), 2.0)
    assert bench.fetched == []
    assert bench.drain() == []
    bench.mergers.receive(A, messages.PushHeld(0, 3, order.order), 2.0)
    bench.mergers.receive(A, messages.PushHeld(0, 3, order.order), 2.0)
    assert len(bench.fetched) == 1


def test_a_merge_that_takes_too_long_is_passed_on_and_its_merger_rests(bench):
    fetch = fetch_job()
    bench.hold(fetch)
    bench.ordered(merge_job(fetch), now_s=2.0)
    bench.mergers.look(2.0 + leader_side.MERGE_S - 0.1)
    assert bench.sent(messages.FetchOrder) == []
    bench.mergers.look(2.0 + leader_side.MERGE_S)
    ((merger, _),) = bench.sent(messages.FetchOrder)
    assert merger == B
    assert A not in bench.mergers.candidates()
    bench.mergers.look(2.0 + leader_side.MERGE_S + leader_side.REST_S)
    assert A in bench.mergers.candidates()


@pytest.fixture
def alone():
    """A leader that has one merger beside it."""
    return LeaderBench(A)


def fail(bench, number, now_s):
    """A is given one more merge and does not answer, so the leader does it; when A had failed."""
    fetch = fetch_job(sequence=number)
    job = merge_job(fetch)
    bench.mergers.assignment.mergers[1] = A
    bench.hold(fetch, now_s=now_s)
    bench.ordered(job, now_s=now_s)
    failed_s = bench.mergers.deadline_s()
    bench.mergers.look(failed_s)
    assert bench.mergers.candidates() == [OWN]
    (again,) = bench.started(jobs.FetchPush)
    bench.mergers.on_fetched_here(again, jobs.PushFetched(), failed_s)
    bench.mergers.on_merged_here(job, result_of(job), failed_s)
    bench.drain()
    return failed_s


def rest_s(bench, failed_s):
    """How long A rests, in whole times of the shortest rest."""
    rest_s = 0.0
    while A not in bench.mergers.candidates():
        rest_s += leader_side.REST_S
        bench.mergers.look(failed_s + rest_s)
    return rest_s


def test_a_merger_that_fails_again_and_again_rests_twice_as_long_each_time(alone):
    """Or a standby whose copy of a fragment stands still would hold up a merge each minute."""
    now_s, rests = 2.0, []
    for number in range(1, 9):
        failed_s = fail(alone, number, now_s)
        rests.append(rest_s(alone, failed_s))
        now_s = failed_s + rests[-1]
    assert rests == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]


def test_a_merger_that_merged_since_rests_as_long_as_at_first(alone):
    now_s = fail(alone, 1, 2.0)
    now_s += rest_s(alone, now_s)
    fetch = fetch_job(sequence=2)
    job = merge_job(fetch)
    alone.mergers.assignment.mergers[1] = A
    alone.hold(fetch, now_s=now_s)
    _, order = alone.ordered(job, now_s=now_s)
    alone.mergers.receive(A, orders.merge_done(order, result_of(job)), now_s + 1.0)
    (taking,) = alone.started(jobs.TakeMerge)
    alone.mergers.on_taken(taking, jobs.MergeTaken(), now_s + 2.0)
    assert rest_s(alone, fail(alone, 3, now_s + 3.0)) == leader_side.REST_S


def test_a_merger_that_comes_back_over_a_new_stream_rests_as_long_as_at_first(alone):
    now_s = fail(alone, 1, 2.0)
    now_s += rest_s(alone, now_s)
    alone.mergers.on_down(A)
    assert rest_s(alone, fail(alone, 2, now_s)) == leader_side.REST_S


def test_pushes_that_are_dropped_twice_are_forgotten_once():
    bench, fetch = MergerBench(), fetch_job()
    bench.hold(fetch)
    name = messages.PushName(*fetch.push)
    (forgotten,) = bench.take(messages.DropPushes(0, 3, (name, name)))
    assert forgotten == Do(jobs.Forget((fetch.push,)))


# The merger.


class MergerBench:
    def __init__(self, held=0):
        self.effects = EffectQueue()
        self.version = held
        self.merger = Merger(self.effects, held=lambda fragment: self.version)

    def take(self, message):
        self.merger.receive(SEAT, message)
        return self.effects.drain()

    def hold(self, fetch):
        order = messages.FetchOrder(
            0, 3, fetch.header.sequence, fetch.peer, fetch.peer, fetch.header, 20.0, True
        )
        (start,) = self.take(order)
        self.merger.on_fetched(start.job, jobs.PushFetched())
        (answer,) = self.effects.drain()
        assert answer.message == messages.PushHeld(0, 3, fetch.header.sequence)


def test_a_merger_begins_once_its_fragment_stands_where_the_merge_begins():
    bench, fetch = MergerBench(held=-5), fetch_job()
    bench.hold(fetch)
    order = orders.merge_order(merge_job(fetch), 0, 3, 9)
    assert bench.take(order) == []
    bench.version = 0
    bench.merger.look()
    (start,) = bench.effects.drain()
    assert start.job == merge_job(fetch)
    bench.merger.on_merged(start.job, result_of(start.job))
    (answer,) = bench.effects.drain()
    assert (answer.peer, type(answer.message)) == (OWN, messages.MergeDone)


@pytest.mark.parametrize("version", [1, 2, -1])
def test_a_merger_whose_fragment_is_elsewhere_says_so(version):
    bench, fetch = MergerBench(), fetch_job()
    bench.hold(fetch)
    bench.version = version
    (answer,) = bench.take(orders.merge_order(merge_job(fetch), 0, 3, 9))
    assert isinstance(answer.message, messages.OrderFailed)
    assert answer.message.order == 9


def test_a_merger_does_not_merge_what_it_does_not_have():
    bench = MergerBench()
    (answer,) = bench.take(orders.merge_order(merge_job(fetch_job()), 0, 3, 9))
    assert isinstance(answer.message, messages.OrderFailed)


def test_a_push_that_is_here_already_is_not_fetched_again():
    bench, fetch = MergerBench(), fetch_job()
    bench.hold(fetch)
    order = messages.FetchOrder(0, 3, 8, fetch.peer, fetch.peer, fetch.header, 20.0, True)
    (answer,) = bench.take(order)
    assert answer == Send(OWN, messages.PushHeld(0, 3, 8))


def test_pushes_of_a_term_end_with_it():
    bench, fetch, late = MergerBench(), fetch_job(), fetch_job(TWO, sequence=2)
    bench.hold(fetch)
    (start,) = bench.take(
        messages.FetchOrder(0, 3, 8, late.peer, late.peer, late.header, 20.0, True)
    )
    bench.merger.drop()
    assert bench.effects.drain() == [Do(jobs.Forget((fetch.push,)))]
    bench.merger.on_fetched(start.job, jobs.PushFetched())
    assert bench.effects.drain() == [Do(jobs.Forget((late.push,)))], "it came after the end"


def test_an_order_of_a_new_term_ends_the_former():
    bench, fetch = MergerBench(), fetch_job()
    bench.hold(fetch)
    bench.merger.receive((A, 0, 4), messages.DropPushes(0, 4, ()))
    assert bench.effects.drain() == [Do(jobs.Forget((fetch.push,)))]


def test_a_push_is_lent_and_taken_back():
    bench, fetch = MergerBench(), fetch_job()
    bench.hold(fetch)
    name, payload = messages.PushName(*fetch.push), fetch.header.digest
    (offered,) = bench.take(messages.LendPush(0, 3, name, payload, False))
    assert offered == Do(jobs.OfferPush(fetch.push, payload))
    (back,) = bench.take(messages.LendPush(0, 3, name, payload, True))
    assert back == Do(jobs.RetractPush(payload))


# Who gets how much.


def shares_of(assignment, able, count):
    for _ in range(3):
        for fragment in range(count):
            assignment.choose(fragment, able)
    return {one: list(assignment.mergers.values()).count(one) for one in able}


def measured(load, rate, *, merging=1e9):
    """Pushes of 1000 bytes come in at this rate."""
    for at in range(WINDOW_PUSHES):
        load.begin(at * 1000 / rate)
        load.end((at + 1) * 1000 / rate, 1000)
    load.merged(1000, 1000 / merging)


def test_fragments_are_shared_evenly_while_nothing_is_measured():
    assert shares_of(Assignment((100,) * 24), (OWN, A, B), 24) == {OWN: 8, A: 8, B: 8}


@pytest.mark.parametrize("slower", [{"rate": 1e6}, {"rate": 4e6, "merging": 1e6}])
def test_fragments_are_shared_by_what_was_measured_of_line_and_processor(slower):
    assignment = Assignment((100,) * 24)
    measured(assignment.load(OWN), 4e6)
    measured(assignment.load(A), **slower)
    shares = shares_of(assignment, (OWN, A), 24)
    assert 18 <= shares[OWN] <= 21


def test_a_fragment_stays_where_it_is_while_that_costs_little():
    assignment = Assignment((100,) * 10)
    assert shares_of(assignment, (OWN, A), 10) == {OWN: 5, A: 5}
    before = dict(assignment.mergers)
    measured(assignment.load(OWN), 1e6)
    measured(assignment.load(A), 1e6 * 6 / 5 * (STAYS - 0.01))
    shares_of(assignment, (OWN, A), 10)
    assert assignment.mergers == before


def test_the_rate_is_that_of_the_busiest_times_and_fades():
    load = Load()
    measured(load, 1e6)
    assert load.bytes_per_s == pytest.approx(1e6)
    measured(load, 5e5)
    assert load.bytes_per_s == pytest.approx(0.95e6), "it had less to do, or its line got slower"
    for _ in range(40):
        measured(load, 5e5)
    assert load.bytes_per_s == pytest.approx(5e5, rel=0.02)


def test_time_without_anything_to_fetch_does_not_count():
    load = Load()
    for at in range(WINDOW_PUSHES):
        load.begin(100.0 * at)
        load.end(100.0 * at + 1.0, 50)
    load.merged(1, 1e-6)
    assert load.bytes_per_s == pytest.approx(50.0)
