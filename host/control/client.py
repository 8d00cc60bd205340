"""Asks the daemon on this machine, from tools that must start at once.

Synchronous, and light on purpose: the standard library and msgspec, no event loop, no engine.
Frame: 4-byte big-endian length, then a MessagePack map. Request `{"verb": ..., fields}`, answer
`{"ok": true, fields}` or `{"ok": false, "error": text, "blame": "user"|"transient"|"internal"}`.

A Unix socket path may have 107 bytes only, and home directories can be deeper: `reachable`
then goes through a descriptor of the directory (`/proc/self/fd/N/name`), which is short
for any path.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import InternalError, MalformedMessage, TransientError, UserError

ANSWER_BYTES_MAX = 16 << 20
"""The daemon is trusted, but a foreign program behind the socket must not fill our memory."""

_PATH_BYTES_MAX = 107


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A text form of `path` that fits a socket address, valid inside the block."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def call(path: Path, verb: str, timeout_s: float = 2.0, **fields: Any) -> dict[str, Any]:
    """The daemon's answer to `verb`, without its `ok`.

    Raises TransientError when no daemon answers within `timeout_s` in all or it says "not now",
    UserError when it refuses the request, InternalError when it failed over it.
    """
    ends_s = time.monotonic() + timeout_s
    request = msgspec.msgpack.encode({**fields, "verb": verb})
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
            wire.settimeout(timeout_s)
            with reachable(path) as address:
                wire.connect(address)
            wire.sendall(len(request).to_bytes(4, "big") + request)
            size = int.from_bytes(_read(wire, 4, ends_s), "big")
            if size > ANSWER_BYTES_MAX:
                raise MalformedMessage(f"the program behind {path} does not speak Shoal's protocol")
            answer = msgspec.msgpack.decode(_read(wire, size, ends_s), type=dict[str, Any])
    except TimeoutError as error:
        raise TransientError(
            f"The daemon at {path} did not answer within {timeout_s:g} s. It may be busy or "
            "stopped; try again, or restart it."
        ) from error
    except (OSError, EOFError) as error:
        raise TransientError(f"No daemon answers at {path}. Start one, or check --home.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(
            f"the program behind {path} does not speak Shoal's protocol"
        ) from error
    return _unwrap(answer, verb)


def _unwrap(answer: dict[str, Any], verb: str) -> dict[str, Any]:
    if answer.pop("ok", False) is True:
        return answer
    text = str(answer.get("error", f"the daemon refused {verb} without a reason"))
    match answer.get("blame"):
        case "transient":
            raise TransientError(text)
        case "internal":
            raise InternalError(text)
        case _:
            raise UserError(text)


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
