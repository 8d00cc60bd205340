"""One connection of the direct channel: what arrives goes straight to where it is wanted.

Either end asks for pieces of blobs and serves what the other asks for. All memory is bounded: a
piece is received into the blob's own buffer, a sender waits for room before each 256 KiB, and a
peer that asks for more pieces at once than agreed loses the connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from node.host import blobs, channel_frames
from node.host.channel_frames import Answer, Data, FrameReader, Greeted, Request
from node.host.channel_pipe import TURN_BYTES
from node.host.pace import PIECE_BYTES, Bucket
from node.host.shaping import Way, wait_turn
from node.host.streams import Traffic
from protocol.errors import (
    InternalError,
    LimitExceeded,
    MalformedMessage,
    PeerUnreachable,
    RemoteError,
    ShoalError,
)
from protocol.ids import Digest, NodeKey, short

REQUESTS_MAX: Final = 32
"""Pieces asked for at once on one connection."""

WRITE_HIGH_BYTES: Final = 512 << 10
"""With more than this waiting for a peer that reads slowly, nothing is added. What waits are views
of blobs, not copies."""

PIECE_BYTES_MIN: Final = 1 << 10
"""Below this the frame around a piece would cost more than it evens out."""

NEWS_BYTES: Final = 1 << 20
NEWS_S: Final = 0.05
"""Whoever asked is told so often: at full speed each byte would otherwise wake a task."""

SILENT_S: Final = 15.0
"""A connection that owes us bytes and brings none for so long is broken; others may try."""

IDLE_S: Final = 90.0
"""One that nobody has used for so long is closed, and opened again when there is a use."""

log = logging.getLogger("shoal.channel")


class Host(Protocol):
    """What a connection needs of the host that it belongs to."""

    down: Way
    up: Way

    def find(self, peer: NodeKey, digest: Digest) -> tuple[memoryview, Bucket | None] | None:
        """A blob that the peer may have, and what limits its rate."""

    def counters(self, peer: NodeKey) -> tuple[Traffic, ...]:
        """Where the bytes of this peer are counted."""

    def on_ready(self, connection: Connection) -> None:
        """The other end has greeted."""

    def on_closed(self, connection: Connection, error: ShoalError | None) -> None:
        """It is over; None: in good order, for lack of use."""

    def share(self, peer: NodeKey) -> int:
        """How many of the peer's requests are being served now, by all its connections."""


@dataclass(slots=True, eq=False)
class Ask:
    """A piece that was asked for. `view`: where it goes; None once nobody wants it."""

    view: memoryview | None
    offset: int
    count: int
    on_change: Callable[[], None]
    filled: int = 0
    said: int = 0
    """What `on_change` was last called for, and when."""
    said_s: float = 0.0
    status: int | None = None
    total: int = 0
    asked_s: float = 0.0
    answer_s: float = 0.0
    """Seconds until the answer came; what was already under way is part of it."""
    error: ShoalError | None = None
    """Why no more of it will come."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self.filled == self.count and self.status == blobs.OK

    def drop(self) -> None:
        """What still comes of it is thrown away."""
        self.view = None


class Connection(asyncio.BufferedProtocol):
    """A connection whose TLS handshake is over; `peer` has proven its key."""

    def __init__(self, host: Host, peer_of: Callable[[asyncio.BaseTransport], NodeKey]) -> None:
        """peer_of: the key that the other end of a transport has proven; may raise."""
        self.peer: NodeKey = b""
        self.is_ready = False
        self.used_s = 0.0
        self.serving = 0
        self._host = host
        self._peer_of = peer_of
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(self._room)
        self._asks: dict[int, Ask] = {}
        self._last_id = 0
        self._scratch = memoryview(bytearray(0))
        self._heard_s = 0.0
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: ShoalError | None = None
        self._is_over = False
        self._counters: tuple[Traffic, ...] = ()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """After the handshake, on both sides."""
        assert isinstance(transport, asyncio.Transport), "what carries bytes both ways"
        self._transport = transport
        self.used_s = self._heard_s = self._loop.time()
        try:
            self.peer = self._peer_of(transport)
        except RemoteError as error:
            self.abort(error)
            return
        self._counters = self._host.counters(self.peer)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES)
        self._put(channel_frames.GREETING)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        return self._frames.buffer(self._host.down.piece_bytes or TURN_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        self._heard_s = self._loop.time()
        for counter in self._counters:
            counter.down_bytes += nbytes
        if self._error is not None:
            return
        try:
            frame = self._frames.took(nbytes)
            if frame is not None:
                self._take(frame)
        except RemoteError as error:
            self.abort(error)

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._is_over = True
        is_busy = bool(self._asks) or not self.is_ready
        if self._error is None and (exc is not None or is_busy):
            why = f": {exc}" if exc is not None and str(exc) else ""
            self._error = PeerUnreachable(f"the direct connection to {self._name()} broke{why}")
        ended = self._error or PeerUnreachable(f"the connection to {self._name()} was closed")
        asks, self._asks = list(self._asks.values()), {}
        for ask in asks:
            ask.error = ended
            ask.on_change()
        for task in self._tasks:
            task.cancel()
        self._can_write.set()
        self._host.on_closed(self, self._error)

    # What the host calls.

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
        return not self._asks and not self.serving

    def ask(self, digest: Digest, offset: int, view: memoryview, on: Callable[[], None]) -> Ask:
        """Asks for the `len(view)` bytes at `offset`; `on` is called whenever the Ask changes."""
        if len(self._asks) >= REQUESTS_MAX or self._transport is None:
            raise InternalError("more pieces at once than one connection may ask for")
        self._last_id = (self._last_id + 1) % (1 << 32)
        if self.is_idle:
            self._heard_s = self._loop.time()
        ask = self._asks[self._last_id] = Ask(view, offset, len(view), on)
        ask.asked_s = time.monotonic()
        request = Request(self._last_id, digest, offset, len(view))
        self._put(channel_frames.request_bytes(request))
        return ask

    def check(self, now_s: float, silent_s: float | None = None) -> None:
        """Ends the connection where it is silent though it owes us bytes, or not used any more."""
        if self._asks and now_s - self._heard_s > (SILENT_S if silent_s is None else silent_s):
            self.abort(PeerUnreachable(f"the direct connection to {self._name()} went silent"))
        elif self.is_idle and now_s - self.used_s > IDLE_S:
            self.close()

    def close(self) -> None:
        """An orderly end."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: ShoalError) -> None:
        """An immediate end for a stated reason."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # What comes in.

    def _room(self, id: int) -> memoryview:
        ask = self._asks.get(id)
        if ask is None or ask.status != blobs.OK:
            raise MalformedMessage(f"{self._name()} sends data that nobody asked for")
        left = ask.count - ask.filled
        if ask.view is not None:
            return ask.view[ask.filled :]
        if not self._scratch:
            self._scratch = memoryview(bytearray(channel_frames.DATA_BYTES_MAX))
        return self._scratch[:left]

    def _take(self, frame: channel_frames.Frame) -> None:
        match frame:
            case Data(id, count):
                self._got(id, count)
            case Answer():
                self._answered(frame)
            case Request():
                self._requested(frame)
            case Greeted():
                self.is_ready = True
                self._host.on_ready(self)

    def _got(self, id: int, count: int) -> None:
        ask = self._asks[id]
        ask.filled += count
        self.used_s = self._heard_s
        if ask.filled == ask.count:
            del self._asks[id]
        is_news = ask.filled == ask.count or ask.filled - ask.said >= NEWS_BYTES
        if is_news or self._heard_s - ask.said_s >= NEWS_S:
            ask.said, ask.said_s = ask.filled, self._heard_s
            ask.on_change()
        wait_s = self._host.down.wait_s(count, self._heard_s)
        if wait_s > 0.0 and self._transport is not None:
            self._transport.pause_reading()
            self._heard_s += wait_s  # What our own ceiling makes slow is not held against it.
            self._loop.call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _answered(self, answer: Answer) -> None:
        ask = self._asks.get(answer.id)
        if ask is None or ask.status is not None:
            raise MalformedMessage(f"{self._name()} answers what nobody asked")
        ask.status, ask.total = answer.status, answer.total
        ask.answer_s = time.monotonic() - ask.asked_s
        can_come = answer.status == blobs.OK and answer.total >= ask.offset + ask.count
        if not can_come or not ask.count:
            del self._asks[answer.id]
        ask.on_change()

    # What goes out.

    def _requested(self, request: Request) -> None:
        if self.serving >= REQUESTS_MAX:
            raise LimitExceeded(f"{self._name()} asks for too much at once")
        self.serving += 1
        task = self._loop.create_task(self._serve(request), name=f"bulk for {short(self.peer)}")
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.serving -= 1
        self.used_s = self._loop.time()
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ShoalError):
            self.abort(error)
        elif error is not None:
            log.error("serving %s failed", self._name(), exc_info=error)
            self.abort(InternalError("this host failed over a request"))

    async def _serve(self, request: Request) -> None:
        found = self._host.find(self.peer, request.digest)
        if found is None or request.offset + request.count > len(found[0]):
            held = 0 if found is None else len(found[0])
            status = blobs.NOT_HELD if found is None else blobs.OK
            # The other end believes another length: it hears ours, and takes offence there.
            await self._send(channel_frames.answer_bytes(Answer(request.id, status, held)))
            return
        blob, bucket = found
        await self._send(channel_frames.answer_bytes(Answer(request.id, blobs.OK, len(blob))))
        start, end = request.offset, request.offset + request.count
        if bucket is None and self._host.up.bucket is None:
            await self._send(*_frames(request.id, blob[start:end]))
            self._host.up.bulk_bytes += request.count
            return
        while start < end:
            piece = blob[start : min(end, start + self._step(bucket))]
            await wait_turn(self._host.up, len(piece), bucket)
            await self._send(channel_frames.data_header(request.id, len(piece)), piece)
            start += len(piece)

    def _step(self, bucket: Bucket | None) -> int:
        """Bytes of one turn. Under a ceiling each peer gets the same, however much it asks for."""
        limit = self._host.up.piece_bytes
        if limit is None:
            return TURN_BYTES if bucket is None else PIECE_BYTES
        return max(PIECE_BYTES_MIN, limit // max(1, self._host.share(self.peer)))

    async def _send(self, *parts: bytes | memoryview) -> None:
        # First come, first served: the requests of one connection take turns.
        async with self._turn:
            if not self._can_write.is_set():
                try:
                    async with asyncio.timeout(blobs.WRITE_S):
                        await self._can_write.wait()
                except TimeoutError as error:
                    raise PeerUnreachable(f"{self._name()} does not read") from error
            if not self._is_over:
                self._put(*parts)

    def _put(self, *parts: bytes | memoryview) -> None:
        assert self._transport is not None, "nothing is sent before the handshake"
        if self._transport.is_closing():
            return
        self._transport.writelines(parts)
        sent = sum(map(len, parts))
        for counter in self._counters:
            counter.up_bytes += sent

    def _name(self) -> str:
        return f"host {short(self.peer)}" if self.peer else "the other end"


def _frames(id: int, piece: memoryview) -> list[bytes | memoryview]:
    """Data frames of the most bytes that one may have, headers and contents by turns."""
    parts: list[bytes | memoryview] = []
    for start in range(0, len(piece), channel_frames.DATA_BYTES_MAX):
        part = piece[start : start + channel_frames.DATA_BYTES_MAX]
        parts += channel_frames.data_header(id, len(part)), part
    return parts


def tune(connection: socket.socket) -> None:
    """Sets what a bulk connection's socket needs."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
