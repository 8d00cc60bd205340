"""How late a daemon's event loop is: what a message waits for before anybody looks at it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from protocol.errors import UserError

EVERY_S = 0.05
"""A timer this often costs about a thousandth of a core."""

EARLY_S = 0.002
"""The loop's timers count whole milliseconds and may come this much before they are due. What is
left is not waited for: it would take another wake-up, and often a third."""

KEPT_S = 60.0


class LoopWatch:
    """Lateness of timers over the last minute.

    A loop that stands still for half a second makes ten timers late, not one: those that could not
    even be set count as well, each with what was left of the wait. Otherwise the worst moments
    would be the ones that are measured least.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        """(when it was due, seconds that it came late), oldest first."""

    async def run(self) -> None:
        """Measure for as long as the daemon runs."""
        due_s = time.monotonic() + EVERY_S
        while True:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = self.woke(due_s, time.monotonic())

    def woke(self, due_s: float, now_s: float) -> float:
        """Book a timer, and all that were due before now; when the next one is due."""
        due_s = max(due_s, now_s - KEPT_S)
        while due_s <= now_s + EARLY_S:
            self._samples.append((due_s, max(0.0, now_s - due_s)))
            due_s += EVERY_S
        while self._samples and self._samples[0][0] < now_s - KEPT_S:
            self._samples.popleft()
        return due_s

    def lag(self, over_s: float = KEPT_S) -> dict[str, float]:
        """p50_s, p99_s and max_s of the newest so many seconds; empty before the first timer."""
        if not self._samples:
            return {}
        since_s = self._samples[-1][0] - over_s
        late = sorted(late_s for due_s, late_s in self._samples if due_s > since_s)
        most = len(late) - 1
        return {"p50_s": late[most // 2], "p99_s": late[-(-most * 99 // 100)], "max_s": late[most]}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The control verb `loop_lag`: of the newest `over_s` seconds, a minute at most."""
        over_s = request.get("over_s", KEPT_S)
        if not isinstance(over_s, int | float) or not 0 < over_s <= KEPT_S:
            raise UserError(f"loop_lag takes a number of seconds from 0 to {KEPT_S:g}")
        return dict(self.lag(over_s))
