"""Blobs over streams: who gets a slot."""

from __future__ import annotations

import asyncio
import socket

from blake3 import blake3

from host.network import blobs
from host.network.blobs import Download, Slots, serve_one
from host.network.streams import Loss, Wire

BLOB = b"weights " * 1000
NAME = blake3(BLOB).digest()


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
            serving.append(asyncio.ensure_future(serve_one(far, None, slots)))
        await asyncio.sleep(0)
        near, far = await pair(b"n" * 32)
        serving.append(
            asyncio.ensure_future(serve_one(far, lambda peer, name: memoryview(BLOB), slots))
        )
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
        serving = asyncio.ensure_future(serve_one(far, None, slots))
        await near.write(blobs.MAGIC + NAME + bytes(8), timeout_s=1.0)
        answer = await near.read_exactly(blobs.ANSWER_BYTES, timeout_s=5.0)
        near.close()
        await serving
        return answer

    assert asyncio.run(main())[0] == blobs.BUSY
