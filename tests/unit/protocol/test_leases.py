from __future__ import annotations

import pytest

from protocol.errors import MalformedMessage
from protocol.log.leases import LeaseBook, TextShape
from protocol.log.records import Span
from protocol.messages import Cursor
from tests.support.builders import ONE, TWO

BLOCK, AT_S = 4, 1.7e9
A, B = (ONE.key, 1), (TWO.key, 1)


def granted(book, session, blocks):
    spans = book.pick(blocks)
    book.lease(session, spans, AT_S, BLOCK)
    return spans


def read_to(book, session, position, sequence):
    book.advance(session, Cursor(position, sequence), BLOCK)
    return book.held[session]


@pytest.fixture
def book():
    return LeaseBook()


def test_a_new_book_leases_from_the_start_without_gaps(book):
    assert granted(book, A, 3) == (Span(0, 3, 0),)
    assert granted(book, B, 2) == (Span(3, 5, 0),)
    assert book.next_position == 5


def test_picking_changes_nothing(book):
    assert book.pick(3) == book.pick(3) == (Span(0, 3, 0),)
    assert (book.next_position, book.held) == (0, {})


def test_adjacent_leases_of_one_session_are_one_span(book):
    granted(book, A, 3)
    granted(book, A, 2)
    assert book.held[A] == [Span(0, 5, 0)]


def test_leases_with_another_session_between_stay_apart(book):
    granted(book, A, 3)
    granted(book, B, 1)
    granted(book, A, 2)
    assert book.held[A] == [Span(0, 3, 0), Span(4, 6, 0)]
    assert book.unread(A) == 5


def test_who_is_here_is_who_was_leased_text_and_did_not_leave(book):
    assert book.learners == frozenset()
    granted(book, A, 1)
    assert book.learners == {A[0]}
    granted(book, B, 1)
    again = (A[0], 2)
    granted(book, again, 1)
    assert book.learners == {A[0], B[0]}
    book.give_back(A)
    assert book.learners == {A[0], B[0]}
    book.give_back(B)
    assert book.learners == {A[0]}
    book.give_back(again)
    assert book.learners == frozenset()


def test_reading_moves_the_start_and_keeps_what_is_left_of_a_block(book):
    granted(book, A, 3)
    assert read_to(book, A, 1, 2) == [Span(1, 3, 2)]
    assert book.unread(A) == 2


def test_a_cursor_at_the_end_of_a_block_is_the_start_of_the_next(book):
    granted(book, A, 3)
    assert read_to(book, A, 0, BLOCK) == [Span(1, 3, 0)]


@pytest.mark.parametrize("cursor", [(3, 0), (2, BLOCK)])
def test_reading_to_the_end_leaves_nothing(book, cursor):
    granted(book, A, 3)
    assert read_to(book, A, *cursor) == []


def test_a_cursor_in_a_later_span_finishes_those_before(book):
    granted(book, A, 2)
    granted(book, B, 1)
    granted(book, A, 3)
    assert read_to(book, A, 4, 1) == [Span(4, 6, 1)]


def test_a_cursor_never_moves_back(book):
    granted(book, A, 3)
    read_to(book, A, 1, 2)
    assert read_to(book, A, 1, 1) == [Span(1, 3, 2)]
    assert read_to(book, A, 0, 3) == [Span(1, 3, 2)]


@pytest.mark.parametrize("cursor", [(3, 1), (4, 0), (10**9, 0), (2, BLOCK + 10**9)])
def test_a_cursor_outside_the_spans_finishes_nothing_of_others(book, cursor):
    granted(book, A, 3)
    granted(book, B, 3)
    book.advance(A, Cursor(*cursor), BLOCK)
    assert book.held[B] == [Span(3, 6, 0)]


@pytest.mark.parametrize("cursor", [(3, 1), (4, 0), (10**9, 0)])
def test_a_cursor_outside_its_own_spans_changes_nothing(book, cursor):
    granted(book, A, 3)
    assert read_to(book, A, *cursor) == [Span(0, 3, 0)]


def test_a_session_without_a_lease_cannot_finish_anything(book):
    granted(book, A, 3)
    book.advance(B, Cursor(1, 0), BLOCK)
    assert (book.held[A], B in book.held) == ([Span(0, 3, 0)], False)


def test_what_a_lost_session_did_not_read_is_leased_first_and_keeps_its_place(book):
    granted(book, A, 3)
    read_to(book, A, 1, 2)
    book.give_back(A)
    assert book.returned == [Span(1, 3, 2)]
    assert granted(book, B, 3) == (Span(1, 3, 2), Span(3, 4, 0))
    assert book.held[B] == [Span(1, 4, 2)]
    assert (book.returned, A in book.held) == ([], False)


def test_part_of_a_given_back_span_leaves_the_rest_unread(book):
    granted(book, A, 5)
    read_to(book, A, 1, 2)
    book.give_back(A)
    assert granted(book, B, 2) == (Span(1, 3, 2),)
    assert book.returned == [Span(3, 5, 0)]


def test_a_partly_read_block_is_not_merged_into_the_span_before_it(book):
    granted(book, A, 1)
    granted(book, B, 2)
    read_to(book, B, 1, 3)
    book.give_back(B)
    granted(book, A, 2)
    assert book.held[A] == [Span(0, 1, 0), Span(1, 3, 3)]


def test_given_back_spans_are_leased_oldest_positions_first(book):
    granted(book, A, 2)
    granted(book, B, 2)
    book.give_back(B)
    book.give_back(A)
    assert granted(book, B, 3) == (Span(0, 2, 0), Span(2, 3, 0))


def test_giving_back_twice_returns_once(book):
    granted(book, A, 2)
    book.give_back(A)
    book.give_back(A)
    assert book.returned == [Span(0, 2, 0)]


def test_a_session_keeps_the_time_of_its_first_lease_until_it_ends(book):
    book.lease(A, book.pick(1), 5.0, BLOCK)
    book.lease(A, book.pick(1), 9.0, BLOCK)
    assert book.since_s == {A: 5.0}
    book.give_back(A)
    assert book.since_s == {}


def test_entries_are_in_key_order_and_complete(book):
    granted(book, A, 1)
    granted(book, B, 1)
    entries = book.entries()
    assert [(e.learner, e.incarnation) for e in entries] == sorted([A, B])
    assert {(e.learner, e.incarnation): list(e.spans) for e in entries} == book.held


@pytest.mark.parametrize("span", [Span(1, 2, 0), Span(0, 1, 0), Span(2, 4, 0)])
def test_positions_that_are_neither_new_nor_given_back_cannot_be_leased(book, span):
    granted(book, A, 3)
    with pytest.raises(MalformedMessage):
        book.lease(B, (span,), AT_S, BLOCK)


def test_positions_that_are_passed_over_are_leased_later_and_once(book):
    granted(book, A, 3)
    book.lease(B, (Span(8, 10, 0),), AT_S, BLOCK)
    assert (book.next_position, book.returned) == (10, [Span(3, 8, 0)])
    book.lease(A, (Span(5, 6, 0),), AT_S, BLOCK)
    assert book.returned == [Span(3, 5, 0), Span(6, 8, 0)]
    with pytest.raises(MalformedMessage):
        book.lease(B, (Span(5, 6, 0),), AT_S, BLOCK)
    assert book.pick(5) == (Span(3, 5, 0), Span(6, 8, 0), Span(10, 11, 0))
    assert book.unread(A) == 4


# What text covers

SHAPE = TextShape(sequence_tokens=16, block_sequences=BLOCK)


def covered(book, session, position, sequence, fragment=0):
    return book.covered(session, fragment, Cursor(position, sequence), SHAPE)


def hand_in(book, session, position, sequence, tokens=0, fragment=0):
    book.hand_in(session, fragment, Cursor(position, sequence), tokens, BLOCK)


def test_a_push_can_claim_what_was_read_since_the_last_one_of_its_fragment(book):
    granted(book, A, 3)
    assert covered(book, A, 1, 2) == 6
    hand_in(book, A, 1, 2)
    assert covered(book, A, 1, 2) == 0
    assert covered(book, A, 2, BLOCK) == 6
    assert covered(book, A, 2, BLOCK, fragment=1) == 12


def test_a_line_goes_on_in_the_order_of_its_leases(book):
    granted(book, A, 3)
    book.give_back(A)
    granted(book, B, 1)
    granted(book, A, 2)
    book.give_back(B)
    granted(book, A, 1)
    assert book.held[A] == [Span(1, 3, 0), Span(0, 1, 0)]
    assert [covered(book, A, at, BLOCK) for at in (1, 2, 0)] == [4, 8, 12]
    hand_in(book, A, 0, BLOCK)
    assert book.held[A] == []


def test_a_block_that_was_partly_read_by_another_counts_for_the_rest(book):
    granted(book, A, 1)
    book.advance(A, Cursor(0, 3), BLOCK)
    book.give_back(A)
    granted(book, B, 2)
    assert covered(book, B, 0, BLOCK) == 1
    assert covered(book, B, 1, 1) == 2


def test_a_place_that_others_are_past_claims_no_more_than_they_read(book):
    granted(book, A, 4)
    hand_in(book, A, 2, 0, fragment=1)
    assert covered(book, A, 1, 0) == 8
    hand_in(book, A, 1, 0, tokens=4 * 16)
    assert covered(book, A, 3, 0) == 8
    hand_in(book, A, 3, 0, tokens=8 * 16)
    assert covered(book, A, 3, 2) == 2


def test_a_place_in_text_of_others_claims_nothing(book):
    granted(book, A, 1)
    granted(book, B, 8)
    assert covered(book, A, 7, 0) == 0


def test_a_session_begins_at_nothing_when_its_text_was_given_back(book):
    granted(book, A, 2)
    hand_in(book, A, 1, 2)
    book.give_back(A)
    assert covered(book, A, 1, 2) is None
    granted(book, A, 1)
    assert covered(book, A, 1, BLOCK) == 2


def test_what_is_covered_survives_being_written(book):
    granted(book, A, 3)
    hand_in(book, A, 1, 2, fragment=2)
    granted(book, B, 1)
    again = LeaseBook.of(book.next_position, tuple(book.returned), book.entries())
    assert again == book
    assert covered(again, A, 2, 0, fragment=2) == 2


def test_of_a_session_from_before_nothing_is_known(book):
    granted(book, A, 3)
    entries = book.entries(with_coverage=False)
    again = LeaseBook.of(book.next_position, (), entries)
    assert covered(again, A, 1, 2) is None
    again.lease(A, again.pick(1), AT_S, BLOCK)
    hand_in(again, A, 1, 2)
    assert covered(again, A, 2, 2) is None
