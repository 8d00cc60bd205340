"""A TLS connection under a `BufferedProtocol`: bytes go between the kernel and where they belong.

asyncio's own TLS passes every byte through two more buffers in each direction, which cost as much
time of the processor again as half of the encryption. Here OpenSSL has the socket itself: it reads
into the protocol's memory and writes from the blob's. Everything runs on one event loop, which is
not the daemon's own (`bulk_loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

RECORD_BYTES: Final = 16 << 10
"""What TLS encrypts at once, and the most that one read gives."""

SHORT_BYTES: Final = 128
"""A part below this gets no record and no packet of its own where something follows it."""

TURN_BYTES: Final = 512 << 10
"""Moved in one direction before anything else has a turn: half a millisecond."""

FLUSH_S: Final = 2.0
"""After `close`, what is queued gets so long to leave."""

Guard = AbstractContextManager[object]


class Pipe(asyncio.Transport):
    """A TLS connection whose handshake is over; calls `protocol` as asyncio's transports do."""

    def __init__(
        self, tls: ssl.SSLSocket, protocol: asyncio.BufferedProtocol, guard: Guard
    ) -> None:
        """guard: held from asking for a buffer until it was filled."""
        super().__init__({"ssl_object": tls})
        self._tls = tls
        self._fd = tls.fileno()
        self._protocol = protocol
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._queue: deque[memoryview] = deque()
        self._queue_bytes = 0
        self._high_bytes = TURN_BYTES
        self._is_paused = False
        """The protocol was told to stop writing."""
        self._reads = False
        self._is_writing = False
        self._is_closing = False
        self._is_over = False
        protocol.connection_made(self)
        self.resume_reading()

    # What a protocol calls.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above `high` bytes the protocol is told to pause, and to go on at a quarter of them."""
        self._high_bytes = TURN_BYTES if high is None else high

    def set_unsent_limit(self, size: int) -> None:
        """The kernel takes no more than about so much of what it cannot send yet."""
        if not hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Not everywhere.
            return
        # Where the other end has reset the connection, macOS refuses; the next read or write tells.
        with contextlib.suppress(OSError):
            self._tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return self._queue_bytes

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Calls for no more bytes until `resume_reading`."""
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Goes on with what has come."""
        if not self._reads and not self._is_closing:
            self._reads = True
            self._loop.add_reader(self._fd, self._read)
            self._loop.call_soon(self._read)  # OpenSSL may hold the rest of a record.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As `writelines` of one part."""
        self.writelines([data])

    def writelines(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:  # type: ignore[override]
        """Sends the parts; what the kernel does not take at once is kept, without a copy."""
        if self._is_closing:
            return
        for part in _records(parts):
            self._queue.append(part)
            self._queue_bytes += len(part)
        if not self._is_writing:
            self._write()
        if self._queue_bytes > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Sends what is queued, says goodbye and ends."""
        if self._is_closing:
            return
        self.pause_reading()
        self._is_closing = True
        if self._queue:
            self._loop.call_later(FLUSH_S, self._end, None)
        else:
            self._loop.call_soon(self._say_goodbye)

    def abort(self) -> None:
        """Ends at once; the protocol hears of it in the loop's next turn."""
        if not self._is_over:
            self.pause_reading()
            self._is_closing = True
            self._loop.call_soon(self._end, None)

    # What the event loop calls.

    def _read(self) -> None:
        moved = 0
        try:
            while self._reads and moved < TURN_BYTES:
                with self._guard:
                    count, is_dry = self._fill(self._protocol.get_buffer(-1))
                    if count:
                        self._protocol.buffer_updated(count)
                moved += count
                if is_dry:
                    return
        except OSError as error:
            self._broke(error)
            return
        if self._reads and self._tls.pending():
            self._loop.call_soon(self._read)  # The kernel knows nothing of what OpenSSL holds.

    def _fill(self, room: Any) -> tuple[int, bool]:
        """Reads into `room`; how much came, and whether there is nothing more at present."""
        count = 0
        view, size = memoryview(room), len(room)
        while count < size:
            try:
                got = self._tls.read(size - count, view[count:])
            except ssl.SSLWantReadError:
                return count, True
            except ssl.SSLWantWriteError:
                self._await_write()
                return count, True
            if not got:
                self._loop.call_soon(self._end, None)
                self.pause_reading()
                return count, True
            count += int(got)
        return count, False

    def _write(self) -> None:
        moved = 0
        try:
            while self._queue and moved < TURN_BYTES:
                part = self._queue[0]
                # After a want of anything the same bytes must be offered again.
                sent = self._tls.write(part)
                moved += sent
                self._queue_bytes -= sent
                if sent == len(part):
                    self._queue.popleft()
                else:
                    self._queue[0] = part[sent:]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            self._broke(error)
            return
        if self._is_paused and self._queue_bytes <= self._high_bytes // 4:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._queue:
            self._await_write()
        elif self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
        if not self._queue and self._is_closing:
            self._say_goodbye()

    def _await_write(self) -> None:
        if not self._is_writing and not self._is_over:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._write)

    # The end.

    def _broke(self, error: OSError) -> None:
        self.pause_reading()
        self._is_closing = True
        self._loop.call_soon(self._end, error)

    def _say_goodbye(self) -> None:
        if self._is_over:
            return
        error: OSError | None = None
        try:
            self._tls.unwrap()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
            pass  # Said; an answer is not waited for.
        except OSError as found:
            error = found
        self._end(error)

    def _end(self, error: OSError | None) -> None:
        if self._is_over:
            return
        self.pause_reading()
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
        self._is_over = self._is_closing = True
        self._queue.clear()
        self._queue_bytes = 0
        self._tls.close()
        self._protocol.connection_lost(error)


def _records(parts: Sequence[bytes | bytearray | memoryview]) -> list[memoryview]:
    """The parts, each short one joined with what fills its record: they leave as one packet."""
    views: list[memoryview] = []
    short: list[memoryview] = []
    for part in parts:
        view = memoryview(part)
        if len(view) < SHORT_BYTES:
            short.append(view)
            continue
        if short:
            cut = max(0, RECORD_BYTES - sum(map(len, short)))
            views.append(memoryview(b"".join((*short, view[:cut]))))
            short, view = [], view[cut:]
        if len(view):
            views.append(view)
    return [*views, memoryview(b"".join(short))] if short else views


async def open_pipe(
    plain: socket.socket,
    context: ssl.SSLContext,
    protocol: asyncio.BufferedProtocol,
    guard: Guard,
    *,
    is_server: bool,
) -> Pipe:
    """Shakes hands on a connected socket, which then belongs to the pipe; cancelling closes it.

    Raises ssl.SSLError and OSError.
    """
    plain.setblocking(False)
    tls = context.wrap_socket(plain, server_side=is_server, do_handshake_on_connect=False)
    try:
        while True:
            try:
                tls.do_handshake()
                return Pipe(tls, protocol, guard)
            except ssl.SSLWantReadError:
                await _until_ready(tls.fileno(), is_write=False)
            except ssl.SSLWantWriteError:
                await _until_ready(tls.fileno(), is_write=True)
    except BaseException:
        tls.close()
        raise


async def _until_ready(fd: int, *, is_write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if is_write else loop.add_reader)(fd, note)
    try:
        await ready
    finally:
        (loop.remove_writer if is_write else loop.remove_reader)(fd)
