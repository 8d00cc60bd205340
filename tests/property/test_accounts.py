"""Accounts are a fold of the log, whatever is cut, replayed or restored on the way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits, wire
from protocol.log.accounts import KINDS_MAX, OTHER, ChosenName, Refusal
from protocol.log.batching import telling
from protocol.log.records import AccountsNoted, SeatTaken, record_hash
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import StateHeld
from tests.support.builders import FRAGMENTS, LEARNERS, SYNCER, Log, contribution, merged, weights

learners = st.sampled_from([one.key for one in LEARNERS])
parts = st.lists(
    st.tuples(learners, st.integers(0, 2**40), st.sampled_from([0.25, 1.0])), min_size=1, max_size=4
)
merges = st.tuples(st.integers(0, FRAGMENTS - 1), parts)
refusals = st.builds(Refusal, learners, st.text(min_size=1, max_size=8), st.integers(1, 1000))
names = st.builds(ChosenName, learners, st.text(min_size=1, max_size=8))
notes = st.builds(
    AccountsNoted,
    st.lists(names, max_size=3).map(tuple),
    st.lists(refusals, max_size=3).map(tuple),
)
histories = st.lists(st.one_of(merges, notes), max_size=12)


def written(history):
    """The log of this history."""
    log, sequence = Log(SeatTaken(SYNCER.key), weights()), 0
    for item in history:
        if isinstance(item, AccountsNoted):
            log.add(item)
            continue
        fragment, pushes = item
        given_parts = []
        for learner, tokens, scale in pushes:
            sequence += 1
            given_parts.append(
                contribution(learner=learner, sequence=sequence, tokens=tokens, scale=scale)
            )
        body = merged(
            fragment=fragment,
            version=log.state.fragments[fragment].version + 1,
            global_step=log.state.global_step + 1,
            contributions=tuple(given_parts),
        )
        log.add(body)
    return log


def counted(history):
    """By learner merges, tokens and clipped; refused pushes. Added up anew, not by the fold."""
    totals, refused = Counter(), Counter()
    for item in history:
        if isinstance(item, AccountsNoted):
            for one in item.refusals:
                refused[one.learner] += one.pushes
            continue
        for learner, tokens, scale in item[1]:
            totals[learner, "merges"] += 1
            totals[learner, "tokens"] += tokens
            totals[learner, "clipped"] += scale < 1.0
    return totals, refused


@given(histories)
def test_the_books_add_up(history):
    state = written(history).state
    totals, refused = counted(history)
    for key, account in state.accounts.items():
        said = tuple(totals[key, what] for what in ("merges", "tokens", "clipped"))
        assert account.counts == said
        assert account.refusals == refused[key]
        assert len(account.refused) <= KINDS_MAX + 1
        assert len(account.refused) <= KINDS_MAX or OTHER in account.refused
    assert sum(one.tokens for one in state.accounts.values()) == sum(state.tokens_by_fragment)
    assert {key for key, _ in totals} | set(refused) == state.accounts.keys()


@given(histories, st.lists(st.integers(0, 20), max_size=4))
def test_a_fold_that_is_stored_and_restored_anywhere_is_the_same(history, stops):
    log = written(history)
    state = SwarmState(log.state.block_sequences)
    for record, entry in zip(log.records, log.entries, strict=True):
        state.apply(record, record_hash(entry.record))
        if record.index in stops:
            stored = wire.encode(state.summary())
            state = SwarmState.restore(wire.decode(stored, SwarmSummary), state.block_sequences)
    assert state == log.state


@given(histories, st.integers(0, 20))
def test_what_is_cut_off_was_never_counted(history, at):
    """The log goes back to a record, as for a new epoch, and on from there otherwise."""
    log = written(history)
    kept = [record for record in log.records if record.index <= at]
    state = SwarmState(log.state.block_sequences)
    for record, entry in zip(kept, log.entries, strict=False):
        state.apply(record, record_hash(entry.record))
    merged_tokens = sum(
        part.tokens for record in kept for part in getattr(record.body, "contributions", ())
    )
    assert sum(one.tokens for one in state.accounts.values()) == merged_tokens


@given(histories, st.integers(100, 2000))
def test_accounts_sent_in_parts_are_the_same_put_together(history, bytes_max):
    together, log = {}, written(history)
    held = log.state.accounts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ENTRIES_BYTES_MAX", bytes_max)
        *parts, end = telling([], [], held, StateHeld(log.entries[-1], b"")).take(999)
        for part in parts:
            sent = wire.decode_message(wire.encode(part))
            assert len(part.accounts) == 1 or len(wire.encode(sent)) <= bytes_max + 50
            together |= sent.accounts
    assert together == held
    assert isinstance(end, StateHeld)
