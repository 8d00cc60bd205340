"""Whether the syncer helps learners to feed a newcomer: where they are slow and it is not.

The syncer is there for merges, so learners give weights first. But how fast anybody gives shows
only once it was asked. So where learners would need long, the syncer is tried beside them for a
moment. It helps on if that at least doubles what comes; otherwise it is left alone, for longer
each time. Sans IO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from protocol.backoff import Backoff

LOOK_S: Final = 1.0
"""Learners are judged so long after the first bytes of one: lines are only about to open up."""

HOPELESS_LOOK_S: Final = 0.4
HOPELESS_S: Final = 60.0
"""Learners that would need so long are judged earlier: no line opens up that far."""

STARVED_S: Final = 5.0
"""Learners of which nothing comes, as those that are busy, are waited for so long."""

LONG_S: Final = 10.0
"""Learners that are done within this are left alone with it, however fast the syncer is."""

TRY_S: Final = 3.0
"""So long the syncer is tried. Its line has to open up as well."""

WINDOW_S: Final = 1.5
"""At the end of a try these last seconds are compared."""

HELP_S: Final = 30.0
"""So long the syncer helps before it is compared again."""

TRY_AGAIN: Final = Backoff((15.0, 30.0, 60.0, 120.0, 300.0))
"""Rests after tries by which hardly more came."""


def patience_s(waited_s: float, *, is_fed: bool) -> float | None:
    """Learners that need longer than this are helped, once it is known for so long how fast they
    are, or that nothing comes; None: it is too early to tell."""
    if not is_fed:
        return LONG_S if waited_s >= STARVED_S else None
    if waited_s >= LOOK_S:
        return LONG_S
    return HOPELESS_S if waited_s >= HOPELESS_LOOK_S else None


@dataclass(frozen=True, slots=True)
class Given:
    """Bytes that came within a time."""

    learners: int
    syncer: int


@dataclass(slots=True)
class Help:
    """One newcomer's help."""

    until_s: float = -math.inf
    """The syncer is asked as if it were a learner."""
    _before: float = 0.0
    """Bytes per second of learners alone, before the try; 0 once the syncer is known to help."""
    _failures: int = 0
    _rest_until_s: float = -math.inf

    def is_on(self, now_s: float) -> bool:
        """Whether the syncer helps now."""
        return now_s < self.until_s

    def is_due(self, now_s: float) -> bool:
        """Whether a period of help has ended that was not judged yet."""
        return math.isfinite(self.until_s) and now_s >= self.until_s

    def end(self) -> None:
        """Nothing is wanted any more."""
        self.until_s = -math.inf

    def judge(self, given: Given, now_s: float) -> None:
        """Ends help, or goes on with it; given: over the last WINDOW_S."""
        learners, syncer = given.learners / WINDOW_S, given.syncer / WINDOW_S
        if syncer >= learners and learners + syncer >= 2 * self._before:
            self.until_s, self._before, self._failures = now_s + HELP_S, 0.0, 0
            return
        self.until_s = -math.inf
        self._rest_until_s = now_s + TRY_AGAIN.pause_s(self._failures)
        self._failures += 1

    def consider(self, rate: float, left_bytes: int, now_s: float, long_s: float = LONG_S) -> None:
        """Begins a try if learners need longer than that; rate: bytes per second of all of them."""
        if now_s >= self._rest_until_s and left_bytes > rate * long_s:
            self.until_s, self._before = now_s + TRY_S, rate
