"""Pauses between tries grow, the last one repeats, and chance spreads them."""

from __future__ import annotations

from protocol.backoff import Backoff

BACKOFF = Backoff((1.0, 2.0, 8.0), jitter=0.25)


def test_each_failure_takes_the_next_pause_and_the_last_one_repeats():
    assert [BACKOFF.pause_s(failures) for failures in (0, 1, 2, 3, 10_000)] == [1, 2, 8, 8, 8]


def test_jitter_spreads_evenly_around_the_pause():
    assert BACKOFF.pause_s(2, lambda least, most: least) == 6.0
    assert BACKOFF.pause_s(2, lambda least, most: most) == 10.0
