"""How fast text is leased to a learner: as fast as it may honestly read, and not much faster.

A push can claim no more than the text leased to its session, so whoever gets text faster than it
can read has something to lie with. How fast a learner reads is what its merged pushes prove. Each
learner has a bucket of sequences that fills at its rate and holds what `RESERVE_S` bring, so that
one that becomes faster goes on while it proves so.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

OWN_FACTOR = 1.5
"""Of its own median speed, at which a learner is leased text once that is known."""

SWARM_FACTOR = 2.0
"""Of the fast learners' speed, at which one is leased text whose own speed is not known."""

FAST_QUANTILE = 0.9

SPEEDS_KEPT = 11
SPEEDS_MIN = 6
"""Measurements before a learner's speed counts as known."""

OTHERS_MIN = 2
"""Others whose speed is seen, before anybody has to wait for text: two cannot outvote a third."""

SEEN_FACTOR = 4.0
"""Of the speed that fast learners' heartbeats show, while too few are proven."""

MEASURE_S_MIN = 15.0
"""A speed is measured over so long at least: merges come in bunches."""

RESERVE_S = 600.0

LEASE_S_MIN = 15.0
"""Who has to wait gets text for so long at once, so that leases do not fill the log."""

WAIT_S_MIN = 0.1
"""Until it is looked again: a bucket may lack what rounding took."""

BLOCKS_HELD_MAX = 4096
"""Blocks that a session may hold of which nothing was merged, where its speed is not known."""

HELD_S = 300.0
"""What one may hold lasts so long at its speed: a learner keeps text for four minutes without a
syncer, and what it reads counts as held until it is merged."""

CYCLES_MIN = 4
"""A bucket holds at least what so many cycles of H local steps read, and so may a session."""


@dataclass(slots=True)
class Supply:
    """What one key was leased and how fast it read, in whichever session."""

    level: float = math.inf
    """Sequences that it may be leased now."""
    filled_s: float = 0.0
    speeds: list[float] = field(default_factory=list)
    """Sequences per second that merged pushes proved, newest last."""
    speed: float | None = None
    """Their median; None while they are few."""
    incarnation: int = -1
    read: int = 0
    """Sequences of that session's line that were done with when its speed was last measured."""
    read_s: float = 0.0

    def proved(self, incarnation: int, read: int, now_s: float, *, stood: bool) -> bool:
        """A merged push shows that this session is done with so many sequences.

        stood: it stood still since the last measurement, or was not heard: what it read since then
        says less than how fast it can read, so that only a higher speed than known counts. Whether
        there was a measurement.
        """
        if incarnation != self.incarnation:
            self.incarnation, self.read, self.read_s = incarnation, read, now_s
            return True
        if read <= self.read or now_s < self.read_s + MEASURE_S_MIN:
            return False
        speed = (read - self.read) / (now_s - self.read_s)
        self.read, self.read_s = read, now_s
        if not stood or speed > (self.speed or 0.0):
            self.speeds.append(speed)
            del self.speeds[:-SPEEDS_KEPT]
            if len(self.speeds) >= SPEEDS_MIN:
                self.speed = median(self.speeds)
        return True

    def fill(self, rate: float, most: float, now_s: float) -> None:
        """Time passes, at so many sequences per second; the bucket holds `most`."""
        self.level = min(most, self.level + rate * (now_s - self.filled_s))
        self.filled_s = now_s


@dataclass(slots=True)
class TextSupply:
    """The buckets of all keys. Everything is counted in sequences."""

    local_steps: int
    """H."""
    step_sequences: int
    """The most that a local step reads."""
    block_sequences: int
    supplies: dict[bytes, Supply] = field(default_factory=dict)
    _speeds: list[float] | None = None
    """All that are known, lowest first; None once one may have changed. Many ask between two
    merges, and each would sort them anew."""

    def proved(
        self, key: bytes, incarnation: int, read: int, now_s: float, *, stood: bool = False
    ) -> bool:
        """A push of this session that counted was merged. read: as `LeaseBook.read`.

        stood: it stood still for a time since the last measurement. Whether this was one.
        """
        is_measured = self._of(key).proved(incarnation, read, now_s, stood=stood)
        if is_measured:
            self._speeds = None
        return is_measured

    def knows_others(self, key: bytes) -> bool:
        """Whether so many others have proven their speed that `seen` does not matter for a key."""
        return len(self._sorted()) - (self._of(key).speed is not None) >= OTHERS_MIN

    def _sorted(self) -> list[float]:
        if self._speeds is None:
            self._speeds = sorted(s.speed for s in self.supplies.values() if s.speed is not None)
        return self._speeds

    def rate(self, key: bytes, seen: Mapping[bytes, float]) -> float | None:
        """Sequences per second at which this key is leased text; None for no bound.

        1.5 times its own median speed, and not less than the 90th percentile of the others; twice
        that percentile while its own speed is not known. seen: sequences per second that
        heartbeats show of learners that train; they serve while others have proven nothing.
        """
        own, others, factor = self._of(key).speed, self._sorted(), SWARM_FACTOR
        skipped = len(others) if own is None else bisect_left(others, own)
        if not self.knows_others(key):
            others = sorted(speed for other, speed in seen.items() if speed > 0 and other != key)
            skipped, factor = len(others), SEEN_FACTOR
        count = len(others) - (skipped < len(others))
        if count < OTHERS_MIN:
            return None
        at = math.floor(FAST_QUANTILE * (count - 1))
        fast = others[at + (at >= skipped)]
        return factor * fast if own is None else max(OWN_FACTOR * own, fast)

    def blocks(
        self, key: bytes, wanted: int, now_s: float, *, held: int, seen: Mapping[bytes, float]
    ) -> tuple[int, float]:
        """How many of these blocks the key gets now; if none, after how many seconds some.

        held: sequences leased to it and unread. Of what it was leased before its rate was known,
        only these count against it. seen: as for `rate`.
        """
        rate, supply = self.rate(key, seen), self._of(key)
        if rate is None:
            supply.level = math.inf
            return wanted, 0.0
        most = max(rate * RESERVE_S, self._cycles, 2 * self.block_sequences)
        if math.isinf(supply.level):
            supply.level, supply.filled_s = most - held, now_s
        supply.fill(rate, most, now_s)
        least = max(1, min(wanted, math.floor(rate * LEASE_S_MIN / self.block_sequences)))
        lacking = least * self.block_sequences - supply.level
        if lacking > 0:
            return 0, max(WAIT_S_MIN, lacking / rate)
        return min(wanted, math.floor(supply.level / self.block_sequences)), 0.0

    def held_max(self, key: bytes) -> int:
        """Blocks that a session of this key may hold of which nothing was merged.

        More than that would be a hoard; fewer than H local steps read would never be handed in.
        """
        lasting = HELD_S * (self._of(key).speed or 0.0)
        return max(BLOCKS_HELD_MAX, math.ceil(max(lasting, self._cycles) / self.block_sequences))

    @property
    def _cycles(self) -> int:
        return CYCLES_MIN * self.local_steps * self.step_sequences

    def take(self, key: bytes, sequences: int) -> None:
        """The key is leased so many."""
        self._of(key).level -= sequences

    def give_back(self, key: bytes, sequences: int) -> None:
        """So many of them went back unread; nobody can claim them any more."""
        self._of(key).level += sequences

    def forget(self, here: Collection[bytes], now_s: float) -> None:
        """Keep what matters: of who is here, and of who left with little in its bucket."""
        if len(self.supplies) <= 2 * len(here):
            return
        for key, one in list(self.supplies.items()):
            if key not in here and (math.isinf(one.level) or now_s > one.filled_s + RESERVE_S):
                del self.supplies[key]
                self._speeds = None

    def _of(self, key: bytes) -> Supply:
        return self.supplies.setdefault(key, Supply())
