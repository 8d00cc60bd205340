"""How far pushes count, by where earlier ones pointed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import standing
from protocol.standing import (
    CHANCES_MIN,
    JUDGED_MIN,
    NOBODY,
    TRUST_FULL,
    TRUST_NONE,
    Standing,
    after,
    trust,
    trust_now,
)

COSINES = st.floats(-1.0, 1.0)


MANY = 1_000_000
"""Elements of a fragment so large that no cosine is chance."""


def typical(standings, elements=MANY):
    return standing.typical(standings, elements)


def judged(*directions):
    return [Standing(direction, JUDGED_MIN) for direction in directions]


def test_the_first_cosine_is_the_direction_and_later_ones_move_it():
    first = after(NOBODY, 0.4)
    assert first == Standing(0.4, 1)
    assert after(first, 0.0) == Standing(pytest.approx(0.3), 2)


def test_too_few_learners_are_not_compared():
    assert typical(judged(0.5, 0.5)) == 0.0
    assert typical([*judged(0.5, 0.5), Standing(0.5, JUDGED_MIN - 1)]) == 0.0
    assert typical(judged(0.5, 0.4, -1.0)) == 0.4


def test_a_swarm_that_points_nowhere_doubts_nobody():
    assert typical(judged(-0.1, -0.2, 0.3)) == 0.0
    assert trust(Standing(-0.9, 9), 0.0) == 1.0


def test_chance_is_compared_with_nothing():
    assert typical(judged(0.02, -0.01, 0.015, -0.03)) == 0.0
    assert typical(judged(0.02, 0.018, 0.019, -0.02)) == pytest.approx(0.0185)


def test_in_a_small_fragment_larger_cosines_are_chance():
    elements = 400
    chance = CHANCES_MIN / 20
    assert typical(judged(*[1.01 * chance] * 3), elements) > 0.0
    assert typical(judged(*[0.99 * chance] * 3), elements) == 0.0


def test_who_was_never_judged_counts_in_full():
    assert trust(NOBODY, 0.5) == 1.0


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        (0.4, 1.0),
        (0.4 * TRUST_FULL, 1.0),
        (0.2 * (TRUST_FULL + TRUST_NONE), 0.5),
        (0.4 * TRUST_NONE, 0.0),
        (-0.4, 0.0),
    ],
)
def test_trust_falls_with_the_direction(direction, expected):
    assert trust(Standing(direction, 1), 0.4) == pytest.approx(expected)


def test_a_learner_that_turns_is_doubted_within_five_pushes():
    now, pushes = Standing(0.5, 100), 0
    while trust(now, 0.5) >= 0.5:
        now, pushes = after(now, -0.5), pushes + 1
    assert pushes <= 5


@pytest.mark.parametrize(("cosine", "expected"), [(0.4, 1.0), (0.0, 1.0), (-0.2, 0.0)])
def test_a_push_that_points_elsewhere_does_not_count_whoever_hands_it_in(cosine, expected):
    assert trust_now(Standing(0.4, 100), cosine, 0.4) == expected


def test_where_nothing_is_compared_every_push_counts():
    assert trust_now(Standing(0.4, 100), -1.0, 0.0) == 1.0
    assert trust_now(NOBODY, 0.0, 0.4) == 1.0


@given(st.lists(st.floats(0.2, 0.4), min_size=3), st.data())
def test_a_minority_can_take_nobodys_trust(honest, data):
    """Whatever liars claim about themselves, honest learners of one kind count in full."""
    liars = data.draw(st.lists(COSINES, max_size=len(honest) - 1))
    compared_with = typical(judged(*honest, *liars))
    assert compared_with == 0.0 or 0.2 <= compared_with <= 0.4
    assert all(trust(one, compared_with) == 1.0 for one in judged(*honest))


def test_three_are_the_fewest_that_have_a_majority():
    assert standing.LEARNERS_COMPARED_MIN == 3
