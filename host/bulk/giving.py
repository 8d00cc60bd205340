"""How fast a host gives merged payloads: one copy is promised, the next once the line is free.

A learner that has the whole of a payload gives it on; two that have halves of it do not. A syncer
whose line is behind says no as well: what it promised would come too late for everybody.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import Digest, NodeKey

SYNCER_AHEAD_S: Final = 10.0
"""Of its line's time a syncer promises so much: less than learners wait before they ask out of
turn."""

PROMISED_S: Final = 60.0
"""A copy is asked for in pieces. Whoever was promised one may ask for pieces of it until so long
after the last one, and after the time when all of it should have left."""


@dataclass(slots=True)
class Giving:
    """Copies that this host promised."""

    bytes_per_s: float = math.inf
    """Of its owner's limit."""
    ahead_s: float = 0.0
    """So much of the line's time may be promised ahead; 0: one copy after the other."""
    line_bytes_per_s: float = math.inf
    """Of what the line takes, as far as that is known."""
    _free_s: float = -math.inf
    _promised: OrderedDict[tuple[NodeKey, Digest], float] = field(default_factory=OrderedDict)
    """To whom which payload, and until when; the one that ends first comes first."""

    def measured(self, bytes_per_s: float | None) -> None:
        """What the line takes; None where nobody knows."""
        self.line_bytes_per_s = math.inf if bytes_per_s is None else bytes_per_s

    def may_give(
        self, to: NodeKey, payload: Digest, size: int, now_s: float, *, is_owed: bool = False
    ) -> bool:
        """Whether to give this payload of so many bytes now, or a piece of it; if so, the next copy
        has to wait for it. is_owed: nobody else has it, and what waits for it cannot wait."""
        rate = min(self.bytes_per_s, self.line_bytes_per_s)
        if rate <= 0:
            return False
        self._forget_ended(now_s)
        if (to, payload) not in self._promised:
            if not is_owed and self.backlog_s(now_s) > self.ahead_s:
                return False
            self._free_s = max(self._free_s, now_s) + size / rate
        # Neither time ever goes back, so what was promised last ends last.
        self._promised[to, payload] = max(self._free_s, now_s) + PROMISED_S
        self._promised.move_to_end((to, payload))
        return True

    def _forget_ended(self, now_s: float) -> None:
        """Drops the promises that have ended, without a look at the others: there may be ten
        thousand, and each piece of a payload is asked for."""
        promised = self._promised
        while promised and promised[next(iter(promised))] <= now_s:
            promised.popitem(last=False)

    def backlog_s(self, now_s: float) -> float:
        """Seconds until what was promised has left."""
        return max(0.0, self._free_s - now_s)
