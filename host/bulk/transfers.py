"""Bulk data of one host: each transfer over a direct channel where one stands, else over a stream.

A channel that breaks in the middle of a transfer costs nothing but time: a stream goes on from the
last byte without gap before it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from host.bulk.channels import Channels
from host.bulk.connection_io import Found, Lacking
from host.bulk.striped_download import ChannelBroke, StripedDownload
from host.files.keystore import Identity
from host.network import blobs
from host.network.blobs import BlobLookup, PaceLookup, SectionsLookup
from host.network.rate_limit import RateLimiter
from host.network.round_trips import RoundTrips
from host.network.slots import IsMember, Reserve, Slots
from host.network.streams import Traffic, Wire
from host.options import BulkAt
from protocol import limits
from protocol.errors import InternalError, LimitExceeded, RemoteError
from protocol.ids import Digest, NodeKey

MEMBERS_SERVED = 8
STRANGERS_SERVED_MAX = 12
"""Of the streams served at once: left to members, and taken by strangers of one network address.
So one address can keep a newcomer waiting only where another one helps it."""

BLOB_PROTOCOL = f"shoal.blob.{limits.WIRE_VERSION}"


class Bulk:
    """Fetches blobs from peers and serves them."""

    def __init__(
        self,
        identity: Identity,
        at: BulkAt,
        rate_limiter: RateLimiter,
        round_trips: RoundTrips,
        counters: Callable[[NodeKey], tuple[Traffic, ...]],
        dial: Callable[[NodeKey, str], Awaitable[Wire]],
        where: Callable[[NodeKey], Awaitable[tuple[str, ...]]],
        on_fault: Callable[[RemoteError], None],
        is_member: IsMember,
    ) -> None:
        """dial: a stream to a peer over the engine. where: the addresses it is connected at."""
        self._rate_limiter = rate_limiter
        self._round_trips = round_trips
        self._dial = dial
        self._lookup: BlobLookup | None = None
        self._pace: PaceLookup | None = None
        self._sections: SectionsLookup | None = None
        reserve = Reserve(MEMBERS_SERVED, STRANGERS_SERVED_MAX, is_member)
        served_max, per_peer_max = limits.STREAMS_SERVED_MAX, limits.STREAMS_PER_PEER_MAX
        self._serve_slots = Slots(served_max, per_peer_max, reserve)
        self._small_slots = Slots(served_max, per_peer_max, reserve)
        self._fetch_slots = Slots(blobs.FETCHES_MAX, limits.STREAMS_PER_PEER_MAX)
        self.channels = Channels(
            identity,
            at,
            rate_limiter=rate_limiter,
            counters=counters,
            dial=dial,
            where=where,
            find=self._find,
            on_fault=on_fault,
        )

    def serve(
        self, lookup: BlobLookup, pace: PaceLookup | None, sections: SectionsLookup | None = None
    ) -> None:
        """From now on peers may fetch what `lookup` finds, as fast as `pace` allows, and hear of
        `sections` of what it does not find."""
        self._lookup, self._pace, self._sections = lookup, pace, sections

    async def accept(self, wire: Wire) -> None:
        """Serves one stream."""
        way = self._rate_limiter.up
        slots, small_slots = self._serve_slots, self._small_slots
        await blobs.serve_one(
            wire, self._lookup, slots, small_slots, self._pace, way, self._sections
        )

    def _find(self, peer: NodeKey, digest: Digest) -> Found | Lacking:
        blob = self._lookup(peer, digest) if self._lookup else None
        if blob is None:
            return Lacking(self._sections(peer, digest) if self._sections else 0)
        return blob, self._pace(peer, digest) if self._pace else None

    async def fetch(
        self,
        peer: NodeKey,
        digest: Digest,
        length: int,
        timeout_s: float,
        into: bytearray | memoryview | None,
        offset: int,
        on_progress: Callable[[int], None] | None,
        dial: Callable[[NodeKey, str], Awaitable[Wire]] | None = None,
        *,
        is_checked: bool = True,
    ) -> memoryview:
        """What `Transport.fetch` promises. dial: in place of that of the constructor."""
        if into is not None and len(into) != length:
            raise InternalError(f"a buffer of {len(into)} bytes for a blob of {length}")
        if length > limits.BLOB_BYTES_MAX:
            raise LimitExceeded(f"a blob of {length} bytes; {limits.BLOB_BYTES_MAX} is the limit")
        target = memoryview(into) if into is not None else blobs.room_for(length)
        on_answer = functools.partial(self._round_trips.note, peer)
        await self._fetch_slots.take(peer)
        try:
            self.channels.wanted(peer, length - offset, self._round_trips.of(peer))
            if self.channels.to(peer):
                striped = StripedDownload(
                    peer,
                    digest,
                    target,
                    functools.partial(self.channels.to, peer),
                    offset=offset,
                    timeout_s=timeout_s,
                    on_progress=on_progress,
                    on_answer=on_answer,
                    is_checked=is_checked,
                )
                try:
                    await striped.run()
                    self.channels.carried(peer)
                    return target
                except ChannelBroke as broke:
                    self.channels.stalled(peer, timeout_s / 2)
                    offset = broke.filled
            download = blobs.Download(
                digest,
                target,
                offset=offset,
                timeout_s=timeout_s,
                on_progress=on_progress,
                on_answer=on_answer,
                way=self._rate_limiter.down,
                is_checked=is_checked,
            )
            await download.run(await (dial or self._dial)(peer, BLOB_PROTOCOL))
        finally:
            self._fetch_slots.release(peer)
        return target
