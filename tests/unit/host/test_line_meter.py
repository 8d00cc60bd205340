"""A line is measured while it holds bytes back, and by several connections rather than by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.network.line_meter import HELD_S_MAX, WINDOW_ENDINGS, WINDOW_S, LineMeter
from host.network.rate_limit import Way


def send(meter, *, rate, connections=1, from_s=0.0, turns=WINDOW_ENDINGS, piece=100_000):
    """So many turns of each connection, whose pieces share a line of this rate; the time after."""
    now_s = from_s
    for connection in range(connections):
        meter.holds(connection, now_s)
    for turn in range(1, turns + 1):
        now_s += connections * piece / rate
        for connection in range(connections):
            meter.left(connection, piece, now_s)
            if turn < turns:
                meter.holds(connection, now_s)
    return now_s


def test_nothing_is_known_before_there_was_too_much_to_send():
    meter = LineMeter()
    assert meter.bytes_per_s is None
    send(meter, rate=1e6, turns=WINDOW_ENDINGS // 2)
    assert meter.bytes_per_s is None


@given(st.floats(1e4, 1e7), st.integers(1, 20))
def test_the_rate_of_the_line_is_found_however_many_share_it(rate, connections):
    meter = LineMeter()
    piece = min(100_000, int(rate * HELD_S_MAX / connections / 2))
    turns = max(4 * WINDOW_ENDINGS, int(4 * WINDOW_S * rate / piece))
    send(meter, rate=rate, connections=connections, turns=turns, piece=piece)
    assert meter.bytes_per_s == pytest.approx(rate, rel=0.15)


def test_pauses_without_anything_to_send_do_not_count():
    meter, now_s = LineMeter(), 0.0
    for _ in range(20):
        now_s = 100.0 + send(meter, rate=1e6, from_s=now_s, turns=2)
    assert meter.bytes_per_s == pytest.approx(1e6, rel=0.15)


def test_one_that_reads_slowly_does_not_make_the_line_slow():
    meter = LineMeter()
    now_s = send(meter, rate=1e6, connections=3, turns=20)
    for _ in range(20):
        now_s = send(meter, rate=1e4, from_s=now_s)
    assert meter.bytes_per_s == pytest.approx(1e6, rel=0.15)


def test_a_line_that_got_slower_for_several_is_believed_by_and_by():
    meter = LineMeter()
    now_s = send(meter, rate=1e6, connections=3, turns=20)
    send(meter, rate=1e5, connections=3, from_s=now_s, turns=1000)
    assert meter.bytes_per_s == pytest.approx(1e5, rel=0.15)


def test_a_connection_that_broke_shows_nothing():
    meter = LineMeter()
    now_s = send(meter, rate=1e6, connections=2, turns=20)
    meter.holds("dead", now_s)
    meter.broke("dead", now_s + HELD_S_MAX)
    meter.broke("never held", now_s + HELD_S_MAX)
    meter.left("never held", 10**9, now_s + HELD_S_MAX)
    send(meter, rate=1e6, connections=2, from_s=now_s + HELD_S_MAX, turns=20)
    assert meter.bytes_per_s == pytest.approx(1e6, rel=0.15)


def test_where_a_kernel_made_room_meanwhile_nothing_has_left_and_the_window_goes_on():
    meter, now_s = LineMeter(), 0.0
    while now_s < 2 * WINDOW_S:
        now_s = send(meter, rate=1e6, connections=2, from_s=now_s, turns=2)
        meter.holds(0, now_s)
        meter.left(0, 0, now_s + 0.001)
    assert meter.bytes_per_s == pytest.approx(1e6, rel=0.15)


def test_a_way_goes_as_fast_as_its_ceiling_or_its_line():
    way = Way()
    assert way.bytes_per_s is None
    way.limit(500_000)
    assert way.bytes_per_s == 500_000
    send(way.meter, rate=1e6, turns=20)
    assert way.bytes_per_s == 500_000
    way.limit(None)
    assert way.bytes_per_s == pytest.approx(1e6, rel=0.15)
