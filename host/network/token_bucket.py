"""How fast bytes may leave: a token bucket, told the time by whoever sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

PIECE_BYTES = 64 << 10
"""One write of a paced transfer: with every stream in use and a slow rate, each still gets its
turn before its reader takes us for stalled."""

BURST_S = 0.05
"""What was not used lately may be caught up for this long."""


@dataclass(slots=True)
class TokenBucket:
    """A rate shared by all transfers that take from it, first come, first served, in any thread."""

    bytes_per_s: float
    _free_s: float = 0.0
    """When everything that was granted so far has left."""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def take(self, count: int, now_s: float) -> float:
        """Grants so many bytes; they may leave after this many seconds."""
        with self._lock:
            self._free_s = max(self._free_s, now_s - BURST_S) + count / self.bytes_per_s
            return max(0.0, self._free_s - now_s)
