"""The local socket on which a daemon answers `shoal status`, the terminal UI and their like.

Serves any number of short questions; it pushes nothing. Framing: see `control_client`. Only the
user who runs the daemon gets in: the socket is 0600 in a directory that is 0700.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shlex
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from host.control import client
from host.options import MonitorAt
from protocol import decoders, limits
from protocol.errors import CorruptState, InternalError, ShoalError, TransientError, UserError

if TYPE_CHECKING:
    from host.control.http import Monitor

Verb = Callable[[dict[str, Any]], Awaitable[dict[str, Any]] | dict[str, Any]]
"""Gets the request's fields, returns the answer's fields; a raised ShoalError is the answer."""

CLIENTS_MAX = 32
"""More viewers than anybody has on one machine; bounds a runaway script."""

IDLE_S = 60.0
"""A viewer that asks nothing for this long is disconnected and simply connects again."""

LOOK_S = 10.0
"""Between two looks whether the socket is still there."""

log = logging.getLogger("shoal.control")


class ControlServer:
    """Answers the verbs in `handlers` on the socket at `path`, from `start` until `close`.

    A daemon runs for months, and whoever tidies up its home meanwhile would cut it off from `shoal
    status` and `shoal stop`: a socket that was removed is made again.
    """

    def __init__(
        self,
        path: Path,
        handlers: Mapping[str, Verb],
        *,
        monitor: MonitorAt | None = None,
        otherwise: Verb | None = None,
    ) -> None:
        """monitor: where to answer over HTTP as well, read-only; None: nowhere. otherwise: answers
        whatever verb has no handler."""
        self.path = path
        self._otherwise = otherwise
        self._looking: asyncio.Task[None] | None = None
        self._trouble = ""
        """Why the socket could not be made again, when that was last tried."""
        self._handlers = dict(handlers)
        self._monitor: Monitor | None = None
        if monitor is not None:
            from host.control.http import Monitor  # Few daemons have one.

            self._monitor = Monitor(monitor, self._status)
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Begin to answer. UserError when a live daemon holds the socket or its place is unsafe."""
        try:
            await self._listen()
        except OSError as error:
            raise UserError(
                f"The control socket {self.path} cannot be made: {error.strerror}. "
                "Choose another directory with --home."
            ) from error
        if self._monitor is not None:
            try:
                self._monitor.start()
            except UserError:
                await self.close()
                raise
        self._looking = asyncio.create_task(self._look_again(), name="control socket")

    async def _listen(self) -> None:
        _check_directory(self.path.parent)
        self._server = await asyncio.start_unix_server(self._serve, sock=_bind(self.path))
        self._inode = self.path.stat().st_ino

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Make the socket again if somebody removed it; what took its place is left alone."""
        if self.path.exists():
            return
        if self._server is not None:
            self._server.close()
        try:
            await self._listen()
        except (OSError, UserError) as error:
            if str(error) != self._trouble:
                log.warning("the control socket was removed and cannot be made: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
            log.warning("somebody removed the control socket; made it again")

    async def _status(self) -> dict[str, Any]:
        """What the daemon says about itself, for the monitor."""
        answer = self._handlers["status"]({})
        told = await answer if inspect.isawaitable(answer) else answer
        return dict(told["status"])

    async def close(self) -> None:
        """Stop answering, disconnect everybody, and remove the socket; takes at most 2 s."""
        if self._looking is not None:
            self._looking.cancel()
        if self._monitor is not None:
            await self._monitor.close()
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for writer in self._clients:
            writer.transport.abort()
        try:
            async with asyncio.timeout(2.0):
                await self._idle.wait()
        except TimeoutError:
            log.warning("a control request was still being answered when the socket closed")
        self._remove()

    def _remove(self) -> None:
        # A successor may already listen at the same path: only our own socket file is removed.
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            log.debug("the control socket %s was already gone", self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            writer.close()
            return
        self._clients.add(writer)
        self._idle.clear()
        try:
            while await self._answer_one(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError):
            pass  # the viewer went away, which is its good right
        finally:
            writer.close()
            self._clients.discard(writer)
            if not self._clients:
                self._idle.set()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        async with asyncio.timeout(IDLE_S):
            size = int.from_bytes(await reader.readexactly(4), "big")
            if size > limits.FRAME_BYTES_MAX:
                return False
            request = await reader.readexactly(size)
        answer = msgspec.msgpack.encode(await self._answer(request))
        if len(answer) > client.ANSWER_BYTES_MAX:
            answer = msgspec.msgpack.encode(_refusal("the answer is too long", "internal"))
        async with asyncio.timeout(IDLE_S):
            writer.write(len(answer).to_bytes(4, "big") + answer)
            await writer.drain()
        return True

    async def _answer(self, request: bytes) -> dict[str, Any]:
        try:
            fields = decoders.msgpack_decoder(dict[str, Any]).decode(request)
            verb = fields.pop("verb", None)
            handler = self._handlers.get(verb, self._otherwise) if isinstance(verb, str) else None
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                return _refusal(f"This daemon does not know {verb!r}; it knows: {known}.", "user")
            result = handler(fields)
            answer = await result if inspect.isawaitable(result) else result
            return {**answer, "ok": True}
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return _refusal("The request is not a MessagePack map.", "user")
        except TransientError as error:
            return _refusal(str(error), "transient")
        except (CorruptState, InternalError) as error:
            return _refusal(str(error), "internal")
        except ShoalError as error:
            return _refusal(str(error), "user")
        except Exception as error:
            # Root of the request: a bug in one verb must not take the daemon down, so it is logged
            # with its trace and told to the one who asked.
            log.exception("control request failed")
            return _refusal(
                f"The daemon failed over this request: {error!r}. See its log.", "internal"
            )


def _refusal(text: str, blame: str) -> dict[str, Any]:
    return {"ok": False, "error": text, "blame": blame}


def _check_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o077:
        raise UserError(
            f"The directory {directory} of the control socket is open to other users (mode "
            f"{mode:03o}). Close it with: chmod 700 {shlex.quote(str(directory))}"
        )


def _bind(path: Path) -> socket.socket:
    with client.reachable(path) as address:
        _clear_stale(address, path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            os.chmod(path, 0o600)
            listener.listen(CLIENTS_MAX)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    return listener


def _clear_stale(address: str, path: Path) -> None:
    """Remove what a killed daemon left; refuse when somebody still answers there."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise UserError(f"{path} is in the way and is not a socket. Move it away.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except (TimeoutError, BlockingIOError):
            pass  # a full accept queue belongs to somebody who lives
    raise UserError(f"A daemon already answers at {path}. Stop it first, or use another --home.")
