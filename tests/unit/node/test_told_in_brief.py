"""A learner that is told the log in brief: gaps, merges without contributors, receipts, proofs."""

from __future__ import annotations

import asyncio

import pytest

from host.files.signed_project import OpenedProject
from node.machine.jobs import KeepReceipt
from node.machine.syncer_link import Link
from protocol import wire
from protocol.log.receipts import Credit, sign_credit
from protocol.log.records import (
    BlocksLeased,
    CharterAdopted,
    SeatTaken,
    Span,
    is_in_brief,
    told_in_brief,
)
from protocol.log.state import SwarmSummary
from protocol.machine import PeerDown, PeerUp
from protocol.messages import Hello, IndexPart, Receipt, StateHeld, Welcome
from protocol.project import encode
from shoal.project import recover_from_learners
from simulator.stand_ins.tiny import charter_envelope, sim_verify
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    TWO,
    LearnerBench,
    Log,
    actions,
    contribution,
    disconnected,
    merged,
    project,
    weights,
)

OTHERS = (contribution(learner=TWO.key),)


class Brief(LearnerBench):
    """Admitted at the head of this log, and told in brief from there."""

    def __init__(self, log, *, is_brief=True):
        super().__init__(ONE)
        self.log = log
        self.greet()
        self.say(SYNCER.key, IndexPart(log.origins(), charters=tuple(log.state.charters)))
        self.say(SYNCER.key, Welcome(self.charter, 0, 1, log.index(), is_brief))

    @property
    def state(self):
        return self.machine.context.state

    def add(self, body):
        """The next record of the log, as it is told in brief."""
        return told_in_brief(self.log.add(body))

    def merge(self, number, contributions=OTHERS):
        return self.add(
            merged(version=number, round=number, global_step=number, contributions=contributions)
        )


@pytest.fixture
def log():
    return Log(
        SeatTaken(SYNCER.key),
        CharterAdopted(charter_envelope(project())),
        weights(),
        BlocksLeased(ONE.key, 1, (Span(0, 4, 0),)),
        BlocksLeased(TWO.key, 1, (Span(4, 8, 0),)),
    )


def test_merges_count_without_what_is_passed_over_and_without_who_contributed(log):
    bench = Brief(log)
    bench.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
    bench.commit(bench.merge(1))
    bench.add(BlocksLeased(TWO.key, 1, (Span(12, 16, 0),)))
    bench.commit(bench.merge(2))
    assert bench.machine.link is Link.FOLLOWING
    assert bench.state.fragments == log.state.fragments
    assert bench.state.tokens == log.state.tokens > 0
    assert (bench.state.index, bench.state.head) == (log.state.index, log.state.head)


@pytest.mark.parametrize("missing", ["a record", "the contributions"])
def test_a_syncer_that_promised_the_whole_log_must_tell_it(log, missing):
    bench = Brief(log, is_brief=False)
    if missing == "a record":
        bench.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
        effects = bench.commit(log.add(merged(contributions=OTHERS)))
    else:
        effects = bench.commit(bench.merge(1))
    assert disconnected(effects) == [SYNCER.key]
    assert bench.machine.context.tally.faults == {"malformed": 1}


def test_it_says_how_it_was_told_when_it_comes_back(log):
    bench = Brief(log)
    assert bench.last(SYNCER.key, Hello).follows == "whole"
    bench.commit(bench.merge(1))
    bench.feed(PeerDown(SYNCER.key, "lost"))
    bench.wait(30.0)
    bench.feed(PeerUp(SYNCER.key))
    hello = bench.last(SYNCER.key, Hello)
    assert (hello.follows, hello.head_index) == ("brief", log.state.index)


def receipt(log):
    account = log.state.accounts[ONE.key]
    credit = Credit(
        project=log.tiny.project,
        epoch=0,
        term=1,
        index=log.state.index,
        head=log.state.head,
        revision=log.tiny.charter.revision,
        learner=ONE.key,
        name="somebody",
        merges=account.merges,
        tokens=account.tokens,
        clipped=account.clipped,
        at_s=1.7e9,
    )
    return Receipt(sign_credit(credit, SYNCER))


def test_a_receipt_waits_for_its_record_also_beyond_the_next(log):
    bench = Brief(log)
    first = log.add(merged(contributions=(contribution(),)))
    bench.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
    last = log.add(BlocksLeased(TWO.key, 1, (Span(12, 16, 0),)))
    assert not actions(bench.say(SYNCER.key, receipt(log)), KeepReceipt)
    assert not actions(bench.commit(first), KeepReceipt)
    assert len(actions(bench.commit(last), KeepReceipt)) == 1
    assert bench.machine.context.tally.faults == {}


def test_a_receipt_for_a_record_that_is_never_told_is_false(log):
    bench = Brief(log)
    bench.commit(log.add(merged(contributions=(contribution(),))))
    bench.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
    bench.say(SYNCER.key, receipt(log))
    effects = bench.commit(bench.merge(2))
    assert not actions(effects, KeepReceipt)
    assert bench.machine.context.tally.faults == {"false-receipt": 1}


class Asking:
    """A stream to a learner, which answers as its machine does."""

    def __init__(self, bench):
        self.bench, self.frames = bench, []

    async def open_control(self, key):
        return self

    def send(self, frame):
        before = len(self.bench.sent.get(STRANGER.key, ()))
        self.bench.say(STRANGER.key, wire.decode_message(frame))
        self.frames += map(wire.encode, self.bench.sent.get(STRANGER.key, [])[before:])

    async def recv(self):
        return self.frames.pop(0)

    def close(self):
        pass


def proven_by(bench):
    """What an owner without a syncer's disk gets from this learner; None for nothing."""
    tiny = project()
    envelope = charter_envelope(tiny, tiny.charter)
    opened = OpenedProject(tiny.genesis, encode(tiny.genesis), tiny.charter, envelope)
    return asyncio.run(recover_from_learners.ask(Asking(bench), opened, ONE.key))


@pytest.fixture
def with_cheap_signatures(monkeypatch):
    monkeypatch.setattr(recover_from_learners, "verify_ed25519", sim_verify)


@pytest.mark.usefixtures("with_cheap_signatures")
@pytest.mark.parametrize("is_behind", [False, True], ids=["at the head", "a payload is missing"])
def test_an_owner_can_go_on_from_its_weights(log, is_behind):
    bench = Brief(log)
    bench.feed(PeerUp(STRANGER.key))
    bench.commit(bench.merge(1))
    bench.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
    bench.commit(bench.merge(2))
    if is_behind:
        for local in bench.machine.fragment_sync.local_fragments:
            local.held = 0
        bench.commit(bench.merge(3))
    bench.now_s += 10.0
    found = proven_by(bench)
    assert found is not None
    assert found.summary.is_brief
    assert found.summary.tokens_by_fragment[0] == (3 if is_behind else 2) * 256
    assert is_in_brief(found.entry.record)
    assert set(found.summary.accounts) <= {ONE.key}


@pytest.mark.usefixtures("with_cheap_signatures")
def test_a_summary_that_says_other_tokens_than_the_newest_merge_is_refused(log):
    bench = Brief(log)
    bench.feed(PeerUp(STRANGER.key))
    bench.commit(bench.merge(1))
    bench.now_s += 10.0
    bench.state.tokens_by_fragment[0] += 1
    assert proven_by(bench) is None
    held = bench.last(STRANGER.key, StateHeld)
    assert wire.decode(held.summary, SwarmSummary).tokens_by_fragment[0] == 257
