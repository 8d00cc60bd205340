"""What is known of the way to each peer: how long its answers take, and whether they come direct.

Nothing is sent for this. Each request whose first byte of an answer comes back is a measurement;
a busy peer only ever makes it longer, so the shortest of the latest ones is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from host.network.neighbours import ConnectedPeer
from protocol.ids import NodeKey

ANSWERS_KEPT = 8
PEERS_KEPT = 2048
RELAY = "/p2p-circuit"


class RoundTrips:
    """The latest answers of each peer."""

    def __init__(self) -> None:
        self._answers: dict[NodeKey, deque[float]] = {}

    def note(self, peer: NodeKey, seconds: float) -> None:
        """An answer's first byte came so long after the question."""
        kept = self._answers.get(peer)
        if kept is None:
            if len(self._answers) >= PEERS_KEPT:
                del self._answers[next(iter(self._answers))]
            kept = self._answers[peer] = deque(maxlen=ANSWERS_KEPT)
        kept.append(seconds)

    def of(self, peer: NodeKey) -> float | None:
        """The shortest of the latest; None before the first."""
        kept = self._answers.get(peer)
        return min(kept) if kept else None


def path_of(addresses: Iterable[str]) -> str:
    """`direct` if one of the connections is, `relayed` if none is, empty without any."""
    told = list(addresses)
    if not told:
        return ""
    return "relayed" if all(RELAY in one for one in told) else "direct"


def paths(peers: Iterable[ConnectedPeer]) -> dict[NodeKey, str]:
    """How each host that we have a connection with is reached: direct or relayed."""
    found: dict[NodeKey, list[str]] = {}
    for peer in peers:
        found.setdefault(peer.key, []).extend(peer.addresses)
    return {key: path_of(known) for key, known in found.items()}
