"""The accounts of all: sums, who leads and whom to forget are those of a plain fold over them."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from protocol.log import account_book
from protocol.log.account_book import AccountBook
from protocol.log.accounts import Account, ChosenName, Refusal

KEYS = [bytes([number]) * 32 for number in range(8)]
KINDS = ["stale", "late: the round is closed", "rejected: false-claim", "rejected"]
LEADING = 3

keys = st.sampled_from(KEYS)
changes = st.one_of(
    st.tuples(st.just("merged"), keys, st.integers(0, 50), st.booleans()),
    st.tuples(st.just("refused"), keys, st.sampled_from(KINDS), st.integers(1, 3)),
    st.tuples(st.just("named"), keys, st.sampled_from(["ada", "bob"])),
    st.tuples(st.just("probed"), keys),
    st.tuples(st.just("shared")),
    st.tuples(st.just("copied")),
    st.tuples(st.just("looked")),
)


def frozen(accounts):
    """What they are now, whatever becomes of them."""
    return {k: structs.replace(one, refused=dict(one.refused)) for k, one in accounts.items()}


def change(book, what, *about):
    match what:
        case "merged":
            learner, tokens, is_clipped = about
            book.merged(learner, tokens, is_clipped=is_clipped, at_s=1.0)
        case "refused":
            book.note((), (Refusal(*about),))
        case "named":
            book.note((ChosenName(*about),), ())
        case "probed":
            book.opened(*about).probes += 1


def check(book):
    plain = dict(book.items())
    assert book.merges == sum(one.merges for one in plain.values())
    assert book.tokens == sum(one.tokens for one in plain.values())
    fates = Counter()
    for one in plain.values():
        fates.update(one.fates())
    assert book.fates() == dict(fates)
    assert len(book) == len(plain) == len(list(book))


def leads(book):
    def place(item):
        return (-item[1].tokens, -item[1].merges, item[0])

    return heapq.nsmallest(LEADING, book.items(), key=place)


@settings(max_examples=200)
@given(st.lists(changes, max_size=40))
def test_all_that_a_book_knows_follows_from_its_accounts(said):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account_book, "GUESTS_MAX", 3)
        book, given_away = AccountBook(), []
        for what, *about in said:
            change(book, what, *about)
            if what in ("shared", "copied"):
                shared = book.shared()
                given_away.append((shared, frozen(shared)))
                if what == "copied":
                    book = AccountBook(shared)
            if what == "looked":
                assert book.leading(LEADING) == leads(book)
            check(book)
            assert sum(not one.merges for one in book.values()) <= 3
        assert book.leading(LEADING) == leads(book)
        for shared, then in given_away:
            assert shared == then, "what was given away does not change"


def test_a_copy_shares_what_does_not_change():
    book = AccountBook()
    for key in KEYS:
        book.merged(key, 1, is_clipped=False, at_s=1.0)
    shared = book.shared()
    book.merged(KEYS[0], 1, is_clipped=False, at_s=2.0)
    assert book[KEYS[0]] is not shared[KEYS[0]]
    assert all(book[key] is shared[key] for key in KEYS[1:])
    again = book[KEYS[0]]
    assert book.merged(KEYS[0], 1, is_clipped=False, at_s=3.0) is again, "it is our own by now"


def test_who_is_put_in_place_of_another_counts_in_its_place():
    book = AccountBook(
        {KEYS[0]: Account(merges=2, tokens=20), KEYS[1]: Account(merges=1, tokens=5)}
    )
    assert [key for key, _ in book.leading(1)] == [KEYS[0]]
    book.put(KEYS[0], Account(merges=1, tokens=1, refused={"stale": 2}))
    assert [key for key, _ in book.leading(1)] == [KEYS[1]]
    assert (book.merges, book.tokens) == (2, 6)
    assert book.fates() == {"merged": 2, "stale": 2}
