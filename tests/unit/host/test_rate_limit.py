"""Ceilings on bytes per second: what waits, for how long, and what is only booked."""

from __future__ import annotations

import asyncio

import pytest

from host.files.local_settings import RATE_MIN
from host.network.rate_limit import PIECE_BYTES_MIN, RateLimiter, Way, wait_turn
from host.network.token_bucket import BURST_S, PIECE_BYTES, TokenBucket

RATE = 100_000


def test_without_a_ceiling_nothing_waits_and_pieces_are_whole():
    way = Way()
    assert (way.wait_s(10**9, 0.0), way.piece_bytes) == (0.0, None)


def test_bulk_data_leaves_at_the_ceiling_and_a_change_counts_at_once():
    shaper = RateLimiter()
    shaper.limit(RATE, None)
    waits = [shaper.up.wait_s(RATE // 10, 5.0) for _ in range(10)]
    assert waits[-1] == pytest.approx(1.0 - BURST_S)
    assert shaper.down.wait_s(10**9, 0.0) == 0.0
    shaper.limit(2 * RATE, None)
    assert shaper.up.wait_s(RATE, 5.0) - waits[-1] == pytest.approx(0.5)
    shaper.limit(None, None)
    assert shaper.up.wait_s(10**9, 0.0) == 0.0


def test_pieces_are_small_where_the_line_is_slow_so_that_every_stream_gets_its_turn():
    way = Way()
    for rate, piece in ((RATE_MIN, PIECE_BYTES_MIN), (RATE, RATE // 4), (10**9, PIECE_BYTES)):
        way.limit(rate)
        assert way.piece_bytes == piece


def test_control_messages_are_booked_once_and_never_wait():
    way = Way()
    way.limit(RATE)
    way.wait_s(RATE, 5.0)
    way.book(RATE + RATE // 2, 5.0)  # Half as much again went besides.
    assert way.wait_s(0, 5.0) == pytest.approx(1.5 - BURST_S)
    way.book(RATE + RATE // 2, 5.0)
    assert way.wait_s(0, 5.0) == pytest.approx(1.5 - BURST_S)


def test_the_slower_of_two_ceilings_decides():
    async def run():
        way, own = Way(), TokenBucket(10_000.0)
        way.limit(10**9)
        return await wait_turn(way, 600, own)

    assert asyncio.run(run()) == pytest.approx(0.06 - BURST_S, abs=0.005)
