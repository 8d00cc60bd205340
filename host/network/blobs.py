"""Bulk transfers: content-addressed, asked for by the receiver, resumable at any byte.

Request, 48 bytes: magic and version (8), blake3 digest (32), offset (u64). Answer: status (u8),
total length (u64), then the bytes from the offset. Of what is not held the length says which
sections of it are (`protocol.numerics.chunks.section_of`). All numbers big-endian. The receiver
believes nothing: length and digest come from a signed statement that it already holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from blake3 import blake3

from host.network.rate_limit import Way, wait_turn
from host.network.slots import Slots
from host.network.streams import StreamEnded, Wire
from host.network.token_bucket import PIECE_BYTES, TokenBucket
from protocol import limits
from protocol.errors import (
    MalformedMessage,
    MalformedPayload,
    NotHeld,
    PeerBusy,
    PeerUnreachable,
)
from protocol.ids import Digest, NodeKey, short

BlobLookup = Callable[[NodeKey, Digest], memoryview | None]
"""The bytes of a digest for this asker, or None. Called on the event loop: it must not read disks.
The view must stay valid until the transfer has dropped it."""

SectionsLookup = Callable[[NodeKey, Digest], int]
"""Of an array whose manifest is not given, as something of it is missing: one bit for each of its
sections that is here. 0 of anything else."""

PaceLookup = Callable[[NodeKey, Digest], TokenBucket | None]
"""What limits the rate at which a blob leaves for this asker, or None."""

MAGIC = b"SHOALB" + limits.WIRE_VERSION.to_bytes(2, "big")
REQUEST_BYTES = len(MAGIC) + 32 + 8
ANSWER_BYTES = 1 + 8
OK, NOT_HELD, BUSY = 0, 1, 2

REQUEST_S = 5.0
"""From the beginning of a stream to the whole request, which its opener writes at once."""

END_S = 10.0
"""For the receiver to close, once everything is sent."""

BUSY_AFTER_S = 2.0
"""A full house makes the asker wait this long before it is sent elsewhere: the slot of its own last
transfer is often just being freed."""

READ_S = 20.0
SMALL_S = 10.0
"""For a blob of one write, whoever reads it."""

WRITE_S = 60.0
"""One chunk of 256 KiB must leave within this: 4 KB/s, slower than any line worth serving."""

FLOOR_BYTES = 64 << 10
FLOOR_WINDOW_S = 60.0
"""A peer that trickles below this rate holds a slot for nothing; another donor is asked."""

HASH_BATCH_BYTES = 1 << 20
"""So much is worth a thread, in which the hash is computed while more comes. Less than that at the
end is hashed on the event loop, in a fifth of a millisecond."""

FETCHES_MAX = 64
"""Streams that we open at once; the engine's accept queue fails some way above that."""


async def serve_one(
    wire: Wire,
    lookup: BlobLookup | None,
    slots: Slots,
    small_slots: Slots,
    pace: PaceLookup | None = None,
    way: Way | None = None,
    sections: SectionsLookup | None = None,
) -> None:
    """Answers the one request on `wire` and ends the stream. Raises what the wire raises.

    small_slots: for what fits into one write. way: what limits everything that this host sends.
    sections: what to say of a blob that is not held.
    """
    try:
        request = await wire.read_exactly(REQUEST_BYTES, timeout_s=REQUEST_S)
        if not request.startswith(MAGIC):
            raise MalformedMessage(f"host {short(wire.peer)} does not speak the blob protocol")
        digest, offset = request[8:40], int.from_bytes(request[40:], "big")
        blob = lookup(wire.peer, digest) if lookup else None
        # Slots are taken only now: streams that ask for nothing, or in vain, keep nobody waiting.
        if blob is None or offset > len(blob):
            await _answer(wire, NOT_HELD, sections(wire.peer, digest) if sections else 0)
            await wire.wait_ended(timeout_s=END_S)
        else:
            bucket = pace(wire.peer, digest) if pace else None
            is_small = len(blob) <= limits.BLOB_CHUNK_BYTES
            serve = _serve_small if is_small else _serve_large
            await serve(
                wire, blob, offset, small_slots if is_small else slots, bucket, way or Way()
            )
    finally:
        wire.close()


async def _serve_small(
    wire: Wire, blob: memoryview, offset: int, slots: Slots, bucket: TokenBucket | None, way: Way
) -> None:
    """A genesis, say, which a newcomer gets whoever else fetches weights. Its slot is soon free."""
    if await _wait_for_slot(wire, slots):
        try:
            async with asyncio.timeout(SMALL_S):
                await _send(wire, blob, offset, bucket, way)
        except TimeoutError as error:
            raise PeerUnreachable(f"host {short(wire.peer)} reads too slowly") from error
        finally:
            slots.release(wire.peer)
    else:
        await _answer(wire, BUSY, 0)
    await wire.wait_ended(timeout_s=END_S)


async def _serve_large(
    wire: Wire, blob: memoryview, offset: int, slots: Slots, bucket: TokenBucket | None, way: Way
) -> None:
    has_slot = await _wait_for_slot(wire, slots)
    try:
        if has_slot:
            await _send(wire, blob, offset, bucket, way)
        else:
            await _answer(wire, BUSY, 0)
        # The receiver closes first: a sender that hangs up early can cut off its own last bytes.
        await wire.wait_ended(timeout_s=END_S)
    finally:
        if has_slot:
            slots.release(wire.peer)


async def _wait_for_slot(wire: Wire, slots: Slots) -> bool:
    try:
        async with asyncio.timeout(BUSY_AFTER_S):
            await slots.take(wire.peer, wire.address)
    except TimeoutError:
        return False
    return True


async def _answer(wire: Wire, status: int, total: int) -> None:
    await wire.write(bytes([status]) + total.to_bytes(8, "big"), timeout_s=WRITE_S)


async def _send(
    wire: Wire, blob: memoryview, offset: int, bucket: TokenBucket | None, way: Way
) -> None:
    await _answer(wire, OK, len(blob))
    start = offset
    while start < len(blob):
        step = limits.BLOB_CHUNK_BYTES if bucket is None else PIECE_BYTES
        piece = blob[start : start + min(step, way.piece_bytes or step)]
        await wait_turn(way, len(piece), bucket)
        await wire.write(piece, timeout_s=WRITE_S)
        start += len(piece)


def room_for(length: int) -> memoryview:
    """Memory for a blob; what is in it is nobody's business before all of it has come.

    Where that is large it is the memory of an earlier one: clearing new pages cost a fifth of what
    receiving did, and with a bytearray the event loop stood still for 0.4 s for 300 MB.
    """
    if length < HASH_BATCH_BYTES:
        return memoryview(bytearray(length))
    from protocol.numerics import buffers  # Witnesses, to whom nothing large comes, have no NumPy.

    return buffers.empty_bytes(length).data


class PrefixHash:
    """The hash of memory that is filled from its start, a little behind whoever fills it."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._hasher = blake3()
        self._hashed = 0
        self._hashing: asyncio.Future[object] | None = None

    def up_to(self, end: int) -> None:
        """So much is filled. Never waits: what comes while a batch is hashed makes up the next."""
        is_busy = self._hashing is not None and not self._hashing.done()
        if end - self._hashed >= HASH_BATCH_BYTES and not is_busy:
            self._begin(end)

    async def digest(self) -> Digest:
        """Of the whole memory, which is filled now."""
        await self.join()
        if len(self._view) - self._hashed > HASH_BATCH_BYTES:
            self._begin(len(self._view))
            await self.join()
        else:
            self._hasher.update(self._view[self._hashed :])
        return self._hasher.digest()

    async def join(self) -> None:
        """Until nothing reads the memory any more."""
        if self._hashing is not None:
            await asyncio.wait({self._hashing})
            self._hashing = None

    def _begin(self, end: int) -> None:
        fresh = self._view[self._hashed : end]
        self._hashed = end
        loop = asyncio.get_running_loop()
        self._hashing = loop.run_in_executor(None, self._hasher.update, fresh)


def check_answer(peer: NodeKey, digest: Digest, length: int, status: int, total: int) -> None:
    """Raises NotHeld, PeerBusy, MalformedMessage (status) or MalformedPayload (another length)."""
    if status == NOT_HELD:
        raise NotHeld(f"host {short(peer)} does not hold {short(digest)}", held_sections=total)
    if status == BUSY:
        raise PeerBusy(f"host {short(peer)} serves as many transfers as it may")
    if status != OK:
        raise MalformedMessage(f"host {short(peer)} answered with unknown status {status}")
    if total != length:
        raise MalformedPayload(
            f"host {short(peer)} has {total} bytes under {short(digest)}, signed are {length}"
        )


class Download:
    """One transfer into `into`, whose first `offset` bytes came earlier."""

    def __init__(
        self,
        digest: Digest,
        into: memoryview,
        *,
        offset: int = 0,
        timeout_s: float = READ_S,
        on_progress: Callable[[int], None] | None = None,
        on_answer: Callable[[float], None] | None = None,
        way: Way | None = None,
        is_checked: bool = True,
    ) -> None:
        """on_answer: gets the seconds from the request to the first bytes of the answer. way: what
        limits everything that this host receives. is_checked: see `Transport.fetch`."""
        assert 0 <= offset <= len(into), "the part that came earlier is longer than the blob"
        self._digest = digest
        self._view = memoryview(into)  # our own, to be released without closing the caller's
        self._offset = offset
        self._filled = offset
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._on_answer = on_answer
        self._way = way or Way()
        self._hash = PrefixHash(self._view) if is_checked else None

    async def run(self, wire: Wire) -> None:
        """Receives the rest, checks it where that is asked for, and closes the wire in any case.

        Raises NotHeld, PeerBusy, PeerUnreachable (ended, stalled or too slow; bytes so
        far are kept), TransportLost, MalformedPayload (wrong length or digest).
        """
        try:
            await self._request(wire)
            await self._receive(wire)
            if self._hash is not None and await self._hash.digest() != self._digest:
                raise MalformedPayload(
                    f"host {short(wire.peer)} sent bytes that do not match {short(self._digest)}"
                )
        finally:
            wire.abort("the transfer is over")
            if self._hash is not None:
                await self._hash.join()
            self._view.release()

    async def _request(self, wire: Wire) -> None:
        request = MAGIC + self._digest + self._offset.to_bytes(8, "big")
        asked_s = time.monotonic()  # the loop's own clock stands still within a turn
        await wire.write(request, timeout_s=WRITE_S)
        try:
            answer = await wire.read_exactly(ANSWER_BYTES, timeout_s=self._timeout_s)
        except StreamEnded as error:
            raise self._cut(str(error)) from error
        status, total = answer[0], int.from_bytes(answer[1:], "big")
        if self._on_answer is not None and status != BUSY:
            self._on_answer(time.monotonic() - asked_s)
        check_answer(wire.peer, self._digest, len(self._view), status, total)

    async def _receive(self, wire: Wire) -> None:
        clock = asyncio.get_running_loop().time
        window_ends_s, window_from = clock() + FLOOR_WINDOW_S, self._filled
        size = len(self._view)
        while self._filled < size:
            step = self._way.piece_bytes or limits.BLOB_CHUNK_BYTES
            wanted = min(step, size - self._filled)
            try:
                part = await wire.read_some(wanted, timeout_s=self._timeout_s)
            except PeerUnreachable as error:
                raise self._cut(str(error)) from error
            if not part:
                raise self._cut(f"host {short(wire.peer)} ended the stream")
            self._view[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._on_progress is not None:
                self._on_progress(self._filled)
            if self._hash is not None:
                self._hash.up_to(self._filled)
            # What our own ceiling makes slow is not held against the sender.
            window_ends_s += await wait_turn(self._way, len(part))
            if clock() >= window_ends_s:
                if self._filled - window_from < FLOOR_BYTES:
                    raise self._cut(f"host {short(wire.peer)} sends too slowly")
                window_ends_s, window_from = clock() + FLOOR_WINDOW_S, self._filled

    def _cut(self, why: str) -> PeerUnreachable:
        return PeerUnreachable(
            f"transfer ended at {self._filled} of {len(self._view)} bytes: {why}"
        )
