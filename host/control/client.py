"""Asks the daemon on this machine, from tools that must start at once.

Synchronous, and light on purpose: the standard library and msgspec, no event loop, no engine.
Frame: 4-byte big-endian length, then a MessagePack map. Request `{"verb": ..., fields}`, answer
`{"ok": true, fields}` or `{"ok": false, "error": text, "blame": "user"|"transient"|"internal"}`.

A Unix socket path may have about a hundred bytes only, and home directories can be deeper:
`reachable` then names the directory in a shorter way (`host.runtime.short_paths`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from host.runtime.short_paths import SOCKET_BYTES_MAX, short_name
from protocol import decoders
from protocol.errors import (
    InternalError,
    MalformedMessage,
    ShoalError,
    TransientError,
    UserError,
)

ENTERING: Final = "entering"
"""Verb that only a daemon on its way into its swarm answers: with the project."""

ANSWER_BYTES_MAX = 16 << 20
"""The daemon is trusted, but a foreign program behind the socket must not fill our memory."""

Answer = TypeVar("Answer")


class _Outcome(Struct):
    """Whether an answer is one, or else why not."""

    ok: bool = False
    error: str = ""
    blame: str = "user"


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A text form of `path` that fits a socket address, valid inside the block."""
    if len(os.fsencode(path)) <= SOCKET_BYTES_MAX:
        yield str(path)
        return
    with short_name(path.parent) as folder:
        yield f"{folder}/{path.name}"


class Connection:
    """A connection to one daemon that stays open from one question to the next.

    It is made with the first question, and anew where it broke. For one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wire: socket.socket | None = None

    def ask(self, verb: str, wanted: type[Answer], timeout_s: float = 2.0, **fields: Any) -> Answer:
        """The daemon's answer to `verb`, decoded as `wanted`.

        Raises TransientError when no daemon answers within `timeout_s` in all or it says "not now",
        UserError when it refuses the request, InternalError when it failed over it, and
        MalformedMessage when it does not answer as this version of Shoal would.
        """
        content = self._exchange({**fields, "verb": verb}, timeout_s)
        try:
            outcome = decoders.msgpack_decoder(_Outcome).decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._foreign() from error
        if not outcome.ok:
            raise _refused(outcome, verb)
        try:
            return decoders.msgpack_decoder(wanted).decode(content)
        except msgspec.ValidationError as error:
            raise MalformedMessage(
                f"the daemon at {self.path} is of another version of Shoal ({error}); restart it"
            ) from error

    def close(self) -> None:
        """Hangs up; another question would connect again."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _exchange(self, request: dict[str, Any], timeout_s: float) -> bytes:
        sent = msgspec.msgpack.encode(request)
        ends_s = time.monotonic() + timeout_s
        was_open = self._wire is not None
        try:
            with contextlib.ExitStack() as broken:
                broken.callback(self.close)  # A late answer must not be taken for the next one.
                try:
                    content = self._ask_once(sent, ends_s)
                except (ConnectionError, EOFError):
                    if not was_open:
                        raise
                    # The daemon restarted since the last question, or hung up on an idle viewer.
                    self.close()
                    content = self._ask_once(sent, ends_s)
                broken.pop_all()
                return content
        except TimeoutError as error:
            raise TransientError(
                f"The daemon at {self.path} did not answer within {timeout_s:g} s. It may be busy "
                "or stopped; try again, or restart it."
            ) from error
        except (OSError, EOFError) as error:
            raise TransientError(
                f"No daemon answers at {self.path}. Start one, or check --home."
            ) from error

    def _ask_once(self, request: bytes, ends_s: float) -> bytes:
        wire = self._wire
        if wire is None:
            wire = self._wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            wire.settimeout(max(ends_s - time.monotonic(), 1e-3))
            with reachable(self.path) as address:
                wire.connect(address)
        wire.settimeout(max(ends_s - time.monotonic(), 1e-3))
        wire.sendall(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(_read(wire, 4, ends_s), "big")
        if size > ANSWER_BYTES_MAX:
            raise self._foreign()
        return _read(wire, size, ends_s)

    def _foreign(self) -> MalformedMessage:
        return MalformedMessage(f"the program behind {self.path} does not speak Shoal's protocol")


def call(path: Path, verb: str, timeout_s: float = 2.0, **fields: Any) -> dict[str, Any]:
    """The daemon's answer to `verb` as a map; raises what `Connection.ask` does."""
    with contextlib.closing(Connection(path)) as connection:
        answer = connection.ask(verb, dict[str, Any], timeout_s, **fields)
    del answer["ok"]
    return answer


def _refused(outcome: _Outcome, verb: str) -> ShoalError:
    text = outcome.error or f"The daemon refused {verb} without a reason."
    match outcome.blame:
        case "transient":
            return TransientError(text)
        case "internal":
            return InternalError(text)
        case _:
            return UserError(text)


def _read(wire: socket.socket, size: int, ends_s: float) -> bytes:
    parts: list[bytes] = []
    while size:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        wire.settimeout(left_s)
        part = wire.recv(min(size, 1 << 16))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
