"""A swarm that fell in two: hosts that see one another, and not the other half.

Each half works for itself: its table is whole, its hosts answer. What gives a split away is who is
missing, or that two hosts prove at once that they hold the seat. A moment of that is normal, at a
start or an election, so it has to last.

Sans IO: the owner says what it sees, and dials hosts known from before while `trouble` is there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from protocol.ids import NodeKey, short

CUT_OFF_S: Final = 20.0
"""A syncer that is restarted is back within this, and announces itself."""

ALONE_S: Final = 30.0
OFFLINE_S: Final = 5.0
"""A wifi that roams is back within this."""

HEADS_S: Final = 60.0
"""Two lives of what a deposed leader announced last."""

NAMES_MAX: Final = 4

Kind = Literal["whole", "offline", "alone", "cut-off", "two-heads"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What one host sees of its swarm."""

    here: int
    """Other hosts that it is connected with."""
    voters: Collection[NodeKey]
    """Who may lead or vote: those of the charter, or those that the join link names; not itself."""
    seen: Collection[NodeKey]
    """Of these, who is connected."""
    follows: bool
    """Whether it leads, or hears a leader."""
    heads: Collection[NodeKey] = ()
    """Hosts that prove at present that they hold the seat."""
    away: int = 0
    """Hosts known from before that are not connected."""
    no_network: str = ""
    """That the host has no network at all, and what to do; empty if it has."""


class PartitionWatch:
    """Tells a lasting split from a moment's confusion."""

    def __init__(self) -> None:
        self.kind: Kind = "whole"
        """What is the case, for long enough."""
        self._apparent: Kind = "whole"
        self._since_s = 0.0
        self._sight = Sight(0, (), (), follows=True)

    def look(self, sight: Sight, now_s: float) -> bool:
        """Takes in what is seen now; whether `kind` changed."""
        apparent, before = _apparent(sight), self.kind
        if apparent != self._apparent:
            self._apparent, self._since_s = apparent, now_s
        self._sight = sight
        if apparent == "whole" or now_s - self._since_s >= _PATIENCE_S[apparent]:
            self.kind = apparent
        elif self.kind != "whole":
            self.kind = apparent  # From one trouble to another: that it is well is not so.
        return self.kind != before

    @property
    def trouble(self) -> str:
        """The split in one sentence, and what is being done; empty while there is none."""
        sight = self._sight
        match self.kind:
            case "offline":
                return f"{sight.no_network[:1].upper()}{sight.no_network[1:]}."
            case "alone":
                return (
                    f"No other host is reached; {_count(sight.away, 'host')} known from before "
                    f"{'is' if sight.away == 1 else 'are'} dialled again and again."
                )
            case "cut-off":
                return (
                    f"The swarm is split: {_count(sight.here, 'host')} here, and none of those "
                    f"that may lead ({_names(sight.voters)}). They and all hosts known from "
                    "before are dialled again and again."
                )
            case "two-heads":
                return (
                    f"The swarm is split: {_names(sight.heads)} prove at once that they lead. The "
                    "higher term wins as soon as the halves see each other."
                )
        return ""


_PATIENCE_S: Final[dict[Kind, float]] = {
    "whole": 0.0,
    "offline": OFFLINE_S,
    "alone": ALONE_S,
    "cut-off": CUT_OFF_S,
    "two-heads": HEADS_S,
}


def _apparent(sight: Sight) -> Kind:
    if sight.no_network:
        return "offline"  # Whatever else is missed, is missed because of that.
    if len(set(sight.heads)) > 1:
        return "two-heads"
    if sight.here == 0:
        return "alone" if sight.away > 0 else "whole"
    if not sight.follows and sight.voters and not set(sight.seen) & set(sight.voters):
        return "cut-off"
    return "whole"


def _names(keys: Collection[NodeKey]) -> str:
    named = [short(key) for key in sorted(keys)]
    more = f" and {len(named) - NAMES_MAX} more" if len(named) > NAMES_MAX else ""
    return ", ".join(named[:NAMES_MAX]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
