"""Tuning that is fair by construction: as many trials for every algorithm, over declared ranges.

The first trial is what the project and the algorithm have. With it the first half of the trials
spreads over the ranges (a Halton sequence); the second half goes from the best one outwards, one
setting at a time, in steps that halve once none of them helps. A best trial at the edge of a range
is no optimum: the search may leave the range there, and where its last trial still leaves a setting
at the end of what was tried, more trials follow, along that setting alone. Nothing is drawn, so a
search that is interrupted, or given more trials, goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import InternalError

Point = tuple[float, ...]
"""A place in the ranges, 0 to 1 in each where it lies inside."""

PRIMES: Final = (2, 3, 5, 7, 11, 13)
SPREAD_FRAC: Final = 0.5
"""Share of the trials that spread over the ranges."""
PAST_EDGES_FRAC: Final = 0.5
"""Trials that may follow where the best one lies at an edge, as a share of the others."""
FIRST_STEP: Final = 0.25
"""Of a range, from the best trial outwards."""
LEAST_STEP: Final = 1 / 64
EDGE: Final = 0.02
"""A best trial nearer than this to the end of its range lies at its edge."""
BEYOND_MAX: Final = 1.0
"""How far a search may leave a range, in lengths of it."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where the best value of one setting is looked for: evenly in its logarithm."""

    key: str
    """As `inner.learning_rate`."""
    low: float
    high: float
    is_rest: bool = False
    """The bounds are of 1 - value, as suits a memory."""

    def value(self, place: float) -> float:
        """At this place, 0 at `low`; rounded to three digits, so that people can type it."""
        found = self.low * (self.high / self.low) ** place
        rounded = float(f"{found:.3g}")
        return float(f"{1.0 - rounded:.6g}") if self.is_rest else rounded

    def place(self, value: float) -> float:
        """Where this value is. InternalError for a value that no place has."""
        distance = 1.0 - value if self.is_rest else value
        if distance <= 0.0:
            raise InternalError(f"{self.key} = {value} lies nowhere in its range")
        return math.log(distance / self.low) / math.log(self.high / self.low)

    def exists(self, place: float) -> bool:
        """Whether there is a value there: memories lie between 0 and 1."""
        return not self.is_rest or self.low * (self.high / self.low) ** place <= 1.0

    def has(self, place: float) -> bool:
        """Whether a search may go there."""
        return -BEYOND_MAX <= place <= 1.0 + BEYOND_MAX and self.exists(place)


@dataclass(slots=True)
class Search:
    """One algorithm's trials so far, and the next."""

    ranges: Sequence[Range]
    trials: int
    first: Mapping[str, float] = field(default_factory=dict)
    """By key: what is tried first. Empty to begin with the spread."""
    losses: dict[Point, float] = field(default_factory=dict)
    """Of the trials that are done; infinite for one that diverged."""

    def __post_init__(self) -> None:
        if not 0 < len(self.ranges) <= len(PRIMES):
            raise InternalError(f"a search over {len(self.ranges)} settings")

    def __iter__(self) -> Iterator[Point]:
        """The places to try, each asked for once the former's loss is told."""
        spread = max(1, math.ceil(SPREAD_FRAC * self.trials))
        if self.first:
            yield tuple(one.place(self.first[one.key]) for one in self.ranges)
        for number in range(1, spread + 1 - bool(self.first)):
            yield tuple(_halton(number, base) for base in PRIMES[: len(self.ranges)])
        yield from self._outwards()

    def tell(self, point: Point, loss: float) -> None:
        """A trial is done."""
        self.losses[point] = loss if math.isfinite(loss) else math.inf

    def settings(self, point: Point) -> dict[str, float]:
        """The values at a place, by key."""
        pairs = zip(self.ranges, point, strict=True)
        return {one.key: one.value(place) for one, place in pairs}

    @property
    def best(self) -> Point:
        """The trial with the lowest loss; the first of equals."""
        return min(self.losses, key=lambda point: self.losses[point])

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Settings whose best value may lie beyond everything that was tried."""
        return tuple(self.ranges[axis].key for axis, _ in self._edges())

    @property
    def trials_past_edges(self) -> int:
        """How many `past_edges` may ask for, at most."""
        return math.ceil(PAST_EDGES_FRAC * self.trials)

    def past_edges(self) -> Iterator[Point]:
        """Behind all trials: past each edge that the best one lies at, until it lies at none."""
        for _ in range(self.trials_past_edges):
            edges = self._edges()
            if not edges:
                return
            axis, towards = edges[0]
            best = self.best
            yield (*best[:axis], best[axis] + towards * FIRST_STEP, *best[axis + 1 :])

    def _edges(self) -> list[tuple[int, int]]:
        """Where the best trial lies at the end of what was tried and may go on: axis, direction."""
        found = []
        for axis, one in enumerate(self.ranges):
            tried = [point[axis] for point in self.losses]
            low, high, here = min(0.0, *tried), max(1.0, *tried), self.best[axis]
            for towards, is_there in ((-1, here <= low + EDGE), (1, here >= high - EDGE)):
                if is_there and one.has(here + towards * FIRST_STEP):
                    found.append((axis, towards))
        return found

    def _outwards(self) -> Iterator[Point]:
        """From the best trial, along each setting in turn."""
        step = FIRST_STEP
        while len(self.losses) < self.trials and step >= LEAST_STEP:
            before = self.best
            for axis, one in enumerate(self.ranges):
                for towards in (step, -step):
                    best = self.best
                    place = best[axis] + towards
                    point = (*best[:axis], place, *best[axis + 1 :])
                    if len(self.losses) >= self.trials:
                        return
                    if one.has(place) and point not in self.losses:
                        yield point
                        if self.best == point:
                            break  # It helped: the other way was worse before it.
            if self.best == before:
                step /= 2


def _halton(number: int, base: int) -> float:
    """The number's digits in this base, mirrored behind the point (J. Halton, 1960)."""
    found, weight = 0.0, 1.0
    while number:
        weight /= base
        number, digit = divmod(number, base)
        found += weight * digit
    return found


def summary(settings: Mapping[str, float]) -> str:
    """The settings as `--set` takes them, where the project has them."""
    words = []
    for key, value in settings.items():
        part, _, name = key.partition(".")
        words.append(f"{'training' if part == 'inner' else part}.{name}={value:g}")
    return " ".join(words)
