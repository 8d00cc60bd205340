"""What a joiner knows about one donor: what it holds, how it behaves, what it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

IN_FLIGHT_MIN = 3
"""Requests under way at one donor where more would only wait for each other."""

IN_FLIGHT_FIRST = 6
"""... and at one of which nothing is known yet."""

IN_FLIGHT_PER_DONOR_MAX = 10
"""Below the streams that a host serves to one peer: the others are for merged payloads."""

QUICK_S = 1.5
"""A donor that takes less over a chunk is asked for more at once. Every chunk waits for some round
trips, in which the line is idle unless other chunks are under way."""

SLUGGISH_S = 3.0
"""One that takes longer is asked for fewer: its line is full."""

ASK_AGAIN_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""A donor that lacked a version may be about to have it."""

BUSY_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Rest of a donor that serves as many as it may; busy longer than all of these, it is shunned."""

SHUN_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Rest of a donor that could not be reached or broke off."""

BLAME_S = 300.0
"""Rest of a donor that sent wrong bytes."""


def _step(steps: tuple[float, ...], times: int) -> float:
    return steps[min(times, len(steps) - 1)]


@dataclass(slots=True)
class Donor:
    """One host that may be asked."""

    key: bytes
    is_last_resort: bool = False
    is_listed: bool = True
    asks: set[int] = field(default_factory=set)
    """Numbers of the requests under way."""
    holds: set[int] = field(default_factory=set)
    """Fragments whose wanted version it holds."""
    taken: int = 0
    """Chunks asked of it so far."""
    chunk_s: float | None = None
    """About how long it takes over a chunk."""
    depth: int = IN_FLIGHT_FIRST
    """Requests that may be under way at once."""
    _lacks: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Fragment -> (when to ask again, how often it was asked in vain)."""
    _rest_until_s: float = 0.0
    _shunned_until_s: float = 0.0
    _failures: int = 0
    _busies: int = 0

    # Its state.

    def is_ready(self, now_s: float) -> bool:
        """Whether it may be asked for anything now."""
        return self.is_listed and now_s >= self._rest_until_s and not self.is_shunned(now_s)

    def is_shunned(self, now_s: float) -> bool:
        """Whether it failed us lately, so that nothing is expected of it."""
        return now_s < self._shunned_until_s

    def is_unknown(self, fragment: int, now_s: float) -> bool:
        """Whether it should be asked if it holds the wanted version of this fragment."""
        return fragment not in self.holds and not self.lacks_now(fragment, now_s)

    def lacks_now(self, fragment: int, now_s: float) -> bool:
        """Whether it said so just now."""
        return now_s < self._lacks.get(fragment, (0.0, 0))[0]

    def lacked(self, fragment: int) -> bool:
        """Whether it said so when it was asked last."""
        return fragment in self._lacks

    def is_promising(self, now_s: float) -> bool:
        """Whether nothing speaks against asking it."""
        return not self._lacks and not self.is_shunned(now_s)

    # What it did.

    def served(self, number: int, chunk_s: float | None) -> None:
        """It sent what was asked for; a whole chunk in so many seconds, where it was one."""
        self.asks.discard(number)
        self._failures = self._busies = 0
        if chunk_s is not None:
            former_s = chunk_s if self.chunk_s is None else self.chunk_s
            self.chunk_s = 0.7 * former_s + 0.3 * chunk_s
            self._deepen(chunk_s)

    def _deepen(self, chunk_s: float) -> None:
        if chunk_s < QUICK_S:
            self.depth = min(self.depth + 1, IN_FLIGHT_PER_DONOR_MAX)
        elif chunk_s > SLUGGISH_S:
            self.depth = max(self.depth - 1, IN_FLIGHT_MIN)

    def hold(self, fragment: int) -> None:
        """It holds the wanted version."""
        self.holds.add(fragment)
        self._lacks.pop(fragment, None)

    def lack(self, fragment: int, now_s: float) -> None:
        """It does not hold the wanted version."""
        self.holds.discard(fragment)
        _, times = self._lacks.get(fragment, (0.0, 0))
        self._lacks[fragment] = (now_s + _step(ASK_AGAIN_S, times), times + 1)

    def busy(self, now_s: float) -> None:
        """It serves as many as it may."""
        self.depth = IN_FLIGHT_MIN
        if now_s < self._rest_until_s:
            return  # Several requests, one cause.
        self._rest_until_s = now_s + _step(BUSY_S, self._busies)
        self._busies += 1
        if self._busies > len(BUSY_S):
            self.shun(now_s)

    def shun(self, now_s: float) -> None:
        """It cannot be reached, or broke off."""
        if not self.is_shunned(now_s):  # Several requests, one cause.
            self._shunned_until_s = now_s + _step(SHUN_S, self._failures)
            self._failures += 1

    def blame(self, now_s: float) -> None:
        """It sent wrong bytes."""
        self._shunned_until_s = now_s + BLAME_S

    def forget(self, fragment: int) -> None:
        """Another version of this fragment is wanted, or none."""
        self.holds.discard(fragment)
        self._lacks.pop(fragment, None)
