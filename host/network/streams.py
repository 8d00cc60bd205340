"""Byte streams to a peer, and the standing control streams on top of them.

`Wire` is one raw stream with our errors, time-outs and byte counts. `ControlStream` sends and
receives length-prefixed frames; what a frame means is not known here. A stream that ends is not a
message that completed: a killed sender looks like an orderly end, so half a frame is an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from host.network.foreign_errors import Loss, translated
from protocol import limits
from protocol.errors import (
    InternalError,
    LimitExceeded,
    MalformedMessage,
    PeerUnreachable,
    TransientError,
)
from protocol.ids import NodeKey, short

HELLO = b"SHOALC" + limits.WIRE_VERSION.to_bytes(2, "big")
"""First bytes of a control stream, and the answer of a peer that takes it."""

BUSY = b"SHOALBSY"
"""The answer of a peer that holds as many control streams as it may."""

HELLO_S = 10.0
"""Round trip plus a busy event loop at the other end."""

SAYS_S = 5.0
"""From the beginning of a stream to what its opener says first, which it writes at once; and from
there to its first frame. A silent peer must not hold a slot longer."""

FRAME_BODY_S = 30.0
"""From a frame's first byte to its last: a megabyte at 35 KB/s."""

OUTBOX_FRAMES_MAX = 1024
"""What may wait for a peer that reads slowly, beside `limits.OUTBOX_BYTES_MAX`."""

FLUSH_S = 2.0
"""After `close`, what is queued gets this long to leave."""

CONTROL_STREAMS_MAX = limits.LEARNERS_MAX + limits.VOTERS_MAX + 64
CONTROL_STREAMS_PER_PEER_MAX = 4
"""A host needs one for each role it plays at us; a restarted one may overlap with its ghost."""

_WRITE_BYTES = limits.BLOB_CHUNK_BYTES

_AHEAD_BYTES = 64 << 10
"""While no more than this waits in the transport, a frame is handed to it without a task of ours
having a turn: with hundreds of peers such turns took a tenth of a syncer's time."""
_READ_BYTES = 64 << 10


@dataclass(slots=True)
class Traffic:
    """Bytes over streams of one peer, or of all; without the engine's own overhead."""

    up_bytes: int = 0
    down_bytes: int = 0


class ByteSource(Protocol):
    """What a stream is read from."""

    async def read(self, n: int, /) -> bytes: ...
    async def readexactly(self, n: int, /) -> bytes: ...


class ByteSink(Protocol):
    """What a stream is written to."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...
    def write(self, data: bytes | memoryview, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class StreamEnded(PeerUnreachable):
    """The stream ended in the middle of a read."""


@dataclass(eq=False)
class Wire:
    """One raw stream to `peer`, whose key the engine has proven. For one reader and one writer."""

    peer: NodeKey
    _reader: ByteSource
    _writer: ByteSink
    _: KW_ONLY
    loss: Loss
    counters: tuple[Traffic, ...]
    address: str = ""
    """Where the connection comes from, for one that was not dialled here."""
    _closed_reason: str | None = None
    is_silent: bool = True
    """Nothing has come yet that was awaited."""

    @property
    def ends(self) -> tuple[ByteSource, ByteSink]:
        """What another layer is put upon; nothing else may use this one from then on."""
        return self._reader, self._writer

    async def read_exactly(self, size: int, *, timeout_s: float | None) -> bytes:
        """Exactly `size` bytes. Raises StreamEnded, PeerUnreachable or TransportLost.

        A read that is cancelled has taken nothing.
        """
        async with self._guarded(timeout_s):
            try:
                part = await self._reader.readexactly(size)
            except asyncio.IncompleteReadError as error:
                got = len(error.partial)
                text = f"host {short(self.peer)} ended the stream at {got} of {size} bytes"
                raise StreamEnded(text) from error
        self.is_silent = False
        for counter in self.counters:
            counter.down_bytes += size
        return part

    async def read_some(self, size_max: int, *, timeout_s: float | None) -> bytes:
        """The next bytes, at most `size_max`; empty at the end of the stream."""
        async with self._guarded(timeout_s):
            part = await self._reader.read(size_max)
        if not part:
            await self.loss.settle()
        for counter in self.counters:
            counter.down_bytes += len(part)
        return part

    async def write(self, part: bytes | memoryview, *, timeout_s: float | None) -> None:
        """Hands over `part` and waits until the peer's side has made room."""
        async with self._guarded(timeout_s):
            self._writer.write(part)
            await self._writer.drain()
        for counter in self.counters:
            counter.up_bytes += len(part)

    def write_ahead(self, part: bytes) -> bool:
        """Hands over `part` if the transport has room, else does nothing; never waits.

        That the stream is broken says the next read or `write`, not this.
        """
        transport = self._writer.transport
        is_open = self._closed_reason is None and self.loss.reason is None
        has_room = is_open and not transport.is_closing()
        if not has_room or transport.get_write_buffer_size() > _AHEAD_BYTES:
            return False
        try:
            self._writer.write(part)
        except (OSError, RuntimeError):
            # uvloop raises them of a socket that was reset meanwhile; it took nothing.
            return False
        for counter in self.counters:
            counter.up_bytes += len(part)
        return True

    async def wait_ended(self, *, timeout_s: float) -> None:
        """Returns when the peer has ended the stream, however, or the time is up."""
        with suppress(TransientError), translated("waiting for the end"):
            async with asyncio.timeout(timeout_s):
                await self._reader.read(1)

    def close(self) -> None:
        """Orderly end: what was written still goes out."""
        self._closed_reason = self._closed_reason or "the stream was closed on this side"
        self._writer.close()

    def abort(self, reason: str) -> None:
        """Immediate end; every pending and later read and write raises PeerUnreachable(reason)."""
        self._closed_reason = self._closed_reason or reason
        self._writer.transport.abort()

    @asynccontextmanager
    async def _guarded(self, timeout_s: float | None) -> AsyncIterator[None]:
        # uvloop raises a bare RuntimeError for a write to a socket that was reset meanwhile.
        self.loss.check()
        if self._closed_reason is not None:
            raise PeerUnreachable(self._closed_reason)
        try:
            with translated(f"talking to host {short(self.peer)}", (RuntimeError,)):
                async with asyncio.timeout(timeout_s):
                    yield
        except TransientError as error:
            self.loss.check()
            if self._closed_reason is not None:
                raise PeerUnreachable(self._closed_reason) from error
            await self.loss.settle()
            raise


async def offer_hello(wire: Wire) -> None:
    """Opens the control protocol on a stream that we dialled.

    Raises TransientError when the peer has no room, MalformedMessage for another version.
    """
    await wire.write(HELLO, timeout_s=HELLO_S)
    answer = await wire.read_exactly(len(HELLO), timeout_s=HELLO_S)
    if answer == BUSY:
        raise TransientError(f"host {short(wire.peer)} holds as many control streams as it may")
    _check_hello(wire, answer)


async def hear_hello(wire: Wire) -> None:
    """Reads how a dialled control stream begins. MalformedMessage for another version."""
    _check_hello(wire, await wire.read_exactly(len(HELLO), timeout_s=SAYS_S))


async def answer_hello(wire: Wire, *, has_room: bool) -> None:
    """Tells the dialler of a control stream whether there is room for it."""
    await wire.write(HELLO if has_room else BUSY, timeout_s=HELLO_S)


def _check_hello(wire: Wire, hello: bytes) -> None:
    if hello[:6] != HELLO[:6]:
        raise MalformedMessage(f"host {short(wire.peer)} does not speak the control protocol")
    if hello != HELLO:
        theirs = int.from_bytes(hello[6:], "big")
        raise MalformedMessage(
            f"host {short(wire.peer)} speaks version {theirs} of the protocol, this host "
            f"{limits.WIRE_VERSION}; the older one needs an update"
        )


class ControlStream:
    """A standing two-way stream of frames with one authenticated `peer`."""

    def __init__(self, wire: Wire, says_s: float | None = None) -> None:
        """says_s: within so many seconds the peer's first frame must come."""
        self.peer = wire.peer
        self.address = wire.address
        self._says_s = says_s
        self._wire = wire
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._is_idle = False
        """The writer waits, and nothing does before it."""
        self.closed_reason: str | None = None
        """Why nothing can be sent any more, or None while the stream is open."""
        self._came = bytearray()
        """Received and not taken yet: at most one frame and what one read gives."""
        self._frame_end_s: float | None = None
        """When the rest of the frame that began must be here."""

    def send(self, frame: bytes) -> None:
        """Queues one frame; never waits.

        Raises PeerUnreachable when the stream is closed, or when the peer reads so slowly that the
        queue is full: the stream is then closed, so that its peer cannot fill our memory.
        """
        if len(frame) > limits.FRAME_BYTES_MAX:
            raise InternalError(f"a control frame of {len(frame)} bytes was not split by its maker")
        if self.closed_reason is not None:
            raise PeerUnreachable(self.closed_reason)
        waiting_bytes = self._outbox_bytes + len(frame) + 4
        if len(self._outbox) >= OUTBOX_FRAMES_MAX or waiting_bytes > limits.OUTBOX_BYTES_MAX:
            self.abort(f"host {short(self.peer)} does not read: {self._outbox_bytes} bytes waited")
            raise PeerUnreachable(self.closed_reason)
        framed = len(frame).to_bytes(4, "big") + frame
        if self._is_idle and self._wire.write_ahead(framed):
            return
        self._is_idle = False
        self._outbox.append(framed)
        self._outbox_bytes = waiting_bytes
        self._wake.set()

    async def recv(self) -> bytes:
        """The next frame. Cancelling it loses nothing; for one receiver at a time.

        Raises PeerUnreachable at the end of the stream, TransportLost when our engine died,
        LimitExceeded for an announced length over the bound, and MalformedMessage when the stream
        ends inside a frame; all of these close the stream.
        """
        try:
            while (frame := self._take_frame()) is None:
                await self._fill()
            return frame
        except (TransientError, MalformedMessage, LimitExceeded) as error:
            self.abort(str(error))
            raise

    @property
    def has_frame(self) -> bool:
        """Whether `recv` has one to give at once."""
        held = self._came
        return len(held) >= 4 and len(held) >= 4 + int.from_bytes(held[:4], "big")

    def _take_frame(self) -> bytes | None:
        """The first frame of what has come, if it is whole."""
        held = self._came
        if len(held) < 4:
            return None
        size = int.from_bytes(held[:4], "big")
        if size > limits.FRAME_BYTES_MAX:
            raise LimitExceeded(
                f"host {short(self.peer)} announced a frame of {size} bytes; "
                f"{limits.FRAME_BYTES_MAX} is the limit"
            )
        if len(held) < 4 + size:
            return None
        frame = bytes(held[4 : 4 + size])
        del held[: 4 + size]
        self._frame_end_s = self._says_s = None
        return frame

    async def _fill(self) -> None:
        """Whatever comes next: frames are small, and often there are several."""
        left_s: float | None = self._says_s
        if self._came:
            now_s = asyncio.get_running_loop().time()
            if self._frame_end_s is None:
                self._frame_end_s = now_s + FRAME_BODY_S
            left_s = max(0.0, self._frame_end_s - now_s)
        part = await self._wire.read_some(_READ_BYTES, timeout_s=left_s)
        if part:
            self._came += part
        elif self._came:
            raise MalformedMessage(f"truncated frame: host {short(self.peer)} ended the stream")
        else:
            raise PeerUnreachable(f"host {short(self.peer)} closed the control stream")

    def close(self) -> None:
        """No more frames; those queued get `FLUSH_S` to leave, then the stream ends."""
        if self.closed_reason is None:
            self.closed_reason = "the control stream was closed on this side"
            self._wake.set()
            asyncio.get_running_loop().call_later(FLUSH_S, self._wire.abort, self.closed_reason)

    def abort(self, reason: str) -> None:
        """Immediate end for a stated reason; queued frames are dropped."""
        self.closed_reason = self.closed_reason or reason
        self._outbox.clear()
        self._outbox_bytes = 0
        self._wake.set()
        self._wire.abort(reason)

    async def run_writer(self) -> None:
        """Sends what `send` queues until the stream is closed; the transport runs it as a task."""
        try:
            while self._outbox or self.closed_reason is None:
                self._wake.clear()
                while self._outbox:
                    await self._wire.write(self._take_batch(), timeout_s=None)
                if self.closed_reason is None:
                    self._is_idle = True
                    await self._wake.wait()
                    self._is_idle = False
        except TransientError as error:
            self.abort(str(error))
        finally:
            self._wire.close()

    def _take_batch(self) -> bytes:
        """Queued frames up to one write's size: small frames share a system call."""
        batch = [self._outbox.popleft()]
        size = len(batch[0])
        while self._outbox and size + len(self._outbox[0]) <= _WRITE_BYTES:
            batch.append(self._outbox.popleft())
            size += len(batch[-1])
        self._outbox_bytes -= size
        return b"".join(batch)
