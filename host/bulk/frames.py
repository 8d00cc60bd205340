"""Frames of the direct channel, read without IO: bytes into given memory in, frames out.

Both ends ask and answer on the same connection. After a greeting of 8 bytes everything is a frame:
a header of 20 bytes, numbers big-endian, and what belongs to it:

    kind u8, status u8, zero u16, id u32, length u32, number u64
    request   number: offset; length: bytes wanted from there; then the blob's digest, 32 bytes
    answer    status as on streams; number: bytes of the whole blob, or sections; length: 0
    data      length: bytes that follow, of what the request of this id has asked for

An answer of status 0 is followed by data frames, in order, until all that was asked for has come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol import limits
from protocol.errors import LimitExceeded, MalformedMessage
from protocol.ids import Digest

CHANNEL_VERSION: Final = 1
GREETING: Final = b"SHOALX" + CHANNEL_VERSION.to_bytes(2, "big")

HEADER: Final = struct.Struct(">BBHIIQ")
REQUEST_KIND, ANSWER_KIND, DATA_KIND = 1, 2, 3
DIGEST_BYTES: Final = 32

PIECE_BYTES_MAX: Final = 4 << 20
"""What one request asks for."""

DATA_BYTES_MAX: Final = 1 << 20
"""One data frame; each costs both ends some microseconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """The other end wants `count` bytes of a blob."""

    id: int
    digest: Digest
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other end says to request `id`; `total` is the length of the whole blob."""

    id: int
    status: int
    total: int


@dataclass(frozen=True, slots=True)
class Data:
    """So many bytes have come into the memory that was given for `id`."""

    id: int
    count: int


@dataclass(frozen=True, slots=True)
class Greeted:
    """The other end speaks this protocol."""


Frame = Request | Answer | Data | Greeted


def request_bytes(request: Request) -> bytes:
    """A request as sent."""
    header = HEADER.pack(REQUEST_KIND, 0, 0, request.id, request.count, request.offset)
    return header + request.digest


def answer_bytes(answer: Answer) -> bytes:
    """An answer as sent."""
    return HEADER.pack(ANSWER_KIND, answer.status, 0, answer.id, 0, answer.total)


def data_header(id: int, count: int) -> bytes:
    """What goes before `count` bytes of data."""
    return HEADER.pack(DATA_KIND, 0, 0, id, count, 0)


class FrameReader:
    """Reads frames: fill a part of `buffer()`, say how much with `took()`.

    room(id): memory for the bytes of request `id` that come next. Asked anew each time, so that
    whoever has lost interest can take its memory back at any moment. Raises MalformedMessage for
    an id that was not asked for.
    """

    def __init__(self, room: Callable[[int], memoryview]) -> None:
        self._room = room
        self._head = memoryview(bytearray(HEADER.size + DIGEST_BYTES))
        self._wanted = len(GREETING)
        self._have = 0
        self._is_greeted = False
        self._data_id = 0
        self._data_left = 0

    def buffer(self, size_max: int = DATA_BYTES_MAX) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._data_left:
            return self._room(self._data_id)[: min(self._data_left, size_max)]
        return self._head[self._have : self._wanted]

    def took(self, count: int) -> Frame | None:
        """So many bytes were put into `buffer()`; the frame that they complete, if they do.

        Raises MalformedMessage and LimitExceeded; nothing can be read afterwards.
        """
        if self._data_left:
            self._data_left -= count
            return Data(self._data_id, count)
        self._have += count
        if self._have < self._wanted:
            return None
        return self._complete()

    def _complete(self) -> Frame | None:
        if not self._is_greeted:
            if self._head[: self._have] != GREETING:
                raise MalformedMessage("the other end does not speak the direct channel")
            self._is_greeted = True
            self._expect(HEADER.size)
            return Greeted()
        kind, status, zero, id, length, number = HEADER.unpack_from(self._head)
        if zero:
            raise MalformedMessage("a frame's reserved bits are not zero")
        match kind:
            case 1:
                return self._request(id, length, number)
            case 2:
                self._expect(HEADER.size)
                return Answer(id, status, number)
            case 3:
                self._expect(HEADER.size)
                self._begin_data(id, length)
                return None
        raise MalformedMessage(f"a frame of unknown kind {kind}")

    def _request(self, id: int, length: int, offset: int) -> Frame | None:
        if length > PIECE_BYTES_MAX or offset > limits.BLOB_BYTES_MAX:
            raise LimitExceeded(f"a request for {length} bytes at {offset}")
        if self._have == HEADER.size:
            self._wanted = HEADER.size + DIGEST_BYTES
            return None
        digest = bytes(self._head[HEADER.size :])
        self._expect(HEADER.size)
        return Request(id, digest, offset, length)

    def _begin_data(self, id: int, length: int) -> None:
        if not 0 < length <= DATA_BYTES_MAX:
            raise LimitExceeded(f"a data frame of {length} bytes")
        if length > len(self._room(id)):
            raise MalformedMessage(f"{length} bytes of data where fewer were asked for")
        self._data_id, self._data_left = id, length

    def _expect(self, wanted: int) -> None:
        self._have, self._wanted = 0, wanted
