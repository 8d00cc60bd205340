"""Whether pushes say anything that was not merged lately."""

from __future__ import annotations

import pytest

from protocol.novelty import (
    ECHO_MAX,
    NOVELTY_FULL,
    NOVELTY_NONE,
    SLACK,
    UNHEARD,
    Novelty,
    after,
    trust,
    trust_now,
    typical,
)
from protocol.standing import CHANCES_MIN, JUDGED_MIN

ELEMENTS = 65_536
USUAL = 0.3


def judged(*means):
    return [Novelty(mean, JUDGED_MIN) for mean in means]


def test_the_first_push_is_the_mean_and_later_ones_move_it():
    first = after(UNHEARD, 0.3, 0.4)
    assert first == Novelty(0.4, 1)
    assert after(first, 0.3, 0.0) == Novelty(pytest.approx(0.3), 2, scatter=pytest.approx(0.16))


def test_a_push_that_nothing_is_known_of_leaves_the_mean():
    assert after(Novelty(0.4, 5), 0.3, None) == Novelty(0.4, 5)


def test_echoes_are_counted_until_something_else_comes():
    once = after(Novelty(0.4, 5), 1.0, None)
    assert once.echoes == 1
    assert after(once, 1.0, 0.0).echoes == 2
    assert after(once, 0.5, 0.4).echoes == 0
    assert trust(once, 0.0) == 0.0


def test_an_echo_does_not_count_whoever_hands_it_in():
    assert trust_now(Novelty(0.4, 100), 1.0, None, 0.0) == 0.0
    assert trust_now(UNHEARD, ECHO_MAX - 0.01, None, 0.0) == 1.0


def test_what_lags_may_repeat_nearly_all_but_be_no_copy():
    for echo, expected in ((0.99 + 1e-4, 1.0), (1.0, 0.0)):
        assert trust_now(UNHEARD, echo, None, 0.0, is_late=True) == expected
        assert after(UNHEARD, echo, None, is_late=True).echoes == (expected == 0.0)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (USUAL, 1.0),
        (USUAL * NOVELTY_FULL, 1.0),
        (USUAL * (NOVELTY_FULL + NOVELTY_NONE) / 2, 0.5),
        (USUAL * NOVELTY_NONE, 0.0),
        (-USUAL, 0.0),
    ],
)
def test_trust_falls_with_the_novelty(mean, expected):
    assert trust(Novelty(mean, 3), USUAL) == pytest.approx(expected)


def test_who_was_never_judged_counts_in_full_and_so_does_everybody_where_nothing_is_usual():
    assert trust(UNHEARD, USUAL) == 1.0
    assert trust_now(Novelty(-0.5, 9), 0.3, -0.5, 0.0) == 1.0


def test_a_newcomer_that_adds_nothing_does_not_count_in_its_first_push():
    assert trust_now(UNHEARD, 0.6, 0.01, USUAL) == 0.0


def test_one_that_was_honest_for_long_is_not_believed_once_more():
    for found in (0.0, 0.02, -0.1):
        assert trust_now(Novelty(USUAL, 100), 0.6, found, USUAL) < 0.7
    assert trust_now(Novelty(USUAL, 100), 0.6, -0.1, USUAL) == 0.0
    now, pushes = Novelty(USUAL, 100), 0
    while trust_now(now, 0.6, 0.0, USUAL) >= 0.5:
        now, pushes = after(now, 0.6, 0.0), pushes + 1
    assert pushes <= 4


def test_honest_pushes_may_stray():
    least = NOVELTY_FULL - SLACK
    assert trust_now(Novelty(USUAL, 9), 0.9, least * USUAL, USUAL) == pytest.approx(1.0)


def test_too_few_or_chance_are_compared_with_nothing():
    assert typical(judged(0.5, 0.5), ELEMENTS) == 0.0
    assert typical([*judged(0.5, 0.5), Novelty(0.5, JUDGED_MIN - 1)], ELEMENTS) == 0.0
    assert typical(judged(0.5, 0.4, 0.0), ELEMENTS) == 0.4
    chance = CHANCES_MIN / 256
    assert typical(judged(*[0.99 * chance] * 3), ELEMENTS) == 0.0
    assert typical(judged(*[1.01 * chance] * 3), ELEMENTS) > 0.0


def test_where_novelty_is_all_over_the_place_nobody_is_doubted():
    assert typical(judged(-0.2, 0.1, 0.5), ELEMENTS) == 0.0
