"""How fast bytes come in, and from whom, over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

WINDOW_S = 5.0
MIN_S = 0.5
"""A rate over less than this is noise."""


@dataclass(slots=True)
class ThroughputMeter:
    """Bytes by source over a sliding window."""

    _parts: deque[tuple[float, bytes, int]] = field(default_factory=deque)
    _begun_s: float = 0.0

    def add(self, source: bytes, count: int, now_s: float) -> None:
        self._sweep(now_s)
        if not self._parts:
            self._begun_s = now_s
        self._parts.append((now_s, source, count))

    def rate(self, now_s: float) -> float:
        """Bytes per second."""
        self._sweep(now_s)
        span_s = min(max(now_s - self._begun_s, MIN_S), WINDOW_S)
        return sum(count for _, _, count in self._parts) / span_s

    def sources(self, now_s: float) -> frozenset[bytes]:
        """Who sent something."""
        self._sweep(now_s)
        return frozenset(source for _, source, _ in self._parts)

    def bytes_of(self, sources: Container[bytes], now_s: float, span_s: float = WINDOW_S) -> int:
        """What these sent within so many last seconds; no more than the window."""
        self._sweep(now_s)
        since_s = now_s - span_s
        return sum(
            count for at_s, source, count in self._parts if at_s >= since_s and source in sources
        )

    def _sweep(self, now_s: float) -> None:
        while self._parts and self._parts[0][0] < now_s - WINDOW_S:
            self._parts.popleft()
