"""Shares that add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.page.shares import WHOLE, by_team, permille, team_of

COUNTS = st.lists(st.integers(0, 2**60), min_size=1, max_size=40)


@given(COUNTS)
def test_shares_are_the_whole_together_and_each_is_within_a_tenth_of_a_percent(counts):
    parts, total = permille(counts), sum(counts)
    assert sum(parts) == (WHOLE if total else 0)
    for part, count in zip(parts, counts, strict=True):
        assert abs(part - (count * WHOLE / total if total else 0)) <= 1.0 + 1e-9


@given(COUNTS)
def test_who_gave_more_has_no_smaller_share(counts):
    ordered = sorted(counts)
    assert permille(ordered[::-1]) == sorted(permille(ordered[::-1]), reverse=True)


def test_a_third_each():
    assert permille([1, 1, 1]) == [334, 333, 333]


def test_a_team_is_what_stands_in_front_of_the_first_slash():
    names = ("north/ada", "north/ bob/2", "/ada", "north/", "ada", " /x")
    assert [team_of(name) for name in names] == ["north", "north", "", "", "", ""]
    assert by_team({"a": [1, 2], "b": [4]}) == [("b", 4), ("a", 3)]
