"""Pushes claim no more than the text that is leased to their session covers."""

from __future__ import annotations

import pytest

from protocol.log.leases import LeaseBook, TextShape
from protocol.log.records import BlocksReturned
from protocol.machine import PeerDown
from protocol.messages import Cursor, LeaseRequest, Pull, Settled
from simulator.stand_ins.tiny import tiny_project
from syncer_node.machine.trust.coverage import Coverage
from syncer_node.raft.jobs import Append
from tests.support.builders import ONE, SYNCER, TWO, SyncerBench, project, push_header, rounds

SESSION = (ONE.key, 1)
SOLO = project(rounds(quorum=1))


def leased(blocks):
    book = LeaseBook()
    book.lease(SESSION, book.pick(blocks), 0.0, 4)
    return book


def coverage(step_tokens=32):
    return Coverage(TextShape(16, 4), step_tokens, step_tokens)


@pytest.mark.parametrize(
    ("steps", "tokens", "is_covered"),
    [(8, 256, True), (8, 1, True), (9, 1, False), (1, 256, True), (1, 257, False)],
)
def test_steps_and_tokens_are_both_covered(steps, tokens, is_covered):
    header = push_header(steps=steps, tokens=tokens, cursor=Cursor(4, 0))
    assert (not coverage().objection(header, SESSION, leased(4))) == is_covered


def test_an_objection_says_what_was_claimed_and_what_was_covered():
    header = push_header(steps=9, tokens=288, cursor=Cursor(4, 0))
    words = coverage().objection(header, SESSION, leased(4))
    assert words == (
        "9 steps and 288 tokens are 18 sequences of text, and 16 that were leased to it were not "
        "counted before"
    )


def test_steps_begun_under_a_charter_with_smaller_steps_still_count():
    one = coverage()
    one.adopt(64, 64)
    header = push_header(steps=8, tokens=256, cursor=Cursor(4, 0))
    assert not one.objection(header, SESSION, leased(4))
    one.adopt(128, 128)
    assert not one.objection(header, SESSION, leased(4))


@pytest.mark.parametrize(
    ("tokens", "outcome"), [(256, ""), (257, "false-claim: 257 tokens in 4 steps")]
)
def test_a_learner_reads_more_in_a_step_than_the_fewest_and_no_more_than_the_most(tokens, outcome):
    tiny = tiny_project(SYNCER.key, rounds=rounds(quorum=1), batch_sequences_max=4)
    bench = SyncerBench(tiny).start(ONE)
    pulls = bench.train(ONE)
    cursor = bench.read(SESSION, pulls[ONE.key].fragment, 16)
    bench.push(ONE, pulls[ONE.key], steps=4, tokens=tokens, cursor=cursor, local_step=100)
    assert bench.machine.state.global_step == (0 if outcome else 1)
    settled = bench.last(ONE.key, Settled)
    assert (settled.reason if settled else "") == outcome


def test_a_claim_beyond_the_text_is_refused_in_words_and_the_next_counts():
    bench = SyncerBench(SOLO).start(ONE)
    pulls = bench.train(ONE)
    bench.push(ONE, pulls[ONE.key], steps=8, cursor=Cursor(3, 3), local_step=100)
    settled = bench.last(ONE.key, Settled)
    assert settled.outcome == "rejected"
    assert settled.reason.startswith("false-claim: 8 steps and 256 tokens are 16 sequences of text")
    assert bench.machine.state.global_step == 0


def test_the_same_text_counts_once_for_each_fragment():
    bench = SyncerBench(SOLO).start(ONE)
    pulls = bench.train(ONE)
    bench.push(ONE, pulls[ONE.key], cursor=Cursor(4, 0))
    assert bench.machine.state.fragments[0].version == 1
    leases, shape = bench.machine.state.leases, TextShape(16, 4)
    assert leases.covered(SESSION, 0, Cursor(4, 0), shape) == 0
    assert leases.covered(SESSION, 1, Cursor(4, 0), shape) == 16


def test_nobody_gets_other_text_while_a_push_of_the_former_has_no_fate():
    bench = SyncerBench(project(rounds(quorum=2, patience_s=500.0))).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.push(ONE, pulls[ONE.key])
    assert bench.seat.rounds.in_hand(SESSION)
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.seat.leasing.propose(BlocksReturned(*SESSION))
    bench.wait(0.1)
    assert SESSION not in bench.machine.state.leases.since_s
    bench.join(ONE)
    bench.say(ONE.key, LeaseRequest(8))
    bench.wait(2.0)
    assert SESSION not in bench.machine.state.leases.since_s
    bench.push(TWO, pulls[TWO.key])
    bench.wait(2.0)
    assert SESSION in bench.machine.state.leases.since_s
    assert bench.machine.state.leases.handed_in.get(SESSION, {}) == {}


def test_nothing_counts_that_was_read_in_text_that_is_on_its_way_back():
    bench = SyncerBench(SOLO).start(ONE)
    pulls = bench.train(ONE)
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.hold = {Append}
    bench.wait(SOLO.charter.limits.lease_s + 1.0)
    assert bench.jobs(Append)
    assert SESSION in bench.machine.state.leases.since_s  # The record is not stored yet.
    bench.join(ONE)
    asked = len(bench.all(ONE.key, Pull))
    bench.say(ONE.key, LeaseRequest(8))
    bench.beat(ONE, local_step=40)
    bench.wait(2.0)
    assert len(bench.all(ONE.key, Pull)) == asked
    bench.push(ONE, pulls[ONE.key], cursor=Cursor(4, 0))
    assert bench.last(ONE.key, Settled).outcome == "late"
    bench.hold = set()
    while bench.jobs(Append):
        bench.store()
    bench.wait(2.0)
    leases = bench.machine.state.leases
    assert SESSION in leases.since_s
    assert leases.handed_in.get(SESSION, {}) == {}
    bench.beat(ONE, local_step=60)
    assert len(bench.all(ONE.key, Pull)) > asked
