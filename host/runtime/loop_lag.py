"""How late a daemon's event loop is: what a message waits for before anybody looks at it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

from protocol.errors import UserError

EVERY_S: Final = 0.05
"""Between two timers of a loop that has something to do. Measured: a three-hundredth of a core."""

QUIET_EVERY_S: Final = 0.5
"""... of one that has next to nothing to do. Most of what an idle daemon took went into its timers:
somebody's battery pays for each of them. A short standstill in such a time may go unseen."""

BUSY_FRAC: Final = 0.03
"""A loop has something to do if its thread took more of a core than this since the timer before."""

QUIET_AFTER_S: Final = 2.0

EARLY_S: Final = 0.002
"""The loop's timers count whole milliseconds and may come this much before they are due. What is
left is not waited for: it would take another wake-up, and often a third."""

KEPT_S: Final = 60.0


class LoopLagMonitor:
    """Lateness of timers over the last minute.

    A loop that stands still for half a second makes ten timers late, not one: those that could not
    even be set count as well, each with what was left of the wait. Otherwise the worst moments
    would be the ones that are measured least.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        """(when it was due, seconds that it came late), oldest first."""
        self._looked: tuple[float, float] | None = None
        """When the last timer came, and what the thread had taken of the processor by then."""
        self._busy_s = 0.0

    async def run(self) -> None:
        """Measure for as long as the daemon runs."""
        due_s = time.monotonic() + EVERY_S
        while True:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            now_s = time.monotonic()
            due_s = self.woke(due_s, now_s) + self.rest_s(now_s, time.thread_time())

    def woke(self, due_s: float, now_s: float) -> float:
        """Book a timer, and all that were due before now; when the next one is due."""
        due_s = max(due_s, now_s - KEPT_S)
        while due_s <= now_s + EARLY_S:
            self._samples.append((due_s, max(0.0, now_s - due_s)))
            due_s += EVERY_S
        while self._samples and self._samples[0][0] < now_s - KEPT_S:
            self._samples.popleft()
        return due_s

    def rest_s(self, now_s: float, cpu_s: float) -> float:
        """How much later the next timer may come because the loop is quiet.

        cpu_s: processor seconds of the loop's thread so far.
        """
        if self._looked is None:
            self._busy_s = now_s
        else:
            looked_s, before_s = self._looked
            if cpu_s - before_s > BUSY_FRAC * (now_s - looked_s):
                self._busy_s = now_s
        self._looked = now_s, cpu_s
        return QUIET_EVERY_S - EVERY_S if now_s >= self._busy_s + QUIET_AFTER_S else 0.0

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
