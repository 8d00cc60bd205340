"""Hosts whose network engine is a socket pair: bulk data and direct channels alone, on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from blake3 import blake3

from host.bulk import channels
from host.bulk.transfers import BLOB_PROTOCOL, Bulk
from host.files import keystore
from host.network import slots
from host.network.foreign_errors import Loss
from host.network.rate_limit import RateLimiter
from host.network.round_trips import RoundTrips
from host.network.streams import Traffic, Wire
from host.options import BulkAt
from protocol.errors import PeerUnreachable, RemoteError, ShoalError

LOOPBACK = "127.0.0.1"


class Side:
    """One host. `knows_channels`: False for one from before there were any."""

    def __init__(self, folder: Path, name: str, at: BulkAt, *, knows_channels: bool = True):
        self.identity = keystore.load_or_create(folder / name / "key")
        self.key = self.identity.key
        self.faults: list[RemoteError] = []
        self.rate_limiter, self.round_trips, self.traffic = RateLimiter(), RoundTrips(), Traffic()
        self.others: dict[bytes, Side] = {}
        self.addresses = (f"/ip4/{LOOPBACK}/tcp/1/p2p/x",)
        self.blobs: dict[bytes, bytes] = {}
        self.streams = 0
        """Blob streams that were dialled."""
        self.knows_channels = knows_channels
        self._tasks: set[asyncio.Task[None]] = set()
        self.bulk = Bulk(
            self.identity,
            at,
            self.rate_limiter,
            self.round_trips,
            lambda _: (self.traffic,),
            self.dial,
            self.where,
            self.faults.append,
            slots.NOBODY_KNOWN,
        )
        self.bulk.serve(self._look_up, None)
        self.channels = self.bulk.channels

    def _look_up(self, _: bytes, digest: bytes) -> memoryview | None:
        found = self.blobs.get(digest)
        return None if found is None else memoryview(found)

    async def where(self, _: bytes) -> tuple[str, ...]:
        return self.addresses

    async def dial(self, peer: bytes, protocol: str) -> Wire:
        """A stream to the other side, which knows who dials, as with the engine."""
        other = self.others[peer]
        if protocol == channels.PROTOCOL and not other.knows_channels:
            raise PeerUnreachable("protocols not supported")
        self.streams += protocol == BLOB_PROTOCOL
        serve = other.bulk.accept if protocol == BLOB_PROTOCOL else other.channels.answer
        near, far = socket.socketpair()
        wires = [
            Wire(key, *await asyncio.open_unix_connection(sock=end), loss=Loss(), counters=())
            for key, end in ((peer, near), (self.key, far))
        ]
        task = asyncio.ensure_future(_served(serve(wires[1]), wires[1]))
        self._tasks.add(task)
        return wires[0]

    async def fetch(self, other: Side, blob: bytes, **options) -> memoryview:
        defaults = {"timeout_s": 10.0, "into": None, "offset": 0, "on_progress": None}
        digest = blake3(blob).digest()
        return await self.bulk.fetch(other.key, digest, len(blob), **{**defaults, **options})

    def hold(self, blob: bytes) -> bytes:
        """From now on this side serves it; its digest."""
        digest = blake3(blob).digest()
        self.blobs[digest] = blob
        return digest

    async def close(self) -> None:
        await self.channels.close()
        for task in self._tasks:
            task.cancel()


async def _served(serving, wire: Wire) -> None:
    try:
        await serving
    except ShoalError as error:
        wire.abort(str(error))


@asynccontextmanager
async def sides(
    folder: Path,
    count: int = 2,
    at: BulkAt = BulkAt(),  # noqa: B008  # Frozen.
) -> AsyncIterator[list[Side]]:
    """Hosts that can reach each other, with their listeners open."""
    made = [Side(folder, f"side{number}", at) for number in range(count)]
    for one in made:
        one.others = {other.key: other for other in made if other is not one}
    try:
        for one in made:
            await one.channels.open(LOOPBACK)
        yield made
    finally:
        for one in made:
            await one.close()


async def agree(asker: Side, other: Side) -> None:
    """Until both say that they have a direct channel, or the asker why it has none."""

    def is_over():
        has = asker.channels.to(other.key) and other.channels.to(asker.key)
        return has or asker.channels.reason(other.key)

    asker.channels.wanted(other.key, 1 << 30, 0.0)
    await until(is_over)


async def until(is_so: Callable[[], object]) -> None:
    """Looks again and again; the test's own time limit ends it."""
    while not is_so():  # noqa: ASYNC110  # Real sockets tell nobody.
        await asyncio.sleep(0.01)
