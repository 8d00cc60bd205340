"""Token books of one fragment: they balance whatever becomes of a push, and when."""

from __future__ import annotations

from node.machine.snapshot_part import TokenAccountsState
from node.machine.token_accounts import TokenAccounts


def balance(books, tokens):
    """Tokens processed beyond those accounted for; nothing is ever negative."""
    parts = (books.merged, books.in_flight(), books.pending(tokens), books.discarded, books.lost)
    assert min(parts) >= 0, parts
    return books.dead + tokens - sum(parts)


def overwritten():
    """A push of the first 300 tokens is out, and a version overwrote everything at 400."""
    books = TokenAccounts()
    books.handed(1, 300)
    books.assigned(400)
    assert balance(books, 400) == 0
    return books


def test_a_push_that_is_merged_after_its_value_was_overwritten_counts_as_merged():
    books = overwritten()
    books.settled(1, 300, is_merged=True)
    assert (books.merged, books.discarded) == (300, 100)
    assert balance(books, 500) == 0


def test_a_new_session_gives_up_nothing_that_can_still_be_merged():
    books = overwritten()
    books.give_up()
    assert books.in_flight() == 300
    books.settled(1, 300, is_merged=True)
    assert (books.merged, books.discarded, books.lost) == (300, 100, 0)
    assert balance(books, 500) == 0


def test_what_was_overwritten_and_whose_trainer_then_died_is_lost_unless_the_log_has_it():
    books = overwritten()
    books.trainer_lost(400)
    books.give_up()
    assert (books.discarded, books.lost) == (100, 300)
    assert balance(books, 0) == 0
    books.settled(1, 300, is_merged=True)
    assert (books.merged, books.lost) == (300, 0)
    assert balance(books, 0) == 0


def test_a_part_of_a_snapshot_gives_up_what_is_overwritten_too():
    kept = TokenAccountsState.of(overwritten()).accounts()
    assert (kept.discarded, kept.in_flight()) == (400, 0)
    assert balance(kept, 400) == 0
