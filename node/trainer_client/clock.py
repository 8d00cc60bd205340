"""Seconds of a trainer's life, for its goodput and for the load of its device."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """Seconds of one trainer's life, for its goodput and for the load of its device."""

    begun_s: float = 0.0
    work_s: float = 0.0
    """In local steps, with the rests of a throttled one."""
    busy_s: float = 0.0
    """In local steps, without them."""
    evaluating_s: float = 0.0
    paused_s: float = 0.0
    _pause_s: float | None = None
    """When the present pause began."""

    def alive_s(self) -> float:
        """Since the first local step could have begun, less evaluation and pauses."""
        now_s = time.monotonic() if self._pause_s is None else self._pause_s
        lost_s = self.evaluating_s + self.paused_s
        return now_s - self.begun_s - lost_s if self.begun_s else 0.0

    def pause(self) -> None:
        """Nobody expects local steps from now on."""
        if self._pause_s is None:
            self._pause_s = time.monotonic()

    def go_on(self) -> None:
        """Local steps are expected again."""
        if self._pause_s is not None:
            self.paused_s += time.monotonic() - self._pause_s
            self._pause_s = None
