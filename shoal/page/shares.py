"""Who gave how much, in parts that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

WHOLE: Final = 1000
"""Shares are counted in tenths of a percent."""


def permille(counts: Sequence[int]) -> list[int]:
    """Each count's share of all of them, in tenths of a percent: 1000 together, by the largest
    remainders; all 0 where nothing was counted. Of equal remainders the first has it."""
    total = sum(counts)
    if total <= 0:
        return [0] * len(counts)
    parts = [count * WHOLE // total for count in counts]
    order = sorted(range(len(counts)), key=lambda at: -(counts[at] * WHOLE % total))
    for at in order[: WHOLE - sum(parts)]:
        parts[at] += 1
    return parts


def team_of(name: str) -> str:
    """The team that a name of the form team/name names; empty where it names none."""
    team, slash, rest = name.partition("/")
    return team.strip() if slash and rest.strip() else ""


def by_team(tokens: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    """Teams and the sum of what each gave, most first."""
    summed = [(team, sum(counts)) for team, counts in tokens.items()]
    return sorted(summed, key=lambda one: (-one[1], one[0]))
