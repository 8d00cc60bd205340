"""Whole arrays by their digests, for a syncer that lacks weights.

What came stays when a try fails or the daemon ends, and the next try goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from host.files.begun_weights import BegunWeights
from host.files.rooms import Room, kept_chunks
from host.hedged_fetch import fetch_from
from host.transport import Transport
from protocol.errors import RemoteError, TransientError
from protocol.ids import Digest, NodeKey
from protocol.log.records import StateDigests
from protocol.numerics import chunks
from protocol.numerics.buffers import F32

AT_ONCE: Final = 4
"""Chunks on their way: one alone would leave a long line idle between an answer and a request."""

Missing = dict[Digest, list[int]]
"""A chunk -> the bytes from which on it belongs."""


class ArrayFetcher:
    """Fetches from the first of several hosts that has a piece."""

    def __init__(self, transport: Transport, folder: Path) -> None:
        """folder: for what is on its way."""
        self._transport = transport
        self._files = BegunWeights(folder, lambda: None)
        self._under_way = 0

    async def state(
        self, sources: Sequence[NodeKey], state: StateDigests, size_bytes: int
    ) -> tuple[F32, F32]:
        """Value and momentum of a fragment, each of so many bytes, which may lie in files.

        Raises TransientError when no host has some piece.
        """
        self._under_way += 1
        try:
            theta = await self._array(sources, state.theta, size_bytes)
            return theta, await self._array(sources, state.momentum, size_bytes)
        finally:
            self._under_way -= 1

    def done(self, states: Sequence[StateDigests]) -> None:
        """These are kept elsewhere now."""
        self._files.remove([root for one in states for root in (one.theta, one.momentum)])

    def tidy(self) -> None:
        """A checkpoint is written, so nothing is lacking: what nobody goes on with can go."""
        if not self._under_way:
            self._files.clear()

    async def _array(self, sources: Sequence[NodeKey], root: Digest, size_bytes: int) -> F32:
        wanted = [(root, chunks.manifest_bytes(size_bytes))]
        (manifest,) = await fetch_from(self._transport, sources, wanted)
        room = self._files.open(root, size_bytes)
        kept = await asyncio.to_thread(kept_chunks, room, manifest, size_bytes)
        missing: Missing = {}
        for index, (name, (start, end)) in enumerate(
            zip(chunks.digests(manifest), chunks.spans(size_bytes), strict=True)
        ):
            if index in kept:
                continue
            if name != chunks.digest_of_zeros(end - start):
                missing.setdefault(name, []).append(start)
            elif room.is_begun:
                room.write(start, bytes(end - start))
        await self._fill(sources, room, missing, size_bytes)
        return room.values()

    async def _fill(
        self, sources: Sequence[NodeKey], room: Room, missing: Missing, size_bytes: int
    ) -> None:
        lengths = {start: end - start for start, end in chunks.spans(size_bytes)}

        rest, failed = iter(missing.items()), list[TransientError | RemoteError]()

        async def some() -> None:
            """One after the other; where one fails, what else is on its way comes to its end."""
            for name, starts in rest:
                try:
                    wanted = [(name, lengths[starts[0]])]
                    (content,) = await fetch_from(self._transport, sources, wanted)
                except (TransientError, RemoteError) as error:
                    failed.append(error)
                    return
                for start in starts:
                    await asyncio.to_thread(room.write, start, content)
                if failed:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(missing))):
                group.create_task(some())
        if failed:
            raise failed[0]
