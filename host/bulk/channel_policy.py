"""Which way bulk data goes to each peer: over the engine's streams, or a direct channel beside it.

Streams always work, so nothing ever waits for the channel: it is asked for in the background once
there is something large to fetch, used while connections stand, and asked for again after a
failure with pauses that grow. Time and IO are outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from protocol.ids import NodeKey

WORTH_BYTES: Final = 256 << 10
"""Fetched from a peer, all in all, before a channel begins; less uses one that stands."""

RESTS_S: Final = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Pauses after failures in a row: a firewall does not open by itself, a cable does come back."""

FAULT_REST_S: Final = 3600.0
"""A peer that breaks the channel's rules stays on streams for so long."""

FAR_S: Final = 0.01
CONNECTIONS_NEAR: Final = 1
CONNECTIONS_FAR: Final = 4
"""One connection fills a short line. On a long one each lost packet slows only its own."""

CONNECTIONS_FAR_ALL: Final = 12
"""Over long lines to all peers together; each gets one at least. Three donors fill a line with four
each. With eight peers as many would be thirty-two, too many for a home's line: its queue runs over,
and what is lost has to be sent again."""

PEERS_MAX: Final = 2048

GONE_AT_ONCE: Final = "the direct connection ended at once"


class Way(Enum):
    """How far the channel to one peer is."""

    UNTRIED = "untried"
    ASKING = "asking"
    DIRECT = "direct"
    RESTING = "resting"
    BARRED = "barred"


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many bytes are about to be fetched from the peer; `rtt_s`: its answers take so long."""

    peer: NodeKey
    count: int
    rtt_s: float | None = None


@dataclass(frozen=True, slots=True)
class Agreed:
    """The negotiation is over and connections stand, dialled by us (who may then add some)."""

    peer: NodeKey
    is_dialler: bool


@dataclass(frozen=True, slots=True)
class Declined:
    """The negotiation is over without a connection. `is_away`: no stream reaches it either."""

    peer: NodeKey
    reason: str
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """One more connection stands, whoever dialled it."""

    peer: NodeKey


@dataclass(frozen=True, slots=True)
class Grown:
    """What Dial asked for is over, with or without success."""

    peer: NodeKey


@dataclass(frozen=True, slots=True)
class Carried:
    """A whole transfer came over the channel: it works."""

    peer: NodeKey


@dataclass(frozen=True, slots=True)
class Closed:
    """One connection fewer. `is_broken`: not because nobody needed it any more."""

    peer: NodeKey
    reason: str
    is_broken: bool


@dataclass(frozen=True, slots=True)
class Offended:
    """The peer broke the channel's rules."""

    peer: NodeKey
    reason: str


Event = Wanted | Agreed | Declined | Opened | Grown | Carried | Closed | Offended


@dataclass(frozen=True, slots=True)
class Negotiate:
    """Ask the peer for a channel; answer with Agreed or Declined."""

    peer: NodeKey


@dataclass(frozen=True, slots=True)
class Dial:
    """Open so many more connections to where the last one was agreed, then answer with Grown."""

    peer: NodeKey
    count: int


@dataclass(frozen=True, slots=True)
class CloseAll:
    """End all connections with the peer."""

    peer: NodeKey
    reason: str


Effect = Negotiate | Dial | CloseAll


@dataclass(slots=True)
class _Peer:
    way: Way = Way.UNTRIED
    wanted_bytes: int = 0
    connections: int = 0
    is_negotiating: bool = False
    is_dialler: bool = False
    is_growing: bool = False
    grows_at_s: float = 0.0
    failures: int = 0
    """In a row, without a transfer in between."""
    rests_until_s: float = 0.0
    reason: str = ""
    broke: str = ""
    """Why a connection broke since the last transfer that was carried; empty: none did."""


class ChannelPolicy:
    """The choice for each peer. `is_on`: whether this host wants direct channels at all."""

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._peers: dict[NodeKey, _Peer] = {}
        self._connected = 0
        """Peers with which there is a connection at least."""

    def way(self, peer: NodeKey) -> Way:
        """How far the channel to a peer is."""
        known = self._peers.get(peer)
        return known.way if known else Way.UNTRIED

    def reason(self, peer: NodeKey) -> str:
        """Why the last channel to a peer ended or did not come about; empty if it is in use."""
        known = self._peers.get(peer)
        return known.reason if known and known.way is not Way.DIRECT else ""

    @property
    def peers(self) -> list[NodeKey]:
        """Those with which a direct channel was ever a question."""
        return [peer for peer, known in self._peers.items() if known.way is not Way.UNTRIED]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """What is to be done now."""
        if not self._is_on:
            return []
        match event:
            case Wanted():
                return self._wanted(event, now_s)
            case Agreed() | Declined():
                self._negotiated(event, now_s)
            case Opened(peer):
                return self._opened(peer, now_s)
            case Grown(peer):
                known = self._know(peer)
                known.is_growing, known.grows_at_s = False, now_s + RESTS_S[0]
            case Carried(peer):
                known = self._know(peer)
                known.failures, known.broke = 0, ""
            case Closed():
                self._closed(event, now_s)
            case Offended(peer, reason):
                known = self._know(peer)
                known.way, known.reason = Way.BARRED, reason
                known.rests_until_s = now_s + FAULT_REST_S
                return [CloseAll(peer, reason)]
        return []

    def _wanted(self, event: Wanted, now_s: float) -> list[Effect]:
        known = self._know(event.peer)
        known.wanted_bytes += event.count
        if known.wanted_bytes < WORTH_BYTES:
            return []
        if known.way in (Way.RESTING, Way.BARRED) and now_s >= known.rests_until_s:
            known.way = Way.UNTRIED
        if known.way is Way.UNTRIED and not known.is_negotiating:
            known.way, known.is_negotiating = Way.ASKING, True
            return [Negotiate(event.peer)]
        if known.way is not Way.DIRECT or not known.is_dialler or known.is_growing:
            return []
        is_far = event.rtt_s is not None and event.rtt_s >= FAR_S
        lacking = (self._far_share() if is_far else CONNECTIONS_NEAR) - known.connections
        if lacking <= 0 or now_s < known.grows_at_s:
            return []
        known.is_growing = True
        return [Dial(event.peer, lacking)]

    def _far_share(self) -> int:
        """Connections for each peer that is far, as if all were."""
        return min(CONNECTIONS_FAR, max(1, CONNECTIONS_FAR_ALL // max(1, self._connected)))

    def _negotiated(self, event: Agreed | Declined, now_s: float) -> None:
        known = self._know(event.peer)
        known.is_negotiating = False
        if isinstance(event, Agreed) and known.way is Way.DIRECT:
            known.is_dialler, known.grows_at_s = event.is_dialler, now_s
        elif known.way is Way.ASKING:
            failures = known.failures
            _rest(known, event.reason if isinstance(event, Declined) else GONE_AT_ONCE, now_s)
            if isinstance(event, Declined) and event.is_away:
                # That says nothing of channels: a host that is back is not kept on streams.
                known.failures, known.rests_until_s = failures, now_s + RESTS_S[0]

    def _opened(self, peer: NodeKey, now_s: float) -> list[Effect]:
        known = self._know(peer)
        self._connected += not known.connections
        known.connections += 1
        if known.way is Way.BARRED and now_s < known.rests_until_s:
            return [CloseAll(peer, known.reason)]  # It may not dial itself back in.
        known.way, known.reason = Way.DIRECT, ""
        return []

    def _closed(self, event: Closed, now_s: float) -> None:
        known = self._know(event.peer)
        if known.connections:
            known.connections -= 1
            self._connected -= not known.connections
        if event.is_broken:
            known.broke = event.reason
        if known.connections or known.way is not Way.DIRECT:
            return
        known.is_dialler = False
        if known.broke:
            # Also where the last one to close was idle: what broke the others would break the next.
            _rest(known, known.broke, now_s)
            known.broke = ""
        else:
            known.way = Way.UNTRIED

    def _know(self, peer: NodeKey) -> _Peer:
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= PEERS_MAX:
                self._forget_one()
            known = self._peers[peer] = _Peer()
        return known

    def _forget_one(self) -> None:
        idle = (
            peer
            for peer, known in self._peers.items()
            if not known.connections and not known.is_negotiating
        )
        oldest = next(idle, None)
        if oldest is not None:
            del self._peers[oldest]


def _rest(known: _Peer, reason: str, now_s: float) -> None:
    known.way, known.reason = Way.RESTING, reason
    known.rests_until_s = now_s + RESTS_S[min(known.failures, len(RESTS_S) - 1)]
    known.failures += 1
