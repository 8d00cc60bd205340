"""How far pushes count, by where earlier ones pointed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from protocol import standing
from protocol.standing import (
    CHANCES_MIN,
    ERROR_OF_MEAN,
    ESTABLISHED_MIN,
    EXPECTED_MIN,
    JUDGED_MIN,
    NOBODY,
    SCATTER_MIN,
    TRUST_FULL,
    TRUST_NONE,
    Standing,
    after,
    expected,
    strays,
    trust,
    trust_by_repeats,
    trust_now,
    typical_repeats,
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
    assert after(first, 0.0) == Standing(pytest.approx(0.3), 2, scatter=pytest.approx(0.16))


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


def test_new_learners_do_not_move_the_median_of_established_ones():
    established = [Standing(0.5, 20, ESTABLISHED_MIN), Standing(0.4, 20, ESTABLISHED_MIN)]
    crowd = judged(*[-0.4] * 20)
    assert typical([*established, *crowd]) == 0.0
    assert typical([*established, Standing(0.3, 20, ESTABLISHED_MIN), *crowd]) == 0.4


def test_who_points_elsewhere_stays_new_for_ever():
    good = bad = NOBODY
    for _ in range(2 * ESTABLISHED_MIN):
        good, bad = after(good, 0.4, 1.0), after(bad, -0.4, 0.0)
    assert good.is_established
    assert not bad.is_established
    assert typical([good, good, good, *[bad] * 9]) == pytest.approx(0.4)


def test_in_a_small_fragment_larger_cosines_are_chance():
    elements = 400
    chance = CHANCES_MIN / 20
    assert typical(judged(*[1.01 * chance] * 3), elements) > 0.0
    assert typical(judged(*[0.99 * chance] * 3), elements) == 0.0


def test_who_was_never_judged_counts_in_full():
    assert trust(NOBODY, 0.5) == 1.0


@pytest.mark.parametrize(
    ("direction", "counts"),
    [
        (0.4, 1.0),
        (0.4 * TRUST_FULL, 1.0),
        (0.2 * (TRUST_FULL + TRUST_NONE), 0.5),
        (0.4 * TRUST_NONE, 0.0),
        (-0.4, 0.0),
    ],
)
def test_trust_falls_with_the_direction(direction, counts):
    assert trust(Standing(direction, 1), 0.4) == pytest.approx(counts)


def test_a_learner_that_turns_is_doubted_within_five_pushes():
    now, pushes = Standing(0.5, 100), 0
    while trust(now, 0.5) >= 0.5:
        now, pushes = after(now, -0.5), pushes + 1
    assert pushes <= 5


@pytest.mark.parametrize(("share", "counts"), [(1.0, 1.0), (0.0, 1.0), (-0.49, 1.0), (-0.86, 0.0)])
def test_a_push_that_points_elsewhere_does_not_count_whoever_hands_it_in(share, counts):
    assert trust_now(Standing(0.4, 100), share * 0.4, 0.4) == counts


@pytest.mark.parametrize(
    ("steps", "usual", "could"),
    [(8, 8.0, 1.0), (2, 8.0, 0.5), (100, 8.0, 1.0), (2, None, 1.0), (0, 8.0, 1.0)],
)
def test_of_a_push_of_few_steps_a_smaller_cosine_is_expected(steps, usual, could):
    assert expected(steps, usual) == could


def test_little_is_expected_of_hardly_any_work_but_not_nothing():
    assert expected(1, 1e6) == EXPECTED_MIN


def pushed(*pushes):
    """Standing of who handed in pushes of these cosines, of which so much was expected."""
    now = NOBODY
    for cosine, could in pushes:
        now = after(now, cosine, expected=could)
    return now


def test_a_slow_learner_counts_in_full_where_its_pushes_point_as_far_as_they_can():
    slow = pushed(*[(0.125, 0.3)] * 20)
    assert slow.bearing == pytest.approx(0.125 / 0.3)
    assert trust(slow, 0.4) == 1.0
    assert trust(pushed(*[(0.125, 1.0)] * 20), 0.4) < 0.5, "of pushes of full work more is expected"


def test_one_short_push_that_is_noise_costs_no_trust_and_several_backwards_do():
    assert trust_now(NOBODY, 0.01, 0.4, expected=0.4) == 1.0
    assert trust_now(NOBODY, 0.01, 0.4) == 0.0
    assert trust(pushed(*[(-0.12, 0.3)] * 6), 0.4) == 0.0


def test_a_short_push_says_little_of_a_learner_that_hands_in_long_ones_too():
    long = pushed(*[(0.4, 1.0)] * 10)
    assert after(long, -0.1, expected=0.3).bearing > 0.9 * after(long, -0.1).bearing > 0.2


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.floats(0.1, 0.9))
def test_who_points_just_as_far_as_its_steps_allow_counts_in_full(steps, typical_cosine):
    could = [expected(one, 8.0) for one in steps]
    now = pushed(*[(typical_cosine * one, one) for one in could])
    assert now.bearing == pytest.approx(typical_cosine)
    assert trust(now, typical_cosine) == pytest.approx(1.0)


def test_in_a_young_run_one_that_points_where_others_do_counts_whatever_its_learner_s_others_did():
    misled = pushed((-0.6, 1.0), (0.1, 1.0))
    assert trust_now(misled, 0.6, 0.55) < 0.5
    assert trust_now(misled, 0.6, 0.55, is_young=True) == 1.0
    assert trust_now(misled, 0.05, 0.55, is_young=True) == 0.0
    honest = pushed(*[(0.6, 1.0)] * 3)
    assert trust_now(honest, 0.1, 0.55, is_young=True) == trust_now(honest, 0.1, 0.55) == 1.0


def repeating(*repeats, judged=20, good=20):
    now = Standing(0.4, judged, good)
    for one in repeats:
        now = after(now, 0.4, 1.0, repeat=one)
    return now


def test_what_is_not_known_of_repeats_changes_nothing():
    assert after(repeating(0.5), 0.4).repeats == repeating(0.5).repeats > 0.0


def test_who_repeats_itself_far_more_than_others_counts_less_and_less():
    others = [repeating(*[0.1] * 20)] * 3
    usual = typical_repeats(others)
    assert usual == pytest.approx(0.1, rel=0.01)
    counted = [trust_by_repeats(repeating(*[0.4] * some), usual) for some in range(20)]
    assert counted[:2] == [1.0] * 2
    assert counted == sorted(counted, reverse=True)
    assert counted[4] < 0.5
    assert counted[-1] == 0.0


@pytest.mark.parametrize("repeat", [0.2, 0.58])
def test_text_of_another_kind_costs_no_trust_where_it_is_said(repeat):
    learner = repeating(*[repeat] * 20)
    assert trust_by_repeats(structs.replace(learner, has_other_text=True), 0.0) == 1.0
    assert trust_by_repeats(learner, 0.0) < 1.0


def test_of_pushes_of_few_local_steps_little_is_repetition():
    hasty = after(NOBODY, 0.2, 1.0, expected=expected(2, 24))
    for _ in range(20):
        hasty = after(hasty, 0.2, 1.0, expected=expected(2, 24), repeat=0.4)
    assert trust_by_repeats(hasty, 0.0) == 1.0
    assert trust_by_repeats(repeating(*[0.4] * 20), 0.0) == 0.0


def test_where_too_few_are_known_nobody_repeats_too_much():
    assert typical_repeats([repeating(*[0.1] * 20)] * 2) == 1.0
    assert trust_by_repeats(repeating(*[1.0] * 20), 1.0) == 1.0


def test_whose_pushes_were_never_compared_is_no_measure():
    unknown, two = repeating(), [repeating(*[0.5] * 20)] * 2
    assert typical_repeats([*two, unknown]) == 1.0
    assert typical_repeats([*two, after(unknown, 0.4, 1.0, repeat=0.2)]) == pytest.approx(
        0.5, rel=0.01
    )


def test_a_minority_of_new_learners_does_not_say_how_far_one_may_repeat_itself():
    crowd = [repeating(*[0.9] * 20, judged=3, good=0)] * 2
    assert typical_repeats([repeating(*[0.1] * 20)] * 3 + crowd) < 0.2


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


# Where a model hardly learns any more.


def scattered(*cosines):
    one = NOBODY
    for cosine in cosines:
        one = after(one, cosine, 1.0)
    return one


PLATEAU = (
    scattered(*(0.6, -0.2, -0.1) * 9, 0.5),
    scattered(*(0.5, -0.3, 0.1) * 9, 0.6),
    scattered(*(0.7, -0.2, -0.2) * 9, -0.3),
)
"""Fragment by fragment, as in a swarm of three that knew its text by heart."""


def test_directions_that_scatter_more_than_they_point_are_chance():
    assert typical(PLATEAU, 1 << 16) == 0.0
    steady = tuple(msgspec.structs.replace(one, scatter=0.0) for one in PLATEAU)
    assert typical(steady, 1 << 16) > 0.0


def test_a_direction_may_stray_by_its_error():
    steady = [Standing(0.5, 20, scatter=0.01), *[Standing(0.48, 20, scatter=0.01)] * 2]
    usual = typical(steady, 1 << 16)
    assert strays(steady, usual) == pytest.approx(2 * ERROR_OF_MEAN * 0.1 / usual)
    below = Standing(0.2 * usual, 20)
    assert trust(below, usual) < trust(below, usual, strays=strays(steady, usual)) < 1.0
    assert strays(steady, 0.0) == strays([], 0.5) == 0.0


def test_how_the_first_pushes_scatter_says_nothing():
    first = [msgspec.structs.replace(one, judged=SCATTER_MIN - 1) for one in PLATEAU]
    assert typical(first, 1 << 16) > 0.0
    assert strays(first, 0.3) == 0.0


def test_who_scatters_most_gives_nobody_more_room():
    steady = [Standing(0.5, 20, scatter=0.01)] * 3
    wild = [*steady[:2], Standing(-0.5, 20, scatter=1.0)]
    assert strays(wild, 0.5) == strays(steady, 0.5)
