from __future__ import annotations

import pytest

from node.download.throughput import MIN_S, WINDOW_S, ThroughputMeter


def test_the_rate_is_that_of_the_last_seconds():
    meter = ThroughputMeter()
    for at in range(100):
        meter.add(b"one", 10, at / 10)
    assert meter.rate(9.9) == pytest.approx(100, rel=0.05)
    assert meter.rate(9.9 + 2 * WINDOW_S) == 0


def test_a_first_burst_is_no_rate():
    meter = ThroughputMeter()
    meter.add(b"one", 100, 5.0)
    assert meter.rate(5.0) == 100 / MIN_S


def test_who_sent_nothing_lately_is_no_source():
    meter = ThroughputMeter()
    meter.add(b"one", 1, 0.0)
    meter.add(b"two", 1, 4.0)
    assert meter.sources(4.5) == {b"one", b"two"}
    assert meter.sources(WINDOW_S + 1) == {b"two"}
