"""How fast the log moves, and when the run will be over: measured by each daemon from its own log.

Merges come in bursts, and some swarms merge ten times a second, others every few minutes. So the
window is as long as enough merges take, and rates are measured from merge to merge.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from protocol.status import PaceStatus

STEPS: Final = 64
"""Global steps of a window, or four times all fragments if that is more: a fragment counts for what
was handed in since its last merge."""

WINDOW_S_MIN: Final = 180.0
WINDOW_S_MAX: Final = 6 * 3600.0

SEEN_MIN: Final = 9
SPAN_S_MIN: Final = 30.0
"""Of fewer moments with merges, or in less time, nothing is concluded."""

BLOCKS: Final = 6
"""Into which a window is parted, to see how much its parts differ."""

SPREAD_MIN: Final = 0.1
"""No estimate is surer than this."""

SEEN_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    step: int
    tokens: int


@dataclass(slots=True)
class PaceMeter:
    """Takes in the log every second or so."""

    fragments: int
    _begun_at: int | None = None
    """The global step at which the daemon met the log."""
    _seen: deque[_Seen] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))

    def observe(self, step: int, tokens: int, now_s: float) -> None:
        """The log stands there now; now_s: monotonic."""
        if self._seen:
            last = self._seen[-1]
            if step < last.step or tokens < last.tokens:
                self._seen.clear()  # Another history, or tokens were taken back.
            elif step == last.step:
                return
        elif self._begun_at is None or step <= self._begun_at:
            # When that step came is not known, and time without learners says nothing of a pace.
            self._begun_at = step
            return
        self._seen.append(_Seen(now_s, step, tokens))
        self._forget(now_s)

    def told(self, left_tokens: int | None, now_s: float) -> PaceStatus:
        """What that says. left_tokens: of the budget; None where it is not known."""
        still_s = now_s - self._seen[-1].at_s if self._seen else None
        found = PaceStatus(still_s=still_s)
        if len(self._seen) < SEEN_MIN:
            return found
        first, last = self._seen[0], self._seen[-1]
        span_s = last.at_s - first.at_s
        if span_s < SPAN_S_MIN:
            return found
        found.gap_s = span_s / (last.step - first.step)
        found.tokens_per_s = (last.tokens - first.tokens) / span_s
        if left_tokens is None or found.tokens_per_s <= 0:
            return found
        spread = max(SPREAD_MIN, min(0.5, 2.0 * self._error()))
        left_s = max(0, left_tokens) / found.tokens_per_s
        found.left_s = (left_s * (1.0 - spread), left_s * (1.0 + spread))
        return found

    def _error(self) -> float:
        """Standard error of the rate, as a share of it, from blocks of the window."""
        marks = [round(at * (len(self._seen) - 1) / BLOCKS) for at in range(BLOCKS + 1)]
        rates = []
        for one, other in pairwise(marks):
            begin, end = self._seen[one], self._seen[other]
            if end.at_s > begin.at_s:
                rates.append((end.tokens - begin.tokens) / (end.at_s - begin.at_s))
        mean = sum(rates) / max(1, len(rates))
        if len(rates) < 2 or mean <= 0:
            return 0.5
        variance = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)
        return math.sqrt(variance / len(rates)) / mean

    def _forget(self, now_s: float) -> None:
        """What lies before the window."""
        steps = max(STEPS, 4 * self.fragments)
        last = self._seen[-1]
        while len(self._seen) > SEEN_MIN:
            second = self._seen[1]
            age_s = now_s - second.at_s
            is_old = last.step - second.step >= steps and age_s >= WINDOW_S_MIN
            if not is_old and age_s <= WINDOW_S_MAX:
                return
            self._seen.popleft()
