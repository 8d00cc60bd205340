"""A learner's summary when no syncer is left: proven, bounded, compared, or called its word."""

from __future__ import annotations

import asyncio
import math

import msgspec
import pytest

from host.files.signed_project import OpenedProject
from protocol import limits, wire
from protocol.errors import UnexpectedMessage, UserError
from protocol.log.accounts import Account
from protocol.log.heldout import CurvePoint
from protocol.log.leases import UNKNOWN
from protocol.log.records import (
    BlocksLeased,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    FragmentMerged,
    RunEnding,
    SeatTaken,
    Span,
    WeightsRestored,
)
from protocol.log.state import SwarmState
from protocol.machine import PeerUp
from protocol.messages import AccountsPart, AskState
from protocol.novelty import UNHEARD, Novelty
from protocol.project import encode
from protocol.standing import NOBODY, Standing
from shoal.project import recover_from_learners
from shoal.project.recover_from_learners import Rescued, are_two_histories, choose
from shoal.project.summary_checks import check_bounds, on_its_word, without_influence
from simulator.stand_ins.tiny import charter_envelope, sim_verify
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    TWO,
    LearnerBench,
    Log,
    contribution,
    merged,
    project,
    sealed_charter,
    state_digests,
    weights,
)

BUDGET = 10_000
CROWD = 6000
ADA, BOB, EVE = (bytes([digit]) * 32 for digit in (0xAA, 0xBB, 0xCC))


def grown(merges=4, *, mark_after=2, flavour=""):
    log = Log(SeatTaken(SYNCER.key), weights(), BlocksLeased(ONE.key, 1, (Span(0, 8, 0),)))
    for step in range(1, merges + 1):
        parts = (contribution(cosine=0.5), contribution(learner=TWO.key, cosine=0.5))
        digests = state_digests(flavour, step)
        log.add(
            merged(version=step, global_step=step, round=step, state=digests, contributions=parts)
        )
        if step == mark_after:
            log.add(CheckpointMarked(step, ONE.key, TWO.key))
            index = log.state.index
            for who in (ONE, TWO):
                log.add(CheckpointEvaluated(index, step, log.state.tokens, who.key, 2.0))
    return log


def bodies(log):
    newest = {(0, log.state.fragments[0].version)}
    found = (one.body for one in log.records if isinstance(one.body, FragmentMerged))
    return [one for one in found if (one.fragment, one.version) in newest]


def checked(log, **changes):
    summary = msgspec.structs.replace(log.state.summary(), **changes)
    check_bounds(summary, log.records[-1], bodies(log), BUDGET)
    return summary


def rescued(log, donor=ADA, **changes):
    summary = msgspec.structs.replace(log.state.summary(), **changes)
    return Rescued(donor, log.entries[-1], log.records[-1], summary, ())


class Answering:
    """A transport with one learner, which answers as its machine does; first it says these."""

    def __init__(self, bench, *frames):
        self.bench, self.frames = bench, list(frames)
        self.waiting_max = 0

    async def open_control(self, key):
        return self

    def send(self, frame):
        question = wire.decode_message(frame)
        assert isinstance(question, AskState)
        before = len(self.bench.sent.get(STRANGER.key, ()))
        self.bench.say(STRANGER.key, question)
        self.frames += map(wire.encode, self.bench.sent.get(STRANGER.key, [])[before:])
        self.waiting_max = max(self.waiting_max, len(self.frames))

    async def recv(self):
        return self.frames.pop(0)

    def close(self):
        pass


def test_accounts_of_more_contributors_than_may_wait_for_a_peer_are_recovered(monkeypatch):
    monkeypatch.setattr(recover_from_learners, "verify_ed25519", sim_verify)
    monkeypatch.setattr(limits, "ENTRIES_BYTES_MAX", 20_000)
    tiny = project()
    envelope = charter_envelope(tiny, tiny.charter)
    opened = OpenedProject(tiny.genesis, encode(tiny.genesis), tiny.charter, envelope)
    bench, log = LearnerBench(ONE), Log(SeatTaken(SYNCER.key), weights())
    log.add(CharterAdopted(envelope))
    bench.follow(log)
    bench.feed(PeerUp(STRANGER.key))
    parts = [
        contribution(learner=number.to_bytes(32, "big"), sequence=1) for number in range(CROWD)
    ]
    for at in range(0, CROWD, 300):
        step = 1 + at // 300
        some = tuple(parts[at : at + 300])
        digests = state_digests("crowd", step)
        body = merged(version=step, global_step=step, round=step, state=digests, contributions=some)
        bench.commit(log.add(body))
    bench.now_s += 10.0
    learner = Answering(bench)
    found = asyncio.run(recover_from_learners.ask(learner, opened, ADA))
    assert len(bench.all(STRANGER.key, AccountsPart)) > 3 * limits.PIECES_AHEAD_MAX
    assert learner.waiting_max <= limits.PIECES_AHEAD_MAX
    assert found is not None
    assert found.summary.accounts == dict(log.state.accounts)
    assert len(found.summary.accounts) == CROWD
    bench.now_s += 100.0
    senseless = Answering(bench, wire.encode(AskState(tiny.project)))
    assert asyncio.run(recover_from_learners.ask(senseless, opened, ADA)) is None


def test_what_an_honest_learner_says_is_within_bounds():
    for merges in (0, 1, 4, 9):
        checked(grown(merges))
    ended = grown()
    ended.add(RunEnding("token-budget"))
    assert any("budget is reached" in line for line in on_its_word(checked(ended)))


def test_a_run_whose_guard_went_back_is_within_bounds_and_begins_without_that():
    log = grown()
    changed = msgspec.structs.replace(project().charter, revision=2, guard="restore")
    log.add(CharterAdopted(sealed_charter(changed)))
    for loss in (2.0, 9.7):
        log.add(CheckpointMarked(4, ONE.key, TWO.key))
        index = log.state.index
        for who in (ONE, TWO):
            log.add(CheckpointEvaluated(index, 4, 0, who.key, loss))
    state = log.state
    checkpoint, states = state.restoring
    versions = tuple(one.version + 1 for one in state.fragments)
    body = WeightsRestored(state.pause.record, checkpoint, 4, state.rounds, versions, states)
    log.add(body)
    summary = log.state.summary()
    check_bounds(summary, log.records[-1], [body], BUDGET)
    with pytest.raises(UnexpectedMessage, match="global step"):
        check_bounds(
            msgspec.structs.replace(summary, global_step=5), log.records[-1], [body], BUDGET
        )
    begun = without_influence(summary, ADA)
    assert (begun.restored, begun.candidates, begun.fragments) == (None, {}, summary.fragments)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("epoch", {"epoch": 3}),
        ("epoch", {"term": 9}),
        ("global step", {"global_step": 10**9}),
        ("rounds", {"rounds": 2**62}),
        ("rounds", {"rounds": 0}),
        ("tokens", {"tokens_by_fragment": (2**60, 0, 0, 0)}),
        ("tokens", {"tokens_by_fragment": (0, 0, 0, 0)}),
        ("tokens", {"tokens_by_fragment": (1,)}),
        ("curve", {"curve": (CurvePoint(1, 1, 1, math.nan),)}),
        ("curve", {"curve": (CurvePoint(1, 1, 1, -1.0),)}),
        ("curve", {"curve": (CurvePoint(10**6, 1, 1, 1.0),)}),
        ("curve", {"curve": (CurvePoint(1, 10**6, 1, 1.0),)}),
        ("checkpoints", {"checkpoint": 10**6}),
        ("leases", {"next_position": 2**60}),
        ("leases", {"returned": (Span(0, 2**40, 0),)}),
        ("accounts", {"accounts": {EVE: Account(merges=5, tokens=1)}}),
        ("accounts", {"accounts": {EVE: Account(merges=1, tokens=2**60)}}),
        ("accounts", {"accounts": {EVE: Account(merges=1, tokens=1, name="\x1b[2J")}}),
    ],
)
def test_what_cannot_be_is_refused(words, changes):
    with pytest.raises(UnexpectedMessage, match=words):
        checked(grown(), **changes)


def test_one_learners_word_decides_nothing_that_others_can_check_later():
    log = grown()
    copier = Novelty(echoes=3)
    liked = {
        EVE: Account(merges=1, tokens=1, standing=Standing(1.0, 50)),
        BOB: Account(merges=1, tokens=1, novelty=copier, in_row=-9),
    }
    lied = (CurvePoint(4, 2, 1, 0.0, EVE, ONE.key, (0.0, 0.0)),)
    said = without_influence(checked(log, accounts=liked, curve=lied), ADA)
    assert said.accounts[EVE].standing == NOBODY
    assert (said.accounts[BOB].novelty, said.accounts[BOB].in_row) == (UNHEARD, 0)
    assert said.norms == ()
    assert said.held
    assert all((one.granted, one.handed_in) == (UNKNOWN, ()) for one in said.held)
    state = SwarmState.restore(said, log.state.block_sequences)
    assert state.best.is_alone
    assert state.best.evaluator == ADA
    log.state = state
    log.add(CheckpointMarked(4, ONE.key, TWO.key))
    index = state.index
    for who in (ONE, TWO):
        log.add(CheckpointEvaluated(index, 4, 1, who.key, 3.0))
    assert state.best.checkpoint == index, "two that agree end it"


def test_the_newest_that_is_proven_is_taken_and_the_rest_is_its_word():
    found = choose([rescued(grown(3)), rescued(grown(5), BOB), rescued(grown(4), EVE)], None)
    assert found.newest.donor == BOB
    said = "\n".join(found.lines)
    assert "3 learners proved a state" in said
    assert "global step 5" in said
    assert "certified: that record" in said
    assert "on the word of learner bbbbbbbb" in said
    assert "differs" not in said


def test_of_several_at_the_same_record_that_on_which_most_agree_is_taken():
    log = grown()
    liar = rescued(log, EVE, curve=(CurvePoint(4, 2, 1, 0.0),))
    found = choose([liar, rescued(log), rescued(log, BOB)], None)
    assert found.newest.donor != EVE
    assert "learner cccccccc differs in held-out losses" in "\n".join(found.lines)


def test_who_joined_late_counts_less_and_contradicts_nobody():
    log = grown()
    late = {ONE.key: Account(merges=1, tokens=1)}
    found = choose([rescued(log), rescued(log, EVE, accounts=late)], None)
    assert found.newest.donor == ADA, "its ledger is whole"
    assert "differs" not in "\n".join(found.lines)


def test_what_each_counts_of_its_own_alone_is_no_difference():
    log = grown()
    known = log.state.summary().held
    assert known
    assert known[0].granted != UNKNOWN
    other = tuple(msgspec.structs.replace(one, granted=UNKNOWN, handed_in=()) for one in known)
    found = choose([rescued(log), rescued(log, EVE, held=other)], None)
    assert "differs" not in "\n".join(found.lines)
    moved = tuple(msgspec.structs.replace(one, spans=()) for one in known)
    found = choose([rescued(log), rescued(log, EVE, held=moved)], None)
    assert "differs in leases" in "\n".join(found.lines)


def test_two_histories_are_not_chosen_between_in_silence():
    one, prefix = rescued(grown(5)), rescued(grown(3), BOB)
    other = rescued(grown(5, flavour="other"), EVE)
    assert not are_two_histories(one, prefix)
    assert are_two_histories(one, other)
    with pytest.raises(UserError, match=r"two histories.*--learner"):
        choose([one, prefix, other], None)
    found = choose([one, prefix, other], "aaaaaaaa")
    assert found.newest.donor == ADA
    assert "two histories" in "\n".join(found.lines)
    with pytest.raises(UserError, match="No learner 12"):
        choose([one, prefix, other], "12")


def test_a_longer_log_with_an_older_fragment_is_another_history():
    longer = grown(2)
    for step in range(9):
        longer.add(CheckpointMarked(step, None))
    assert are_two_histories(rescued(grown(3)), rescued(longer, BOB))


def briefly(log, donor, **changes):
    """As a learner proves that was told in brief: of others it knows nothing."""
    state = SwarmState.restore(log.state.summary(), log.state.block_sequences, ONE.key)
    state.follow_in_brief()
    summary = msgspec.structs.replace(state.summary(), **changes)
    return Rescued(donor, log.entries[-1], log.records[-1], summary, ())


def test_at_the_same_record_who_was_told_of_everybody_is_taken():
    log = grown()
    found = choose([briefly(log, EVE), rescued(log, ADA), briefly(log, BOB)], None)
    assert found.newest.donor == ADA
    assert set(found.newest.summary.accounts) == {ONE.key, TWO.key}
    assert "differs" not in "\n".join(found.lines)


def test_what_a_newer_one_in_brief_does_not_know_another_one_says_as_of_its_record():
    found = choose([briefly(grown(5), EVE), rescued(grown(3), ADA)], None)
    assert found.newest.donor == EVE
    said = "\n".join(found.lines)
    assert "on the word of learner aaaaaaaa, up to record" in said
    summary, older = found.newest.summary, grown(3).state
    assert summary.global_step == 5
    assert {key: one.merges for key, one in summary.accounts.items()} == {ONE.key: 3, TWO.key: 3}
    assert [one.spans for one in summary.held] == [one.spans for one in older.summary().held]
    assert not summary.is_brief
    SwarmState.restore(summary, 4).leases.pick(4)


def test_where_nobody_was_told_of_everybody_accounts_begin_anew():
    found = choose([briefly(grown(5), EVE), briefly(grown(4), BOB)], None)
    said = "\n".join(found.lines)
    assert "counted anew" in said
    assert "their own receipts say it" in said
    assert "contributors with" not in said
    assert found.newest.summary.accounts == {}
    state = SwarmState.restore(found.newest.summary, 4)
    assert state.tokens == grown(5).state.tokens
    assert state.leases.next_position == 8


def test_nothing_is_taken_of_another_history():
    other = rescued(grown(5, flavour="other"), ADA)
    found = choose([briefly(grown(5), EVE), other], "cccccccc")
    assert "counted anew" in "\n".join(found.lines)
