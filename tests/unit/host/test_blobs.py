"""Blobs over streams: who gets a slot."""

from __future__ import annotations

import asyncio
import socket

from blake3 import blake3

from host.network import blobs
from host.network.blobs import Download, serve_one
from host.network.slots import Slots
from host.network.streams import Loss, Wire
from protocol import limits

BLOB = b"weights " * (limits.BLOB_CHUNK_BYTES // 8 + 1)
GENESIS = b"genesis " * 1000
NAME = blake3(BLOB).digest()


def held(peer: bytes, name: bytes) -> memoryview | None:
    """What the serving host has."""
    return {NAME: memoryview(BLOB), blake3(GENESIS).digest(): memoryview(GENESIS)}.get(name)


async def pair(peer: bytes) -> tuple[Wire, Wire]:
    """The asker's end, and the end of who serves it."""
    near, far = [
        Wire(peer, *await asyncio.open_unix_connection(sock=end), loss=Loss(), counters=())
        for end in socket.socketpair()
    ]
    return near, far


def test_streams_that_never_finish_their_request_keep_nobody_waiting():
    async def main() -> bytes:
        slots = Slots(total_max=4, per_peer_max=4)
        silent, serving = [], []
        for at in range(12):
            near, far = await pair(bytes([at]) * 32)
            await near.write(blobs.MAGIC + NAME[: at * 2], timeout_s=1.0)
            silent.append(near)
            serving.append(asyncio.ensure_future(serve_one(far, held, slots, Slots(4, 4))))
        await asyncio.sleep(0)
        near, far = await pair(b"n" * 32)
        serving.append(asyncio.ensure_future(serve_one(far, held, slots, Slots(4, 4))))
        into = bytearray(len(BLOB))
        await Download(NAME, memoryview(into)).run(near)
        for one in silent:
            one.abort("over")
        await asyncio.gather(*serving, return_exceptions=True)
        assert slots.used == 0
        return bytes(into)

    assert asyncio.run(main()) == BLOB


def test_who_asks_while_all_slots_are_taken_is_told_so(monkeypatch):
    monkeypatch.setattr(blobs, "BUSY_AFTER_S", 0.0)

    async def main() -> bytes:
        slots = Slots(total_max=1, per_peer_max=1)
        assert slots.try_take(b"o" * 32)
        near, far = await pair(b"n" * 32)
        serving = asyncio.ensure_future(serve_one(far, held, slots, Slots(1, 1)))
        await near.write(blobs.MAGIC + NAME + bytes(8), timeout_s=1.0)
        answer = await near.read_exactly(blobs.ANSWER_BYTES, timeout_s=5.0)
        near.close()
        await serving
        return answer

    assert asyncio.run(main())[0] == blobs.BUSY


def test_a_genesis_is_given_though_others_hold_every_slot_for_weights():
    async def main() -> bytes:
        slots, small = Slots(4, 4), Slots(2, 2)
        assert all(slots.try_take(b"o" * 32) for _ in range(4))
        # Who fetched one before and does not hang up holds no slot either.
        lingering, serving = [], []
        for at in range(4):
            near, far = await pair(bytes([at]) * 32)
            serving.append(asyncio.ensure_future(serve_one(far, held, slots, small)))
            request = blobs.MAGIC + blake3(GENESIS).digest() + bytes(8)
            await near.write(request, timeout_s=1.0)
            assert (await near.read_exactly(1, timeout_s=5.0))[0] == blobs.OK
            lingering.append(near)
        near, far = await pair(b"n" * 32)
        serving.append(asyncio.ensure_future(serve_one(far, held, slots, small)))
        into = bytearray(len(GENESIS))
        await Download(blake3(GENESIS).digest(), memoryview(into)).run(near)
        for one in lingering:
            one.abort("over")
        await asyncio.gather(*serving, return_exceptions=True)
        assert small.used == 0
        return bytes(into)

    assert asyncio.run(main()) == GENESIS


def test_who_asks_for_what_is_not_here_takes_no_slot():
    async def main() -> bytes:
        slots = Slots(1, 1)
        assert slots.try_take(b"o" * 32)
        near, far = await pair(b"n" * 32)
        serving = asyncio.ensure_future(serve_one(far, held, slots, slots))
        await near.write(blobs.MAGIC + bytes(32) + bytes(8), timeout_s=1.0)
        answer = await near.read_exactly(blobs.ANSWER_BYTES, timeout_s=5.0)
        near.close()
        await serving
        return answer

    assert asyncio.run(main())[0] == blobs.NOT_HELD
