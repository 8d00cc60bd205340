"""How much of its data a connection hands over at once."""

from __future__ import annotations

import pytest

from host.bulk.send_ahead import (
    AHEAD_S,
    BYTES_MAX,
    BYTES_MIN,
    FIRST_BYTES,
    QUIET_S,
    UNSENT_BYTES_MAX,
    WINDOW_S,
    SendAhead,
)


def pass_windows(ahead, *rates):
    """For each rate, in bytes a second, one window in which so much leaves."""
    held = ahead.unsent_bytes
    for rate in rates:
        fills, held = max(0, ahead.unsent_bytes - held), ahead.unsent_bytes
        ahead.left(int(2 * WINDOW_S * rate) + fills, 2 * WINDOW_S, 1.0)


def after(*rates):
    ahead = SendAhead()
    pass_windows(ahead, *rates)
    return ahead.size_bytes


def test_it_is_what_the_line_sends_within_a_moment():
    assert after() == FIRST_BYTES
    assert after(*[1e6] * 4) == pytest.approx(AHEAD_S * 1e6, rel=0.01)
    assert after(1e3) == BYTES_MIN
    assert after(*[1e9] * 6) == BYTES_MAX


def test_one_odd_time_does_no_more_than_double_it():
    steady = [0.5e6] * 4
    assert after(*steady, 1e9) == 2 * after(*steady)
    assert after(*steady, 1e9, 0.5e6) == after(*steady)


def test_it_follows_a_line_that_gets_slower():
    assert after(*[8e6] * 8, 0.5e6) == pytest.approx(AHEAD_S * 0.5e6, rel=0.01)


def test_what_fills_the_room_that_the_kernel_was_given_has_not_left():
    ahead = SendAhead()
    assert ahead.left(200_000, 2 * WINDOW_S, 1.0) == 200_000
    assert ahead.size_bytes == 2 * FIRST_BYTES
    assert ahead.left(100_000, 0.001, 1.0) == 100_000 - 2 * FIRST_BYTES
    assert ahead.left(100_000, 0.001, 1.0) == 100_000


def test_moments_are_no_window_unless_much_left_in_them():
    ahead = SendAhead()
    ahead.left(200_000, WINDOW_S / 10, 1.0)
    assert ahead.size_bytes == FIRST_BYTES
    ahead.left(100_000, WINDOW_S / 10, 1.0)
    assert ahead.size_bytes == 2 * FIRST_BYTES
    slow = SendAhead()
    for _ in range(9):
        slow.left(1_000, WINDOW_S / 10, 1.0)
        assert slow.size_bytes == FIRST_BYTES
    slow.left(0, WINDOW_S / 5, 1.0)
    assert slow.size_bytes == BYTES_MIN


def test_after_a_pause_it_begins_anew():
    ahead = SendAhead()
    assert ahead.begin(100.0)
    ahead.left(1 << 20, 0.1, 100.0)
    assert not ahead.begin(100.0 + QUIET_S)
    assert ahead.size_bytes == 2 * FIRST_BYTES
    assert ahead.begin(100.1 + 2 * QUIET_S)
    assert ahead.size_bytes == FIRST_BYTES
    assert ahead.left(10_000, 1.0, 110.0) == 10_000, "room of before is forgotten"
    assert ahead.size_bytes == BYTES_MIN
    assert not ahead.begin(110.5), "what takes long is no pause"


def test_the_kernel_holds_twice_as_much_up_to_a_bound():
    ahead = SendAhead()
    assert ahead.unsent_bytes == 2 * FIRST_BYTES
    pass_windows(ahead, *[1e9] * 6)
    assert ahead.unsent_bytes == UNSENT_BYTES_MAX
