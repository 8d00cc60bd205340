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


class Measuring:
    """How a measurement and local steps share a trainer: by turns, each about half of the time.

    So nothing that the swarm asks for ends anybody's training for longer than `BURST_S` of work, or
    one local step where that is longer.
    """

    def __init__(self, duty: DutyCycle) -> None:
        self.duty = duty
        self._worked_s = 0.0
        self._owed_s = 0.0
        """Measured since the last local steps."""
        self._step_s = 0.0
        """Work of the last local step amid a measurement."""
        self.is_amid = False
        """Something other than the measurement is going on."""
        self.turns_s = 0.0
        """Seconds that went into local steps and their rests since `begin`."""
        self._spent_s = 0.0

    def begin(self) -> None:
        """A new measurement."""
        self.duty.begin()
        self._worked_s = self._owed_s = self.turns_s = 0.0
        self.is_amid = False

    def on_worked(self, work_s: float) -> None:
        """A micro-batch was measured. Rests when it is time to, as `DutyCycle.between`."""
        self._worked_s += work_s
        self._owed_s += work_s
        self.duty.between(work_s)

    def on_turn(self, work_s: float, turn_s: float) -> None:
        """A local step was made; with its rest it took `turn_s`."""
        self._step_s = work_s
        self.turns_s += turn_s
        self._owed_s = max(0.0, self._owed_s - work_s)

    def spend(self, seconds: float) -> None:
        """So long it measured, or must rest for that."""
        self._spent_s += seconds

    def take_spent_s(self) -> float:
        """Seconds that measuring took since this was last asked, with its rests."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    @property
    def is_due(self) -> bool:
        """Whether it is the turn of local steps."""
        return self._owed_s >= max(BURST_S, self._step_s)

    @property
    def unpaid_s(self) -> float:
        """Seconds of measuring for which nothing has rested yet."""
        return max(0.0, self._worked_s - self.duty.paid_s)
