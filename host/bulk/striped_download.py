"""Fetching one blob over the direct connections to a peer, several pieces at a time.

Pieces are asked for in order, so that the part without gaps grows from the start: what is hashed,
what progress reports, and where streams go on if every connection breaks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from host.bulk.connection import Connection
from host.bulk.connection_io import REQUESTS_MAX, Ask
from host.bulk.frames import PIECE_BYTES_MAX
from host.network import blobs
from protocol.errors import (
    MalformedPayload,
    TransientError,
)
from protocol.ids import Digest, NodeKey, short

PIECES_PER_CONNECTION: Final = 2
"""While one comes the next is already asked for."""

PIECES_AHEAD: Final = 8
"""As many may be under way on a connection that has nothing else to do."""

PIECE_BYTES_MIN: Final = 256 << 10
PIECE_BYTES_FAR: Final = 1 << 20
"""At most so much where there are several connections: a slow one must not hold up the others."""
PIECES_WANTED: Final = 8
"""A blob is cut into so many where that makes pieces of a sensible size: two for each of four."""


@dataclass(slots=True, eq=False)
class _Piece:
    start: int
    ask: Ask
    connection: Connection


class ChannelBroke(TransientError):
    """No direct connection is left; the first `filled` bytes are here."""

    def __init__(self, text: str, filled: int) -> None:
        super().__init__(text)
        self.filled = filled


class StripedDownload:
    """One transfer into `into`, whose first `offset` bytes came earlier."""

    def __init__(
        self,
        peer: NodeKey,
        digest: Digest,
        into: memoryview,
        connections: Callable[[], list[Connection]],
        *,
        offset: int = 0,
        timeout_s: float = blobs.READ_S,
        on_progress: Callable[[int], None] | None = None,
        on_answer: Callable[[float], None] | None = None,
        is_checked: bool = True,
    ) -> None:
        """connections: those that stand now. is_checked: see `Transport.fetch`."""
        self._peer = peer
        self._digest = digest
        self._view = memoryview(into)
        self._connections = connections
        self._filled = self._told = offset
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._on_answer = on_answer
        self._hash = blobs.PrefixHash(self._view) if is_checked else None
        self._pieces: list[_Piece] = []
        self._todo: list[tuple[int, int]] = [(offset, len(into))]
        """Ranges that nobody was asked for, the first one first."""
        self._done: list[tuple[int, int]] = []
        """Ranges that are here, beyond `_filled`."""
        self._over_bytes = 0
        """Came in pieces that are over."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Receives the rest and checks it, where that is asked for.

        Raises NotHeld, PeerBusy, MalformedPayload (wrong length or digest), MalformedMessage, and
        ChannelBroke when no connection stands any more or none brings anything.
        """
        try:
            await self._receive()
            if self._hash is not None and await self._hash.digest() != self._digest:
                raise MalformedPayload(
                    f"host {short(self._peer)} sent bytes that do not match {short(self._digest)}"
                )
        finally:
            for piece in self._pieces:
                piece.connection.drop(piece.ask)
            if self._hash is not None:
                await self._hash.join()
            self._view.release()

    async def _receive(self) -> None:
        clock = asyncio.get_running_loop().time
        floor_s, floor_from, heard_s = clock() + blobs.FLOOR_WINDOW_S, self._came(), clock()
        while True:
            before = self._came()
            self._changed.clear()
            self._collect()
            if self._on_progress is not None and self._filled > self._told:
                self._told = self._filled
                self._on_progress(self._filled)
            if not self._todo and not self._pieces:
                return
            self._ask_for_more()
            if self._hash is not None:
                self._hash.up_to(self._filled)
            heard_s = await self._wait(heard_s if self._came() == before else clock())
            if clock() >= floor_s:
                if self._came() - floor_from < blobs.FLOOR_BYTES:
                    raise self._broke(f"host {short(self._peer)} sends too slowly")
                floor_s, floor_from = clock() + blobs.FLOOR_WINDOW_S, self._came()

    async def _wait(self, heard_s: float) -> float:
        """Until something has come; when that was."""
        try:
            async with asyncio.timeout_at(heard_s + self._timeout_s):
                await self._changed.wait()
        except TimeoutError as error:
            raise self._broke(f"host {short(self._peer)} sent nothing in time") from error
        return asyncio.get_running_loop().time()

    def _collect(self) -> None:
        """Takes note of what has come, and of what will not."""
        for piece in self._pieces.copy():
            ask = piece.ask
            if ask.status is not None:
                self._check(ask, ask.status)
            if not ask.is_whole and ask.error is None:
                continue
            self._pieces.remove(piece)
            self._over_bytes += ask.filled
            came, end = piece.start + ask.filled, piece.start + ask.count
            heapq.heappush(self._done, (piece.start, came))
            if not ask.is_whole:
                heapq.heappush(self._todo, (came, end))
        while self._done and self._done[0][0] <= self._filled:
            self._filled = max(self._filled, heapq.heappop(self._done)[1])
        for piece in self._pieces:
            if piece.start <= self._filled:
                self._filled = max(self._filled, piece.start + piece.ask.filled)

    def _check(self, ask: Ask, status: int) -> None:
        if self._on_answer is not None:
            self._on_answer(ask.answer_s)
            self._on_answer = None
        blobs.check_answer(self._peer, self._digest, len(self._view), status, ask.total)

    def _ask_for_more(self) -> None:
        while self._todo:
            connection = self._least_busy()
            if connection is None:
                return
            start, end = heapq.heappop(self._todo)
            stop = min(end, start + self._piece_bytes(len(self._connections())))
            if stop < end:
                heapq.heappush(self._todo, (stop, end))
            ask = connection.ask(self._digest, start, self._view[start:stop], self._changed.set)
            self._pieces.append(_Piece(start, ask, connection))

    def _least_busy(self) -> Connection | None:
        """Where the next piece is asked for; None while each has enough to do."""
        standing = [one for one in self._connections() if one.is_open]
        if not standing and not self._pieces:
            raise self._broke(f"no direct connection to host {short(self._peer)} stands")
        mine = {one: 0 for one in standing}
        for piece in self._pieces:
            if piece.connection in mine:
                mine[piece.connection] += 1
        free = [
            one
            for one in standing
            if one.outstanding < PIECES_AHEAD // len(standing)
            or (mine[one] < PIECES_PER_CONNECTION and one.outstanding < REQUESTS_MAX)
        ]
        return min(free, key=lambda one: (mine[one], one.outstanding), default=None)

    def _piece_bytes(self, connections: int) -> int:
        wanted = -(-len(self._view) // PIECES_WANTED)
        most = PIECE_BYTES_MAX if connections == 1 else PIECE_BYTES_FAR
        return max(PIECE_BYTES_MIN, min(most, wanted))

    def _came(self) -> int:
        return self._over_bytes + sum(piece.ask.filled for piece in self._pieces)

    def _broke(self, why: str) -> ChannelBroke:
        return ChannelBroke(
            f"transfer ended at {self._filled} of {len(self._view)} bytes: {why}", self._filled
        )
