"""Which syncer merges which fragment: shares of the model as large as their measured capacity.

What is measured is how fast pushes come in while several are on their way, at best, and how fast
they are merged; the slower of the two counts. How much a merger takes in by and by would say
nothing: as much as it was given, whoever waits for whom. A fragment stays where it is while that
costs little: with it lies what quantising left over of its last merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

STAYS = 1.05
"""A fragment moves only where another merger would be done with all that it has in so much less."""

WINDOW_PUSHES = 8
"""Pushes over which the rate at which they come in is taken."""

FADES = 0.1
"""Share by which the best rate comes closer to the newest one, where that is lower."""

MERGE_KEPT = 0.75
"""Share of the mean rate of merging that stays when a merge is added."""


@dataclass(slots=True)
class Load:
    """What one merger had to do, and how fast it was done."""

    out: int = 0
    """Pushes that it is fetching."""
    since_s: float = 0.0
    window_s: float = 0.0
    """Since the window began, as far as there was a push to fetch."""
    window_bytes: int = 0
    window_pushes: int = 0
    line_bytes_per_s: float | None = None
    merge_bytes_per_s: float | None = None

    def begin(self, now_s: float) -> None:
        """It has one push more to fetch."""
        if not self.out:
            self.since_s = now_s
        self.out += 1

    def end(self, now_s: float, size: int = 0) -> None:
        """It has fetched one, of so many bytes, or is not waited for any more."""
        if self.out:
            self.window_s += max(0.0, now_s - self.since_s)
        self.since_s = now_s
        self.out = max(0, self.out - 1)
        self.window_bytes += size
        self.window_pushes += size > 0
        if self.window_pushes < WINDOW_PUSHES or not self.window_s:
            return
        rate = self.window_bytes / self.window_s
        best = self.line_bytes_per_s or 0.0
        self.line_bytes_per_s = max(rate, best - FADES * (best - rate))
        self.window_s, self.window_bytes, self.window_pushes = 0.0, 0, 0

    def merged(self, size: int, seconds: float) -> None:
        """It merged pushes of so many bytes."""
        if seconds <= 0.0:
            return
        former, rate = self.merge_bytes_per_s, size / seconds
        mean = rate if former is None else MERGE_KEPT * former + (1 - MERGE_KEPT) * rate
        self.merge_bytes_per_s = mean

    @property
    def bytes_per_s(self) -> float | None:
        """None while too little is known."""
        if self.line_bytes_per_s is None or self.merge_bytes_per_s is None:
            return None
        return min(self.line_bytes_per_s, self.merge_bytes_per_s)


@dataclass(slots=True)
class Assignment:
    """Of all fragments."""

    sizes: tuple[int, ...]
    """Of each fragment, in elements."""
    mergers: dict[int, bytes] = field(default_factory=dict)
    """By fragment, as far as one was chosen."""
    loads: dict[bytes, Load] = field(default_factory=dict)

    def load(self, merger: bytes) -> Load:
        return self.loads.setdefault(merger, Load())

    def choose(self, fragment: int, able: Sequence[bytes]) -> bytes:
        """Who merges this fragment from now on. able: who may, at least one; on ties the first."""
        if len(able) == 1:
            self.mergers[fragment] = able[0]
            return able[0]
        costs = self._costs(fragment, able)
        best = min(able, key=costs.__getitem__)
        former = self.mergers.get(fragment)
        if former in costs and costs[former] <= STAYS * costs[best]:
            best = former
        self.mergers[fragment] = best
        return best

    def _costs(self, fragment: int, able: Sequence[bytes]) -> dict[bytes, float]:
        """Seconds for a cycle of all that each would have with this fragment, up to a factor."""
        elements = dict.fromkeys(able, self.sizes[fragment])
        for other, merger in self.mergers.items():
            if other != fragment and merger in elements:
                elements[merger] += self.sizes[other]
        paces = self._paces(able)
        return {merger: elements[merger] / paces[merger] for merger in able}

    def _paces(self, able: Sequence[bytes]) -> dict[bytes, float]:
        """Of whom nothing is known yet is thought as fast as the others are on average."""
        known = {
            one: pace
            for one in able
            if (load := self.loads.get(one)) is not None and (pace := load.bytes_per_s)
        }
        usual = sum(known.values()) / len(known) if known else 1.0
        return {one: known.get(one, usual) for one in able}
