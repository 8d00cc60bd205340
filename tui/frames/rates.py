"""How fast the swarm commits tokens, from snapshots seen one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from protocol.status import DaemonStatus, WitnessStatus

WINDOW_S = 60.0
"""Merges come in bursts; a minute of them gives an estimate that does not jump."""

SPAN_S_MIN = 3.0


class Rates:
    """Committed tokens per second, for each daemon by its key."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def observe(self, statuses: Iterable[DaemonStatus], now_s: float) -> None:
        """Takes in what the daemons said at `now_s`, monotonic."""
        for status in statuses:
            if isinstance(status, WitnessStatus):
                continue  # It has no model to train.
            seen = self._seen.setdefault(status.key, deque())
            if seen and status.swarm.tokens < seen[-1][1]:
                seen.clear()  # another history: the daemon began anew
            seen.append((now_s, status.swarm.tokens))
            while now_s - seen[0][0] > WINDOW_S:
                seen.popleft()

    @property
    def tokens_per_s(self) -> dict[str, float]:
        """The rates that can be told already."""
        rates = {}
        for key, seen in self._seen.items():
            (first_s, first), (last_s, last) = seen[0], seen[-1]
            if last_s - first_s >= SPAN_S_MIN:
                rates[key] = (last - first) / (last_s - first_s)
        return rates
