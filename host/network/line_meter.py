"""How fast a line sends, measured while it has more to send than it takes.

A connection that holds bytes back says so, and says how many of them left when it holds none any
more. What the kernel swallows at once, and what a quiet line could send, nobody knows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

WINDOW_S: Final = 1.0
WINDOW_ENDINGS: Final = 16
"""A rate is taken over at least so long, and so many times that a connection got rid of all."""

SEVERAL: Final = 1.5
"""Connections that held bytes back at the same time, on average: from here on it is the line that
was slow, and not the one that reads."""

HELD_S_MAX: Final = 20.0
"""A connection that holds bytes back for longer is broken, and shows nothing."""

FADES: Final = 0.2
"""Share by which the best rate comes closer to a lower one of several connections."""


@dataclass(slots=True)
class LineMeter:
    """One direction of one host. Any thread may call it.

    The rate is that of one connection, from when it held bytes back until it held none, times the
    number of connections that did so at the same time, both in the mean.
    """

    bytes_per_s: float | None = None
    """At best, and lately; None until there was too much to send for once."""
    _since_s: dict[Hashable, float] = field(default_factory=dict)
    """Connections that hold bytes back, and since when."""
    _seen_s: float = 0.0
    """Up to when the next two are told."""
    _busy_s: float = 0.0
    """Of the window, as far as anybody held bytes back."""
    _held_s: float = 0.0
    """The same, added up over connections."""
    _bytes: int = 0
    _bytes_s: float = 0.0
    """In which these left, added up over connections."""
    _endings: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def holds(self, connection: Hashable, now_s: float) -> None:
        """A connection holds bytes back."""
        with self._lock:
            self._pass(now_s)
            self._since_s.setdefault(connection, now_s)

    def left(self, connection: Hashable, count: int, now_s: float) -> None:
        """It holds nothing back any more; count: bytes that left meanwhile, which may be none where
        the kernel only made more room."""
        with self._lock:
            self._pass(now_s)
            since_s = self._since_s.pop(connection, None)
            if since_s is None:
                return
            if now_s - since_s > HELD_S_MAX:
                self._begin()
                return
            self._bytes += count
            self._bytes_s += now_s - since_s
            self._endings += 1
            if self._busy_s >= WINDOW_S and self._endings >= WINDOW_ENDINGS and self._bytes_s > 0.0:
                self._close()

    def broke(self, connection: Hashable, now_s: float) -> None:
        """It is over. What it held back until then shows nothing."""
        with self._lock:
            self._pass(now_s)
            if self._since_s.pop(connection, None) is not None:
                self._begin()

    def _pass(self, now_s: float) -> None:
        """It is later."""
        if self._since_s:
            passed_s = max(0.0, now_s - self._seen_s)
            self._busy_s += passed_s
            self._held_s += passed_s * len(self._since_s)
        self._seen_s = now_s

    def _close(self) -> None:
        """The window is over. One connection alone shows what the line does at least."""
        together = self._held_s / self._busy_s
        rate, best = self._bytes / self._bytes_s * together, self.bytes_per_s or 0.0
        if rate > best or together >= SEVERAL:
            self.bytes_per_s = max(rate, best - FADES * (best - rate))
        self._begin()

    def _begin(self) -> None:
        """A new window."""
        self._busy_s, self._held_s, self._bytes, self._bytes_s = 0.0, 0.0, 0, 0.0
        self._endings = 0
