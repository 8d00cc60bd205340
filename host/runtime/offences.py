"""Offences of peers on their way to the log: each kind is told at once, and then counted.

A peer may offend as often as it likes. A line for each offence would fill the log, push everything
older out of it within minutes, and cost more than the offence itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocol.trace import Fact, PeerMisbehaved

TOLD_EVERY_S: Final = 10.0
"""Of one reason at one peer."""

KINDS_MAX: Final = 1024
"""Beyond so many, what was told longest ago is forgotten."""


class Offences:
    """What was told lately."""

    def __init__(self) -> None:
        self._told: dict[tuple[bytes, str], tuple[float, int]] = {}
        """Peer and reason -> when it was told, and how many have not been since."""

    def worth_telling(self, fact: Fact, now_s: float) -> Fact | None:
        """The fact; an offence with how many like it went before it untold, or None for one that
        is to go untold as well."""
        if not isinstance(fact, PeerMisbehaved):
            return fact
        kind = (fact.peer, fact.reason)
        told_s, untold = self._told.get(kind, (-TOLD_EVERY_S, 0))
        if now_s < told_s + TOLD_EVERY_S and kind in self._told:
            self._told[kind] = told_s, untold + 1
            return None
        self._told.pop(kind, None)
        if len(self._told) >= KINDS_MAX:
            del self._told[next(iter(self._told))]
        self._told[kind] = now_s, 0
        return replace(fact, detail=f"{fact.detail} ({untold} times before)") if untold else fact
