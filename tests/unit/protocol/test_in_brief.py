"""Records told in brief, and the log of a learner that is told it so."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from protocol import wire
from protocol.errors import BadSignature, LimitExceeded, MalformedMessage
from protocol.log.accounts import ChosenName, Refusal
from protocol.log.records import (
    AccountsNoted,
    BlocksLeased,
    BlocksReturned,
    CharterAdopted,
    FragmentMerged,
    InviteUsed,
    Record,
    SeatTaken,
    Span,
    TokensGivenBack,
    TokensTakenBack,
    encode_record,
    in_brief,
    is_in_brief,
    open_record,
    read_record,
    record_hash,
    told_in_brief,
)
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import CertifiedRecord, Cursor
from simulator.stand_ins.tiny import charter_envelope, sim_verify
from tests.support.builders import (
    ONE,
    SYNCER,
    THREE,
    TWO,
    Log,
    certified,
    contribution,
    digest_of,
    merged,
    project,
    record,
    weights,
)

BOTH = (contribution(), contribution(learner=TWO.key, tokens=100, trust=0.5))


def begun():
    return Log(
        SeatTaken(SYNCER.key),
        CharterAdopted(charter_envelope(project())),
        weights(),
        BlocksLeased(ONE.key, 1, (Span(0, 4, 0),)),
        BlocksLeased(TWO.key, 1, (Span(4, 8, 0),)),
    )


def a_merge():
    """A merge as leaders propose it, and its encoding."""
    log = begun()
    log.add(merged(contributions=BOTH))
    return log.records[-1], log.entries[-1].record


# Bytes


def test_a_record_comes_back_whole():
    of, encoded = a_merge()
    assert read_record(encoded) == of
    assert encode_record(read_record(encoded)) == encoded
    assert not is_in_brief(encoded)


def test_in_brief_it_has_the_same_hash_and_says_everything_but_who_contributed():
    of, encoded = a_merge()
    brief = in_brief(encoded)
    assert is_in_brief(brief)
    assert in_brief(brief) == brief
    assert record_hash(brief) == record_hash(encoded)
    alone = msgspec.structs.replace(of.body, contributions=())
    assert read_record(brief, may_be_brief=True) == msgspec.structs.replace(of, body=alone)
    assert encode_record(read_record(brief, may_be_brief=True)) == brief


def test_it_stays_small_however_many_contribute():
    parts = tuple(contribution(learner=digest_of(str(at)), tensors=bytes(100)) for at in range(64))
    whole = certified(record(begun().tallied(merged(contributions=parts)))).record
    assert len(in_brief(whole)) < 450 < 15_000 < len(whole)


def test_nothing_else_is_ever_brief():
    encoded = encode_record(record())
    entry = certified(record())
    assert in_brief(encoded) is encoded
    assert told_in_brief(entry) is entry


def test_a_merge_of_before_has_its_contributions_in_it_and_is_read():
    former = record(merged(contributions=BOTH))
    encoded = encode_record(former)
    assert encoded == wire.encode(former)
    assert read_record(encoded) == former
    assert in_brief(encoded) is encoded


def test_in_brief_is_taken_only_where_that_is_said():
    _, encoded = a_merge()
    with pytest.raises(MalformedMessage, match="without its contributions"):
        read_record(in_brief(encoded))


def test_other_contributions_than_those_of_the_merge_are_refused():
    of, encoded = a_merge()
    other = msgspec.structs.replace(of.body, contributions=BOTH[:1])
    forged = encode_record(msgspec.structs.replace(of, body=other))
    assert record_hash(forged) == record_hash(encoded)
    for may_be_brief in (False, True):
        with pytest.raises(MalformedMessage, match="other contributions"):
            read_record(forged, may_be_brief=may_be_brief)


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 100])
def test_what_ends_within_the_record_is_refused(cut):
    _, encoded = a_merge()
    with pytest.raises(MalformedMessage):
        read_record(in_brief(encoded)[:cut], may_be_brief=True)


def test_a_length_beyond_the_end_is_refused_whatever_the_hash_says():
    brief = in_brief(a_merge()[1])
    longer = brief[:1] + (len(brief) - 4).to_bytes(4, "big") + brief[5:]
    assert record_hash(longer) == record_hash(brief)
    with pytest.raises(MalformedMessage):
        read_record(longer, may_be_brief=True)


@pytest.mark.parametrize(
    "body",
    [
        merged(contributions=()),
        begun().tallied(merged()),
    ],
    ids=["nothing in it", "in it, and a hash of them"],
)
def test_no_merge_keeps_its_contributions_elsewhere(body):
    with pytest.raises(MalformedMessage, match="neither in it nor behind it"):
        read_record(wire.encode(record(body)))


def test_nothing_stands_behind_a_record_that_has_no_hash_of_it():
    alone, behind = wire.encode(record()), b"\x91\x90"
    with pytest.raises(MalformedMessage, match="no hash of it"):
        read_record(b"\xc1" + len(alone).to_bytes(4, "big") + alone + behind)


def test_contributions_are_not_in_it_and_behind_it():
    of, encoded = a_merge()
    alone, behind = wire.encode(of), encoded[len(in_brief(encoded)) :]
    with pytest.raises(MalformedMessage, match="in it and behind it"):
        read_record(b"\xc1" + len(alone).to_bytes(4, "big") + alone + behind)


def test_a_record_longer_than_a_frame_is_not_proposed():
    parts = tuple(
        contribution(learner=digest_of(str(at)), tensors=bytes(1024)) for at in range(1000)
    )
    with pytest.raises(LimitExceeded, match="one frame"):
        encode_record(record(begun().tallied(merged(contributions=parts))))


def test_the_same_certificate_proves_it_whole_and_in_brief():
    log = begun()
    entry = log.add(merged(contributions=BOTH))
    tiny = project()
    for told in (entry, told_in_brief(entry)):
        opened = open_record(told, tiny.project, tiny.charter, sim_verify)
        assert opened.index == log.state.index
    other = msgspec.structs.replace(log.records[-1].body, version=7, contributions=())
    forged = encode_record(msgspec.structs.replace(log.records[-1], body=other))
    with pytest.raises(BadSignature):
        open_record(
            CertifiedRecord(forged, entry.certificate), tiny.project, tiny.charter, sim_verify
        )


# A log


def told(log, state, *indices, brief=()):
    """Apply these records of the log, some of them in brief."""
    for at in indices:
        encoded = log.entries[at - 1].record
        encoded = in_brief(encoded) if at in brief else encoded
        state.apply(read_record(encoded, may_be_brief=True), record_hash(encoded))
    return state


def in_brief_of(learner, log, *indices, brief=()):
    state = SwarmState(log.state.block_sequences, learner)
    state.follow_in_brief()
    return told(log, state, *indices, brief=brief)


def test_it_may_pass_over_records_and_says_of_the_swarm_what_a_whole_log_does():
    log = begun()
    log.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
    log.add(merged(contributions=BOTH))
    log.add(TokensTakenBack(TWO.key, 50))
    log.add(merged(version=2, round=2, global_step=2, contributions=BOTH))
    state = in_brief_of(ONE.key, log, 1, 2, 3, 4, 5, 7, 9, brief=(7,))
    whole = log.state
    assert (state.index, state.head) == (whole.index, whole.head)
    assert state.fragments == whole.fragments
    assert state.tokens_by_fragment == whole.tokens_by_fragment
    assert (state.tokens, state.tokens_merged) == (whole.tokens, whole.tokens_merged)
    assert whole.tokens < whole.tokens_merged
    assert (state.global_step, state.rounds) == (whole.global_step, whole.rounds)
    assert state.leases.learners == whole.leases.learners
    assert state.leases.next_position == whole.leases.next_position == 12


def test_its_own_account_and_text_are_those_of_a_whole_log():
    log = begun()
    log.add(BlocksLeased(TWO.key, 1, (Span(8, 12, 0),)))
    log.add(BlocksLeased(ONE.key, 1, (Span(12, 16, 0),)))
    log.add(merged(contributions=(contribution(cursor=Cursor(1, 1)), BOTH[1])))
    log.add(merged(version=2, round=2, global_step=2, contributions=BOTH[1:]))
    log.add(AccountsNoted((), ()))
    state = in_brief_of(ONE.key, log, 1, 2, 3, 4, 5, 7, 8, 9, brief=(9,))
    assert dict(state.accounts) == {ONE.key: log.state.accounts[ONE.key]}
    session = (ONE.key, 1)
    assert state.leases.held[session] == log.state.leases.held[session]
    assert state.leases.granted == {session: log.state.leases.granted[session]}
    assert state.leases.held[TWO.key, 1] == []
    assert state.leases.returned == []


def test_text_that_comes_back_to_it_needs_nobody_to_have_given_it_back():
    log = begun()
    log.add(BlocksReturned(TWO.key, 1))
    log.add(BlocksLeased(ONE.key, 1, (Span(4, 6, 0),)))
    state = in_brief_of(ONE.key, log, 1, 2, 3, 4, 7)
    assert state.leases.held[ONE.key, 1] == [Span(0, 6, 0)]
    assert log.state.leases.held[ONE.key, 1] == [Span(0, 6, 0)]


def test_who_left_is_not_here_any_more():
    log = begun()
    log.add(BlocksReturned(TWO.key, 1))
    state = in_brief_of(ONE.key, log, *range(1, 7))
    assert state.leases.learners == {ONE.key}


def test_what_is_no_progress_of_others_comes_with_merges_and_of_its_own_with_its_record():
    log = begun()
    log.add(merged(contributions=BOTH))
    log.add(TokensTakenBack(ONE.key, 256))
    state = in_brief_of(ONE.key, log, *range(1, 8))
    assert state.taken_back == {ONE.key: 256}
    assert state.taken_back_told == 0
    log.add(merged(version=2, round=2, global_step=2, contributions=BOTH))
    told(log, state, 8)
    assert state.tokens == log.state.tokens
    log.add(TokensGivenBack(ONE.key))
    log.add(merged(version=3, round=3, global_step=3, contributions=BOTH))
    told(log, state, 10, brief=(10,))
    assert state.taken_back_told == 0
    assert state.tokens == log.state.tokens


def test_a_merge_that_was_passed_over_is_missed():
    log = begun()
    log.add(merged(contributions=BOTH))
    log.add(merged(version=2, round=2, global_step=2, contributions=BOTH))
    state = in_brief_of(ONE.key, log, *range(1, 6))
    with pytest.raises(MalformedMessage, match="version 2 is not the next one"):
        told(log, state, 7)


def test_no_record_is_taken_twice_and_none_of_another_history():
    log = begun()
    log.add(merged(contributions=BOTH))
    state = in_brief_of(ONE.key, log, *range(1, 7))
    with pytest.raises(MalformedMessage, match="does not follow"):
        told(log, state, 4)
    other = record(SeatTaken(TWO.key), index=7, previous=digest_of("other"))
    with pytest.raises(MalformedMessage, match="does not follow"):
        state.apply(other, digest_of("hash"))


def test_a_log_that_is_told_whole_takes_nothing_in_brief_and_passes_over_nothing():
    log = begun()
    log.add(merged(contributions=BOTH))
    state = told(log, SwarmState(log.state.block_sequences, ONE.key), *range(1, 6))
    with pytest.raises(MalformedMessage, match="told whole"):
        told(log, state, 6, brief=(6,))
    state = told(log, SwarmState(log.state.block_sequences, ONE.key), *range(1, 5))
    with pytest.raises(MalformedMessage, match="does not follow"):
        told(log, state, 6)


def test_from_then_on_what_it_knew_of_others_is_forgotten():
    log = begun()
    log.add(merged(contributions=BOTH))
    log.add(TokensTakenBack(TWO.key, 50))
    state = told(log, SwarmState(log.state.block_sequences, ONE.key), *range(1, 8))
    progress = state.tokens
    state.follow_in_brief()
    state.follow_in_brief()
    assert set(state.accounts) == {ONE.key}
    assert state.leases.held == {(ONE.key, 1): [Span(0, 4, 0)], (TWO.key, 1): []}
    assert state.taken_back == {}
    assert state.tokens == progress == log.state.tokens


def test_what_it_hears_of_others_all_the_same_is_not_kept():
    log = begun()
    log.add(merged(contributions=BOTH))
    names = (ChosenName(ONE.key, "one"), ChosenName(TWO.key, "two"))
    log.add(AccountsNoted(names, (Refusal(ONE.key, "late", 1), Refusal(THREE.key, "late", 2))))
    log.add(TokensTakenBack(TWO.key, 50))
    log.add(InviteUsed(bytes(16), TWO.key))
    state = in_brief_of(ONE.key, log, *range(1, 10))
    assert dict(state.accounts) == {ONE.key: log.state.accounts[ONE.key]}
    assert state.accounts[ONE.key].name == "one"
    assert (state.taken_back, state.invited) == ({}, {})


def test_it_comes_back_from_a_bookmark_as_it_was():
    log = begun()
    log.add(merged(contributions=BOTH))
    state = in_brief_of(ONE.key, log, *range(1, 7), brief=(6,))
    summary = wire.decode(wire.encode(state.summary()), SwarmSummary)
    again = SwarmState.restore(summary, state.block_sequences, ONE.key)
    assert replace(again, own=b"") == replace(state, own=b"")
    log.add(BlocksLeased(THREE.key, 1, (Span(8, 12, 0),)))
    log.add(merged(version=2, round=2, global_step=2, contributions=BOTH[:1]))
    told(log, again, 8)
    assert again.tokens_by_fragment == log.state.tokens_by_fragment


def test_a_record_says_how_far_text_was_leased_when_it_was_proposed():
    log = begun()
    log.add(merged(contributions=BOTH))
    body = log.records[-1].body
    assert isinstance(body, FragmentMerged)
    assert body.tally.next_position == 8
    assert isinstance(log.records[-1], Record)
