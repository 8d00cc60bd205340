"""How much of a daemon's event loop the messages of one peer may take.

What counts is the time that they take here and not their number: a signature that is false costs
as much as a true one, and an offence a line in the log. Who is over its share is not read for a
while; what it sends meanwhile waits in its own memory.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Of a core, for one peer. A syncer of three honest learners takes as much for all that it does."""

BURST_S: Final = 0.5
"""Time in which nothing came may be caught up for so long: fifty milliseconds of the loop."""

PEERS_MAX: Final = 2048
"""Beyond so many, those that are not over their share are forgotten."""


class MessagePace:
    """When each peer may be read again; a new stream of a key is no new peer."""

    def __init__(self) -> None:
        self._free_s: dict[bytes, float] = {}
        """Peer -> when what it has taken so far is within its share."""

    def pause_s(self, peer: bytes, spent_s: float, now_s: float) -> float:
        """Books what a message of this peer took of the loop; seconds until its next is read."""
        since_s = max(self._free_s.get(peer, 0.0), now_s - BURST_S)
        free_s = self._free_s[peer] = since_s + spent_s / SHARE
        if len(self._free_s) > PEERS_MAX:
            self._free_s = {who: at_s for who, at_s in self._free_s.items() if at_s > now_s}
        return max(0.0, free_s - now_s)
