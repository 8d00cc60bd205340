"""The end of a direct connection that lives on the bulk loop: frames in, frames out.

It reads data straight to where it belongs, answers requests in turn, and keeps to the owner's
ceilings. What it learns goes to the `Connection` it belongs to (`connection`), which lives on the
daemon's loop, in posts that are few: at full speed each byte would otherwise wake a task.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol

from host.bulk import frames
from host.bulk.fair_queue import FairQueue, Serving
from host.bulk.frames import Answer, Data, FrameReader, Greeted, Request
from host.bulk.send_ahead import SendAhead
from host.bulk.tls_socket import Pipe
from host.network import blobs
from host.network.rate_limit import RateLimiter
from host.network.token_bucket import PIECE_BYTES, TokenBucket
from protocol.errors import (
    LimitExceeded,
    MalformedMessage,
    PeerUnreachable,
    RemoteError,
    ShoalError,
)
from protocol.ids import Digest, NodeKey, short

REQUESTS_MAX: Final = 32
"""Pieces asked for at once on one connection."""

TURN_BYTES: Final = (256 << 10) - frames.HEADER.size
"""Of one transfer, before another one on the same connection has its turn. With its header it fills
records of TLS to the last byte."""

ALONE_BYTES: Final = frames.DATA_BYTES_MAX - frames.HEADER.size
"""The same while there is no other one: fewer frames, a seventh less of a loaded syncer's time."""

WRITE_HIGH_BYTES: Final = 64 << 10
"""With more than this waiting to leave, nothing is added: it would be out of turn. What waits are
views of blobs, not copies. On a slow line it is less (`send_ahead`)."""

TURN_BYTES_MIN: Final = 1 << 10
"""Below this the frame around a piece would cost more than it evens out."""

NEWS_BYTES: Final = 4 << 20
NEWS_S: Final = 0.05
"""The daemon's loop is told so often."""

Send = Callable[..., None]

Found = tuple[memoryview, TokenBucket | None]
"""A blob that a peer may have, and what limits its rate."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """A blob that is not here; of a manifest's array one bit for each section that is."""

    held_sections: int = 0


@dataclass(slots=True, eq=False)
class Ask:
    """A piece that was asked for. `view`: where it goes; None once nobody wants it."""

    digest: Digest
    view: memoryview | None
    offset: int
    count: int
    on_change: Callable[[], None]
    asked_s: float
    filled: int = 0
    status: int | None = None
    total: int = 0
    answer_s: float = 0.0
    """Seconds until the answer came; what was already under way is part of it."""
    error: ShoalError | None = None
    """Why no more of it will come."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self.filled == self.count and self.status == blobs.OK

    @property
    def is_over(self) -> bool:
        """Whether nothing more belongs to it."""
        if self.status is None:
            return False
        can_come = self.status == blobs.OK and self.total >= self.offset + self.count
        return not can_come or self.filled == self.count


@dataclass(slots=True)
class News:
    """What happened since the last post."""

    asks: dict[int, Ask] = field(default_factory=dict)
    """Those that changed, by id."""
    down_bytes: int = 0
    up_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.asks or self.down_bytes or self.up_bytes)


class Owner(Protocol):
    """What a link tells, by post."""

    def on_greeted(self) -> None:
        """The other end speaks the channel."""

    def on_news(self, news: News) -> None:
        """What has come and gone."""

    def on_requests(self, requests: list[Request]) -> None:
        """The other end wants blobs; answer with `ConnectionIo.serve`."""

    def on_lost(self, error: ShoalError | None) -> None:
        """It is over; None: in good order, for lack of use."""


@dataclass(slots=True)
class Shares:
    """What all links of a host have in common."""

    rate_limiter: RateLimiter
    transfers: Counter[NodeKey] = field(default_factory=Counter)
    """How many each peer has under way, over all its connections."""

    def change(self, peer: NodeKey, by: int) -> None:
        """So many more, or fewer."""
        self.transfers[peer] += by
        if not self.transfers[peer]:
            del self.transfers[peer]


class ConnectionIo(asyncio.BufferedProtocol):
    """Everything but what is marked otherwise is called on the bulk loop."""

    def __init__(
        self,
        owner: Owner,
        post: Send,
        shares: Shares,
        peer_of: Callable[[asyncio.BaseTransport], NodeKey],
    ) -> None:
        """post: sends a call to the owner's loop. peer_of: the key that the other end of a
        transport has proven; may raise."""
        self.peer: NodeKey = b""
        """Has proven this key; empty before."""
        self.heard_s = self.used_s = time.monotonic()
        """Of `time.monotonic`; any thread may read these and those below."""
        self.stuck_s: float | None = None
        """Since when the other end has not read."""
        self._stuck_bytes = 0
        """That waited to leave at that time, and those that came since."""
        self._put_bytes = 0
        """Handed over since writing was resumed last."""
        self._is_resuming = False
        self.lock = Lock()
        """Held while bytes are put where an Ask wants them."""
        self._owner = owner
        self._post = post
        self._shares = shares
        self._peer_of = peer_of
        self._transport: Pipe | None = None
        self._ahead = SendAhead()
        self._frames = FrameReader(self._room)
        self._asks: dict[int, Ask] = {}
        self._turns = FairQueue(self._step, self._wait_s)
        self._sought = 0
        """Requests whose blobs the owner looks for."""
        self._shared = 0
        """Transfers of this link among the shares."""
        self._waking: asyncio.TimerHandle | None = None
        self._scratch = memoryview(bytearray(0))
        self._requests: list[Request] = []
        self._news = News()
        self._told_s = 0.0
        self._telling: asyncio.TimerHandle | None = None
        self._is_greeted = False
        self._error: ShoalError | None = None
        self._is_over = False

    @property
    def serving(self) -> int:
        """Requests of the other end that have not been served to the end."""
        return self._sought + self._turns.requests

    @property
    def is_stuck(self) -> bool:
        """Whether more waits to leave than the line takes."""
        return self.stuck_s is not None

    # What the pipe calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """After the handshake, on both sides."""
        assert isinstance(transport, Pipe), "channels are TLS"
        self._transport = transport
        self.heard_s = self.used_s = time.monotonic()
        if self._error is not None:  # Nobody wants it any more.
            transport.abort()
            return
        try:
            self.peer = self._peer_of(transport)
        except RemoteError as error:
            self.abort(error)
            return
        self._hold_ahead()
        self._put(frames.GREETING)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        return self._frames.buffer(self._shares.rate_limiter.down.piece_bytes or ALONE_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        self.heard_s = time.monotonic()
        self._news.down_bytes += nbytes
        if self._error is not None:
            return
        try:
            frame = self._frames.took(nbytes)
            if frame is not None:
                self._take(frame)
        except RemoteError as error:
            self.abort(error)

    def pause_writing(self) -> None:
        """The peer reads slowly, or the line is slow."""
        self.stuck_s = time.monotonic()
        if self._transport is not None:
            self._stuck_bytes = self._transport.get_write_buffer_size()
            if not self._is_resuming:
                self._shares.rate_limiter.up.meter.holds(self, self.stuck_s)

    def resume_writing(self) -> None:
        """There is room again."""
        stuck_s, self.stuck_s, self._is_resuming = self.stuck_s, None, True
        handed_bytes = self._stuck_bytes
        self._put_bytes = 0
        self._serve_on()
        self._is_resuming = False
        if self._transport is None or stuck_s is None:
            return
        # What the kernel takes of the next piece at once had made its room while we waited.
        taken = handed_bytes + self._put_bytes - self._transport.get_write_buffer_size()
        now_s = time.monotonic()
        left = self._ahead.left(taken, now_s - stuck_s, now_s)
        self._hold_ahead()
        self._shares.rate_limiter.up.meter.left(self, left, now_s)
        if self.is_stuck:
            self._shares.rate_limiter.up.meter.holds(self, now_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._is_over = True
        is_busy = bool(self._asks) or not self._is_greeted
        if self._error is None and (exc is not None or is_busy):
            why = f": {exc}" if exc is not None and str(exc) else ""
            self._error = PeerUnreachable(f"the direct connection to {self._name()} broke{why}")
        for timer in (self._telling, self._waking):
            if timer is not None:
                timer.cancel()
        self._turns.clear()
        self._share(0)
        self._shares.rate_limiter.up.meter.broke(self, time.monotonic())
        self._tell()
        self._post(self._owner.on_lost, self._error)

    # What the owner sends here.

    def ask(self, id: int, ask: Ask) -> None:
        """Asks for a piece."""
        if self._is_over:
            return  # The owner is about to hear of it.
        self._asks[id] = ask
        if ask.view is None:  # Dropped on its way here.
            ask.status = blobs.NOT_HELD
            self._changed(id, ask)
            return
        self._put(frames.request_bytes(Request(id, ask.digest, ask.offset, ask.count)))

    def serve(self, request: Request, found: Found | Lacking) -> None:
        """Answers a request with what its blob was found to be."""
        if self._is_over:
            return
        if isinstance(found, Lacking):
            self._put(frames.answer_bytes(Answer(request.id, blobs.NOT_HELD, found.held_sections)))
        elif request.offset + request.count > len(found[0]):
            # The other end believes another length: it hears ours, and takes offence there.
            self._put(frames.answer_bytes(Answer(request.id, blobs.OK, len(found[0]))))
        else:
            blob, bucket = found
            self._put(frames.answer_bytes(Answer(request.id, blobs.OK, len(blob))))
            end = request.offset + request.count
            self._turns.add(request.digest, Serving(request.id, blob, request.offset, end, bucket))
        self._sought -= 1
        self._wake_at(time.monotonic())  # Others come with it, and each is to have its turn.

    def close(self) -> None:
        """An orderly end."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: ShoalError) -> None:
        """An immediate end for a stated reason."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def drop(self, ask: Ask) -> None:
        """What still comes of it is thrown away from now on. Called in any thread."""
        with self.lock:
            ask.view = None

    # What comes in.

    def _room(self, id: int) -> memoryview:
        ask = self._asks.get(id)
        if ask is None or ask.status != blobs.OK:
            raise MalformedMessage(f"{self._name()} sends data that nobody asked for")
        left = ask.count - ask.filled
        if ask.view is not None:
            return ask.view[ask.filled :]
        if not self._scratch:
            self._scratch = memoryview(bytearray(frames.DATA_BYTES_MAX))
        return self._scratch[:left]

    def _take(self, frame: frames.Frame) -> None:
        match frame:
            case Data(id, count):
                self._got(id, count)
            case Answer():
                self._answered(frame)
            case Request():
                self._requested(frame)
            case Greeted():
                self._is_greeted = True
                self._post(self._owner.on_greeted)

    def _got(self, id: int, count: int) -> None:
        ask = self._asks[id]
        ask.filled += count
        self.used_s = self.heard_s
        self._changed(id, ask)
        wait_s = self._shares.rate_limiter.down.wait_s(count, self.heard_s)
        if wait_s > 0.0 and self._transport is not None:
            self._transport.pause_reading()
            self.heard_s += wait_s  # What our own ceiling makes slow is not held against it.
            asyncio.get_running_loop().call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _answered(self, answer: Answer) -> None:
        ask = self._asks.get(answer.id)
        if ask is None or ask.status is not None:
            raise MalformedMessage(f"{self._name()} answers a request that nobody made")
        ask.total, ask.answer_s = answer.total, self.heard_s - ask.asked_s
        ask.status = answer.status  # Last: who sees it may believe the rest.
        self._changed(answer.id, ask)

    def _changed(self, id: int, ask: Ask) -> None:
        self._news.asks[id] = ask
        if ask.is_over:
            del self._asks[id]
            self._tell()
        elif self._news.down_bytes >= NEWS_BYTES or self.heard_s - self._told_s >= NEWS_S:
            self._tell()
        else:
            self._tell_later()

    # What goes out.

    def _requested(self, request: Request) -> None:
        if self.serving >= REQUESTS_MAX:
            raise LimitExceeded(f"{self._name()} asks for too much at once")
        self._sought += 1
        if not self._requests:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._requests.append(request)

    def _pass_on(self) -> None:
        requests, self._requests = self._requests, []
        self._post(self._owner.on_requests, requests)

    def _serve_on(self) -> None:
        """Writes what has its turn, until enough waits to leave."""
        while self.stuck_s is None and not self._is_over and (now_s := time.monotonic()):
            if self._turns.requests and self._ahead.begin(now_s):
                self._hold_ahead()
            self._share(len(self._turns))
            turn = self._turns.take(now_s)
            if turn is None:
                break
            id, piece = turn
            self.used_s = now_s
            self._put(frames.data_header(id, len(piece)), piece)
        self._share(len(self._turns))
        self._wake_at(self._turns.next_s() if self.stuck_s is None else None)

    def _wake_at(self, at_s: float | None) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if at_s is not None and not self._is_over:
            wait_s = max(0.0, at_s - time.monotonic())
            self._waking = asyncio.get_running_loop().call_later(wait_s, self._serve_on)

    def _step(self, bucket: TokenBucket | None) -> int:
        """Bytes of one turn. Under a ceiling each peer gets the same, however much it asks for."""
        limit = self._shares.rate_limiter.up.piece_bytes
        if limit is None and bucket is None:
            step = ALONE_BYTES if len(self._turns) == 1 else TURN_BYTES
            return min(step, self._ahead.size_bytes)
        if limit is None:
            return PIECE_BYTES
        return max(TURN_BYTES_MIN, limit // max(1, self._shares.transfers[self.peer]))

    def _hold_ahead(self) -> None:
        """Neither we nor the kernel hold more than the line sends within a moment."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(min(WRITE_HIGH_BYTES, self._ahead.size_bytes))
            self._transport.set_unsent_limit(self._ahead.unsent_bytes)

    def _wait_s(self, count: int, bucket: TokenBucket | None) -> float:
        now_s = time.monotonic()
        wait_s = self._shares.rate_limiter.up.wait_s(count, now_s)
        return wait_s if bucket is None else max(wait_s, bucket.take(count, now_s))

    def _share(self, transfers: int) -> None:
        if transfers != self._shared:
            self._shares.change(self.peer, transfers - self._shared)
            self._shared = transfers

    def _put(self, *parts: bytes | memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        count = sum(map(len, parts))
        self._stuck_bytes += count  # Means nothing unless it is stuck, and then counts.
        self._put_bytes += count
        self._transport.writelines(parts)
        self._news.up_bytes += count
        self._tell_later()

    # What is told.

    def _tell_later(self) -> None:
        if self._telling is None and not self._is_over:
            self._telling = asyncio.get_running_loop().call_later(NEWS_S, self._tell)

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._news:
            news, self._news = self._news, News()
            self._told_s = time.monotonic()
            self._post(self._owner.on_news, news)

    def _name(self) -> str:
        return f"host {short(self.peer)}" if self.peer else "the other end"
