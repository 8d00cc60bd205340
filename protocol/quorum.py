"""How many pushes a round needs, and how long it may wait for more.

The adaptive grace window follows Decoupled DiLoCo (arXiv 2604.21428): a round may spend, after its
quorum, a share gamma of the slack that its overlap leaves, slack = tau * xi_step - (xi_quorum +
xi_sync), each xi an exponential moving average. The paper merges one fragment per local step; a
project may merge one every H / P local steps, so here xi_step is the time between two openings.
The window is never negative, never longer than one local step of the slowest learner, and zero
until every average has been seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

EMA_FACTOR = 0.125
"""Weight of the newest observation; the published work does not name one."""


@dataclass(slots=True)
class MovingAverage:
    """Exponential moving average of seconds; None before the first observation."""

    value_s: float | None = None

    def observe(self, seconds: float) -> None:
        if self.value_s is None:
            self.value_s = seconds
        else:
            self.value_s += EMA_FACTOR * (seconds - self.value_s)


@dataclass(slots=True)
class GraceWindow:
    """Observed round times, and the grace they allow."""

    safety: float
    """gamma, 0..1."""
    overlap: int
    """tau, rounds in flight."""
    opening: MovingAverage = field(default_factory=MovingAverage)
    """Between two openings at the configured pace."""
    quorum: MovingAverage = field(default_factory=MovingAverage)
    """From opening to the K-th arrival."""
    sync: MovingAverage = field(default_factory=MovingAverage)
    """From closing to the broadcast."""

    def slack_s(self) -> float | None:
        """Time a round could still lose without delaying the next; None while unknown."""
        opening, quorum, sync = self.opening.value_s, self.quorum.value_s, self.sync.value_s
        if opening is None or quorum is None or sync is None:
            return None
        return self.overlap * opening - (quorum + sync)

    def grace_s(self, slowest_step_s: float) -> float:
        """Seconds to wait after the quorum, 0 <= grace <= `slowest_step_s`."""
        slack = self.slack_s()
        if slack is None:
            return 0.0
        return min(max(0.0, self.safety * slack), slowest_step_s)


def effective_quorum(quorum: int, live: int, waited_s: float, patience_s: float) -> int:
    """K, or after the stated patience the number of those alive, and never less than one."""
    if waited_s < patience_s:
        return quorum
    return max(1, min(quorum, live))
