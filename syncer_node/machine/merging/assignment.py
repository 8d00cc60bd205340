"""Which syncer merges which fragment: shares of the model as large as their measured capacity.

What is measured is how many bytes of pushes a merger took in for each second in which it had
something to do: its line and its processor together, whichever is slower. A fragment stays where it
is while that costs little: with it lies what quantising left over of its last merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

STAYS = 1.05
"""A fragment moves only where another merger would be done with all that it has in so much less."""

KNOWN_S = 5.0
"""Busy seconds before what was measured of a merger is believed."""

KEPT_S = 300.0
"""Busy seconds after which what was measured counts half: lines change."""


@dataclass(slots=True)
class Load:
    """What one merger had to do, and how fast it was done."""

    out: int = 0
    """Fetches and merges that it is at."""
    since_s: float = 0.0
    busy_s: float = 0.0
    taken_bytes: float = 0.0

    def begin(self, now_s: float) -> None:
        """It has one thing more to do."""
        if not self.out:
            self.since_s = now_s
        self.out += 1

    def end(self, now_s: float, size: int = 0) -> None:
        """It has done one thing, with so many bytes of a push, or is not waited for any more."""
        self.busy_s += max(0.0, now_s - self.since_s)
        self.since_s = now_s
        self.out = max(0, self.out - 1)
        self.taken_bytes += size
        if self.busy_s > KEPT_S:
            self.busy_s, self.taken_bytes = self.busy_s / 2, self.taken_bytes / 2

    @property
    def bytes_per_s(self) -> float | None:
        """None while too little is known."""
        return self.taken_bytes / self.busy_s if self.busy_s >= KNOWN_S else None


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
