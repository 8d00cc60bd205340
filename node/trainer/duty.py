"""How much of the time a trainer works: short rests between micro-batches and local steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from node.trainer.failures import StepAbandoned

BURST_S: Final = 0.2
"""A throttled trainer works for about so long before it rests, also within a local step."""

Glance = Callable[[float], bool]
"""Waits up to so many seconds for a command that allows no more work; whether one is there."""


class DutyCycle:
    """The rests of one rank."""

    def __init__(self, glance: Glance, duty_frac: float = 1.0) -> None:
        self.duty_frac = duty_frac
        """Share of the time in which it works."""
        self._glance = glance
        self._unrested_s = 0.0
        """Seconds of work for which it has not rested yet."""
        self.paid_s = 0.0
        """... and for which it has, since `begin`."""

    def begin(self) -> None:
        """A new piece of work."""
        self._unrested_s = self.paid_s = 0.0

    def owed_s(self, work_s: float) -> float:
        """The rest that so much work asks for."""
        return work_s * (1.0 / self.duty_frac - 1.0)

    def between(self, work_s: float) -> float:
        """Rests, if enough was worked, until the work is the share of the time that it may be.

        Returns the seconds that it took. Raises StepAbandoned as soon as a command that allows no
        more work is waiting.
        """
        self._unrested_s += work_s
        started, owed_s = time.monotonic(), 0.0
        if self._unrested_s >= BURST_S:
            owed_s = self.owed_s(self._unrested_s)
            self.paid_s += self._unrested_s
            self._unrested_s = 0.0
        if self._glance(owed_s):
            raise StepAbandoned
        return time.monotonic() - started
