"""One direct connection, as the daemon's own loop sees it: pieces of blobs asked for and served.

The bytes themselves move on the bulk loop (`channel_link`). The sender of requests paces them, so a
peer that asks for more pieces at once than agreed loses the connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

from host.bulk.bulk_loop import BulkLoop
from host.bulk.connection_io import (
    REQUESTS_MAX,
    Ask,
    ConnectionIo,
    Found,
    Lacking,
    News,
    Shares,
)
from host.bulk.frames import Request
from host.network import blobs
from host.network.streams import Traffic
from protocol.errors import InternalError, PeerUnreachable, ShoalError
from protocol.ids import Digest, NodeKey, short

SILENT_S: Final = 15.0
"""A connection that owes us bytes and brings none for so long is broken; others may try."""

IDLE_S: Final = 90.0
"""One that nobody has used for so long is closed, and opened again when there is a use."""

log = logging.getLogger("shoal.channel")


class Host(Protocol):
    """What a connection needs of the host that it belongs to."""

    def find(self, peer: NodeKey, digest: Digest) -> Found | Lacking:
        """A blob that the peer may have, and what limits its rate."""

    def counters(self, peer: NodeKey) -> tuple[Traffic, ...]:
        """Where the bytes of this peer are counted."""

    def on_ready(self, connection: Connection) -> None:
        """The other end has greeted."""

    def on_closed(self, connection: Connection, error: ShoalError | None) -> None:
        """It is over; None: in good order, for lack of use."""


class Connection:
    """A connection that is being made, or stands."""

    def __init__(
        self,
        host: Host,
        loop: BulkLoop,
        shares: Shares,
        peer_of: Callable[[asyncio.BaseTransport], NodeKey],
    ) -> None:
        """peer_of: the key that the other end of a transport has proven; may raise."""
        self.is_ready = False
        self.link = ConnectionIo(self, loop.here, shares, peer_of)
        """The end on the bulk loop."""
        self._host = host
        self._there = loop.there
        self._asks: dict[int, Ask] = {}
        self._last_id = 0
        self._error: ShoalError | None = None
        self._is_over = False
        self._counters: tuple[Traffic, ...] = ()

    # What the host calls.

    @property
    def peer(self) -> NodeKey:
        """Empty until the other end has proven its key."""
        return self.link.peer

    @property
    def outstanding(self) -> int:
        """Pieces that we wait for."""
        return len(self._asks)

    @property
    def is_open(self) -> bool:
        """Whether pieces may be asked for."""
        return self.is_ready and not self._is_over and self._error is None

    @property
    def is_idle(self) -> bool:
        """Whether neither end wants anything at the moment."""
        return not self._asks and not self.link.serving

    @property
    def used_s(self) -> float:
        """When it last carried data, by `time.monotonic`."""
        return self.link.used_s

    def ask(self, digest: Digest, offset: int, view: memoryview, on: Callable[[], None]) -> Ask:
        """Asks for the `len(view)` bytes at `offset`; `on` is called whenever the Ask changes.

        Nothing is written into `view` once `drop` was called.
        """
        if len(self._asks) >= REQUESTS_MAX or not self.is_open:
            raise InternalError("more pieces at once than one connection may ask for")
        self._last_id = (self._last_id + 1) % (1 << 32)
        ask = Ask(digest, view, offset, len(view), on, time.monotonic())
        self._asks[self._last_id] = ask
        self._there(self.link.ask, self._last_id, ask)
        return ask

    def drop(self, ask: Ask) -> None:
        """What still comes of it is thrown away."""
        self.link.drop(ask)

    def check(self, now_s: float, silent_s: float | None = None) -> None:
        """Ends the connection where it is silent though it owes us bytes, where the other end does
        not read, and where it is not used any more. now_s: of `time.monotonic`."""
        silent_s = SILENT_S if silent_s is None else silent_s
        stuck_s = self.link.stuck_s
        if self._asks and now_s - self._since_s() > silent_s:
            self.abort(PeerUnreachable(f"the direct connection to {self._name()} went silent"))
        elif stuck_s is not None and now_s - stuck_s > blobs.WRITE_S:
            self.abort(PeerUnreachable(f"{self._name()} does not read"))
        elif self.is_idle and now_s - self.used_s > IDLE_S:
            self.close()

    def close(self) -> None:
        """An orderly end."""
        self._there(self.link.close)

    def abort(self, error: ShoalError) -> None:
        """An immediate end for a stated reason."""
        self._error = self._error or error
        self._there(self.link.abort, error)

    # What the link tells, by post.

    def on_greeted(self) -> None:
        """The other end speaks the channel."""
        self.is_ready = True
        self._counted()
        self._host.on_ready(self)

    def on_news(self, news: News) -> None:
        """What has come and gone."""
        for counter in self._counted():
            counter.down_bytes += news.down_bytes
            counter.up_bytes += news.up_bytes
        for id, ask in news.asks.items():
            if ask.is_over:
                self._asks.pop(id, None)
            ask.on_change()

    def on_requests(self, requests: list[Request]) -> None:
        """The other end wants blobs."""
        is_done = False
        try:
            for request in requests if self.is_open else ():
                found = self._host.find(self.peer, request.digest)
                self._there(self.link.serve, request, found)
            is_done = True
        finally:
            if not is_done:  # The other end would wait for ever.
                self.abort(InternalError("this host failed over a request"))

    def on_lost(self, error: ShoalError | None) -> None:
        """The end, whoever wanted it."""
        self._is_over = True
        self._error = self._error or error
        ended = self._error or PeerUnreachable(f"the connection to {self._name()} was closed")
        asks, self._asks = list(self._asks.values()), {}
        for ask in asks:
            ask.error = ended
            ask.on_change()
        self._host.on_closed(self, self._error)

    # Inside.

    def _counted(self) -> tuple[Traffic, ...]:
        if not self._counters and self.peer:
            self._counters = self._host.counters(self.peer)
        return self._counters

    def _since_s(self) -> float:
        """Since when nothing has come of what was asked for."""
        oldest_s = min(ask.asked_s for ask in self._asks.values())
        return max(self.link.heard_s, oldest_s)

    def _name(self) -> str:
        return f"host {short(self.peer)}" if self.peer else "the other end"


def tune(connection: socket.socket) -> None:
    """Sets what a bulk connection's socket needs."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
