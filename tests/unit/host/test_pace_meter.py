"""The time left is honest and steady, whatever the pace of a swarm."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from host.control.pace_meter import SEEN_MIN, SPAN_S_MIN, PaceMeter

FRAGMENTS = 8
BUDGET = 10**9
TOKENS = 40_000


def estimates(gap_s, *, until_s, is_bursty=True, rate=lambda at_s: 1.0):
    """(seconds, what is told) each second; a steady swarm unless `rate` says otherwise."""
    meter, rng = PaceMeter(FRAGMENTS), random.Random(1)
    step, tokens, next_s, told = 0, 0, 0.0, []
    for at in range(int(until_s)):
        now_s = float(at)
        while next_s <= now_s:
            step, tokens = step + 1, tokens + int(TOKENS * rng.uniform(0.5, 1.5))
            # A cycle of all fragments, and a rest as long as that.
            rest = FRAGMENTS if is_bursty and step % FRAGMENTS == 0 else 1.0
            usual_s = (2 * FRAGMENTS - 1) / FRAGMENTS if is_bursty else 1.0
            next_s += gap_s * rest * rng.uniform(0.7, 1.3) / usual_s / rate(now_s)
        meter.observe(step, tokens, now_s)
        told.append((now_s, meter.told(BUDGET - tokens, now_s)))
    return told


@pytest.mark.parametrize("gap_s", [0.2, 2.0, 13.0, 60.0])
def test_a_steady_swarm_has_a_steady_estimate_that_holds_the_truth(gap_s):
    told = estimates(gap_s, until_s=max(900.0, 150 * gap_s))
    known = [(at_s, one) for at_s, one in told if one.left_s is not None]
    assert known[0][0] <= 4 * SEEN_MIN * gap_s + SPAN_S_MIN + FRAGMENTS * gap_s
    settled = [(at_s, one) for at_s, one in known if at_s > 0.3 * told[-1][0]]
    for at_s, one in settled:
        low_s, high_s = one.left_s
        true_s = BUDGET / TOKENS * gap_s - at_s
        assert 0.8 * true_s < (low_s + high_s) / 2 < 1.2 * true_s
    within = sum(
        one.left_s[0] <= BUDGET / TOKENS * gap_s - at_s <= one.left_s[1] for at_s, one in settled
    )
    assert within > 0.9 * len(settled)
    for (_, before), (_, after) in pairwise(settled):
        assert sum(after.left_s) == pytest.approx(sum(before.left_s), rel=0.1)


def test_nothing_is_told_before_something_is_known():
    meter = PaceMeter(FRAGMENTS)
    assert meter.told(BUDGET, 5.0).still_s is None
    meter.observe(1, TOKENS, 0.0)
    assert meter.told(BUDGET, 5.0).still_s is None
    meter.observe(2, 2 * TOKENS, 10.0)
    told = meter.told(BUDGET, 11.0)
    assert (told.left_s, told.gap_s, told.still_s) == (None, None, 1.0)


def test_a_swarm_that_becomes_faster_is_believed_within_a_few_minutes():
    told = estimates(1.0, until_s=1500.0, rate=lambda at_s: 4.0 if at_s > 600.0 else 1.0)
    assert told[590][1].gap_s == pytest.approx(1.0, rel=0.2)
    assert told[1000][1].gap_s == pytest.approx(0.25, rel=0.2)


def test_another_history_begins_anew():
    meter = PaceMeter(FRAGMENTS)
    for at in range(100):
        meter.observe(at, at * TOKENS, float(at))
    assert meter.told(BUDGET, 100.0).left_s is not None
    meter.observe(50, 50 * TOKENS, 101.0)
    assert meter.told(BUDGET, 101.0).left_s is None


def test_time_before_the_first_merge_says_nothing_of_the_pace():
    meter = PaceMeter(FRAGMENTS)
    for at in range(600):
        meter.observe(0, 0, float(at))
    for at in range(60):
        meter.observe(at + 1, (at + 1) * TOKENS, 600.0 + at)
    assert meter.told(BUDGET, 660.0).gap_s == pytest.approx(1.0)
