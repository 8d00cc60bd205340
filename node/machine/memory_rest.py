"""Growing rests after trainers that had too little memory: trying again at once helps nobody."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.backoff import Backoff

RESTS = Backoff((60.0, 300.0, 900.0, 3600.0))
STEADY_S = 600.0
"""A trainer that stepped for so long has memory enough: the next rest is a short one again."""


@dataclass(slots=True)
class MemoryRest:
    """One learner's."""

    words: str = ""
    """What its trainer lacks, and what would be enough; empty while one runs or may."""
    next_try_s: float = 0.0
    """Length of the rest, seconds."""
    _times: int = 0
    _ready_s: float = math.inf

    def begin(self, words: str) -> float:
        """A trainer had too little: the seconds until the next may try."""
        self.words, self._ready_s = words, math.inf
        self.next_try_s = RESTS.pause_s(self._times)
        self._times += 1
        return self.next_try_s

    def on_ready(self, now_s: float) -> None:
        """A trainer could step."""
        self.words, self._ready_s = "", now_s

    def on_stepped(self, now_s: float) -> None:
        """And does."""
        if now_s - self._ready_s >= STEADY_S:
            self._times = 0

    def on_changed(self) -> None:
        """The owner allows another amount: nothing is known of that."""
        self._times = 0
