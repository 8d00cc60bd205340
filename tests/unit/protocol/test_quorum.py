from __future__ import annotations

import itertools

import pytest

from protocol.quorum import EMA_FACTOR, GraceWindow, MovingAverage, effective_quorum


def window(opening=None, quorum=None, sync=None, *, safety=0.9, overlap=2):
    made = GraceWindow(safety, overlap)
    for average, seconds in ((made.opening, opening), (made.quorum, quorum), (made.sync, sync)):
        if seconds is not None:
            average.observe(seconds)
    return made


def test_the_first_observation_is_the_average_and_later_ones_move_it_a_little():
    average = MovingAverage()
    assert average.value_s is None
    average.observe(8.0)
    assert average.value_s == 8.0
    average.observe(16.0)
    assert average.value_s == 8.0 + EMA_FACTOR * 8.0


def test_an_average_stays_within_what_was_observed():
    average = MovingAverage()
    for seconds in (1.0, 9.0, 4.0, 1.0, 9.0):
        average.observe(seconds)
        assert 1.0 <= average.value_s <= 9.0


@pytest.mark.parametrize(
    "known", [k for k in itertools.product((None, 0.1), repeat=3) if None in k]
)
def test_there_is_no_grace_until_every_average_is_known(known):
    assert window(*known).slack_s() is None
    assert window(*known).grace_s(100.0) == 0.0


def test_slack_is_what_the_overlap_leaves():
    assert window(3.0, 1.0, 0.5).slack_s() == pytest.approx(2 * 3.0 - 1.5)


def test_grace_is_the_safe_share_of_the_slack():
    assert window(3.0, 1.0, 0.5).grace_s(100.0) == pytest.approx(0.9 * 4.5)


def test_grace_is_never_negative():
    assert window(1.0, 5.0, 5.0).slack_s() < 0
    assert window(1.0, 5.0, 5.0).grace_s(100.0) == 0.0


@pytest.mark.parametrize("slowest_s", [0.0, 0.5, 2.0])
def test_grace_is_never_longer_than_the_slowest_local_step(slowest_s):
    assert window(100.0, 0.0, 0.0).grace_s(slowest_s) == slowest_s


def test_without_safety_share_there_is_no_grace():
    assert window(3.0, 1.0, 0.5, safety=0.0).grace_s(100.0) == 0.0


@pytest.mark.parametrize(
    ("quorum", "live", "waited_s", "needed"),
    [
        (3, 1, 0.0, 3),
        (3, 1, 19.9, 3),
        (3, 1, 20.0, 1),
        (3, 2, 25.0, 2),
        (3, 9, 25.0, 3),
        (3, 0, 25.0, 1),
        (1, 0, 0.0, 1),
    ],
)
def test_the_quorum_falls_to_those_alive_only_after_patience(quorum, live, waited_s, needed):
    assert effective_quorum(quorum, live, waited_s, 20.0) == needed
