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
    measuring_s: float = 0.0
    """Of losses for the swarm, with the rests that this asks for, up to the last local step."""
    paused_s: float = 0.0
    _owed_s: float = 0.0
    """Rest that the local steps so far asked for and that was not taken yet."""
    _pause_s: float | None = None
    """When the present pause began."""

    def alive_s(self) -> float:
        """Since the first local step could have begun, less measuring and pauses."""
        now_s = time.monotonic() if self._pause_s is None else self._pause_s
        lost_s = self.measuring_s + self.paused_s
        return now_s - self.begun_s - lost_s if self.begun_s else 0.0

    def step(self, step_s: float, work_s: float, duty_frac: float) -> None:
        """A local step was made: `step_s` after the one before it, of which it worked `work_s`.

        A throttled device is a slower device, so the rest that a step asks for counts as work. It
        comes behind that step, so it is found in the time of the next.
        """
        asked_s = work_s * (1.0 / duty_frac - 1.0)
        rested_s = min(max(0.0, step_s - work_s), self._owed_s + asked_s)
        self._owed_s = min(asked_s, self._owed_s + asked_s - rested_s)
        self.work_s += work_s + rested_s
        self.busy_s += work_s

    def pause(self) -> None:
        """Nobody expects local steps from now on."""
        if self._pause_s is None:
            self._pause_s = time.monotonic()

    def go_on(self) -> None:
        """Local steps are expected again."""
        if self._pause_s is not None:
            self.paused_s += time.monotonic() - self._pause_s
            self._pause_s = None
