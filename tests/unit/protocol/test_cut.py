"""The syncer's side of a cut: what makes a part consistent, and what does not."""

from __future__ import annotations

import pytest
from msgspec import structs

from protocol.snapshots.cut import CHANNEL_TRANSITIONS, Channel, ChannelState, Taking
from protocol.snapshots.manifest import PartBooks, PartKept, Skipped, from_stamp, stamp
from protocol.snapshots.vector_clock import VectorClock

A, B = b"a" * 32, b"b" * 32
CUT = VectorClock(7, (3, 2))
BOOKS = PartBooks(5, (4, 5), 12, 100, 40, 20, 30, 10, 0)


def taking(in_hand=(4,)):
    channels = {
        A: Channel(A, 1, "ann", frozenset(in_hand)),
        B: Channel(B, 1, "bob", frozenset()),
    }
    return Taking(99, CUT, 0.0, channels, (Skipped(b"c" * 32, "cid", "not here"),))


def kept(books=BOOKS):
    return PartKept(99, bytes(32), 1000, books)


def reason_of(one, *, clock=CUT, books=BOOKS):
    one.on_marker((A, 1), clock)
    one.on_kept((A, 1), kept(books))
    return one.channels[A].reason


def test_pushes_between_the_markers_are_state_of_the_channel():
    one = taking()
    one.on_push((A, 1), 5)
    one.on_marker((A, 1), CUT)
    one.on_push((A, 1), 6)
    one.on_kept((A, 1), kept())
    (part,) = one.parts()
    assert (part.in_hand, part.arriving) == ((4,), (5,))
    assert not one.is_done
    assert one.waiting_for() == ["bob"]
    one.skip(B, "it died")
    assert one.is_done
    assert [(left.name, left.reason) for left in one.skipped()] == [
        ("bob", "it died"),
        ("cid", "not here"),
    ]


def test_a_push_that_never_came_is_found():
    assert "push 5 was handed in before its cut and never came" in reason_of(taking())


def test_a_push_from_behind_the_cut_is_found():
    assert "push 9 is here and was made after its cut" in reason_of(taking((4, 5, 9)))


@pytest.mark.parametrize("index", [6, 8])
def test_another_place_in_the_log_is_found(index):
    words = reason_of(taking((4, 5)), clock=VectorClock(index, (3, 2)))
    assert f"it was cut at record {index}" in words


def test_versions_that_are_not_committed_are_found():
    words = reason_of(taking((4, 5)), clock=VectorClock(7, (4, 2)))
    assert "versions that the syncer had not committed" in words


def test_books_that_do_not_add_up_are_found():
    words = reason_of(taking((4, 5)), books=structs.replace(BOOKS, lost=1))
    assert "do not add up" in words


def test_sound_books_are_taken_in_once():
    one = taking((4, 5))
    assert reason_of(one) == ""
    one.on_kept((A, 1), kept(structs.replace(BOOKS, lost=1)))
    one.skip(A, "too late to say so")
    assert [part.learner for part in one.parts()] == [A]


def test_a_part_without_a_marker_and_another_session_mean_nothing():
    one = taking((4, 5))
    one.on_kept((A, 1), kept())
    one.on_marker((A, 2), CUT)
    one.on_push((A, 2), 11)
    assert one.channels[A].state is ChannelState.OPEN
    assert one.channels[A].arriving == set()


def test_every_state_of_a_channel_ends():
    leaving = {state for state, _ in CHANNEL_TRANSITIONS}
    assert set(ChannelState) - leaving == {ChannelState.KEPT, ChannelState.SKIPPED}


@pytest.mark.parametrize("snapshot", [0, 1, 1_700_000_000, 4_000_000_000])
def test_a_name_leads_back_to_its_snapshot(snapshot):
    assert from_stamp(stamp(snapshot)) == snapshot
