"""How many copies of a merged payload its merger sends: as many as its line carries between two.

A line at home takes far less out than in. Sixteen copies of each payload on it would take longer
than the learners need for the next, and everybody would wait for it. Where the line has the time,
it is spent: what a merger sends, no volunteer has to.

Where merges come faster than a learner gives one on, learners cannot keep up either. A merger then
sends what its line takes until a learner would have sent one copy: those at the end of the queue
still have theirs no later than from each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from protocol.limits import SYNCER_COPIES

GIVEN_BYTES_PER_S: Final = 6.25e6
"""What learners give merged payloads at, where their owners and lines allow: 50 Mbit/s."""

MERGES_KEPT: Final = 9
MERGES_MIN: Final = 3
"""Before, nothing is known of the time between two."""

BUSY: Final = 0.75
"""Share of the time between two merges in which copies leave. The rest is for records, for weights
that joiners fetch, and for a round that comes early."""


@dataclass(slots=True)
class Sending:
    """What one merger has to send, and how fast its line is."""

    up_bytes_per_s: float | None = None
    """As it said last; None while it does not know."""
    up_backlog_s: float = 0.0
    """What it needed then for what waited to be sent."""
    merges: tuple[tuple[float, int], ...] = ()
    """When it merged, and bytes of the payload."""

    def merged(self, size: int, now_s: float) -> None:
        """It merged a payload of so many bytes."""
        self.merges = (*self.merges, (now_s, size))[-MERGES_KEPT:]

    @property
    def copies(self) -> int:
        """Of the newest payload: 1 to `SYNCER_COPIES`, which is what one sends that knows little.

        The pause in the middle counts: merges come in bursts where learners wait for them.
        Whoever waits too long for one asks the syncer after all: what has not left yet goes off,
        or a line that fell behind would stay behind.
        """
        if self.up_bytes_per_s is None or len(self.merges) < MERGES_MIN:
            return SYNCER_COPIES
        times = [at_s for at_s, _ in self.merges]
        gap_s = median(later - earlier for earlier, later in pairwise(times))
        size = sum(size for _, size in self.merges) / len(self.merges)
        time_s = BUSY * max(gap_s, size / GIVEN_BYTES_PER_S) - self.up_backlog_s
        carried = self.up_bytes_per_s * time_s / size
        return max(1, min(SYNCER_COPIES, round(carried)))
