"""Published data on the disk of every syncer: what one lacks it copies from others, bit by bit.

So the text outlives the machine that signed the project, and a tidied disk. Shards are few beside
payloads of merges, so they are copied one after the other, and no faster than `RATE`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from host.files.shard_files import ShardFiles
from host.network.token_bucket import TokenBucket
from host.runtime.atomic_files import DiskFull, require_space
from host.transport import Transport
from protocol.backoff import Backoff
from protocol.errors import RemoteError, TransientError, UserError
from protocol.ids import Digest, NodeKey

RATE: Final = 4e6
"""Bytes per second: a line of 100 Mbit/s keeps two thirds for merges."""

AGAIN: Final = Backoff((1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0))
LOOK_EVERY_S: Final = 300.0
"""Between two looks whether all that was here still is."""

ASKED_MAX: Final = 8
"""Connected hosts that are asked beside the other syncers."""

log = logging.getLogger("shoal.syncer")


@dataclass(eq=False)
class ShardCopies:
    """Has all shards here, sooner or later."""

    transport: Transport
    files: ShardFiles
    syncers: Callable[[], list[NodeKey]]
    """The other ones of the charter."""

    async def run(self) -> None:
        """Works until it is cancelled; returns at once if nothing is published."""
        if self.files.pinned is None:
            return
        held = await asyncio.to_thread(self.files.look)
        log.info("gives %d shards of the project's data", len(held))
        said = ""
        while True:
            try:
                await self.complete()
                said = ""
            except (UserError, DiskFull) as error:
                if str(error) != said:
                    log.warning("copies no more of the project's data for now: %s", error)
                said = str(error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def complete(self) -> None:
        """Returns when everything is here. UserError or DiskFull where it cannot be written."""
        await asyncio.to_thread(self.files.mend)
        await self._complete(await asyncio.to_thread(self.files.look))

    async def _complete(self, held: Iterable[int]) -> None:
        pinned = self.files.pinned
        assert pinned is not None, "data are published"
        if self.files.table is None:
            content = await self._fetched(pinned.manifest, pinned.manifest_bytes)
            await asyncio.to_thread(self.files.keep_manifest, content)
            held = await asyncio.to_thread(self.files.look)
        table = self.files.table
        assert table is not None, "it was kept"
        here = set(held)
        todo = deque(one for one in table.shards if one.number not in here)
        if not todo:
            return
        log.warning(
            "not all of the project's data are in %s: %d of %d shards are missing, and are copied"
            " from other hosts that have them. If none has, sign the project again where its text"
            " is",
            self.files.folder,
            len(todo),
            len(table.shards),
        )
        bucket, attempt = TokenBucket(RATE), 0
        while todo:
            one = todo.popleft()
            content_or_none = await self._ask(one.digest, one.bytes)
            if content_or_none is None:
                todo.append(one)
                attempt += 1
                if attempt >= len(todo):  # Nobody has any of them.
                    await asyncio.sleep(AGAIN.pause_s(attempt // len(todo)))
                continue
            attempt = 0
            await asyncio.to_thread(require_space, self.files.folder, one.bytes, "copying data")
            await asyncio.to_thread(self.files.keep, one.number, content_or_none)
            await asyncio.sleep(bucket.take(one.bytes, asyncio.get_running_loop().time()))
        log.info("all of the project's data are here")

    async def _fetched(self, digest: Digest, size_bytes: int) -> memoryview:
        attempt = 0
        while True:
            content = await self._ask(digest, size_bytes)
            if content is not None:
                return content
            await asyncio.sleep(AGAIN.pause_s(attempt))
            attempt += 1

    async def _ask(self, digest: Digest, size_bytes: int) -> memoryview | None:
        """The blob from the first that has it."""
        first = self.syncers()
        others = sorted(self.transport.connected() - {*first, self.transport.key})
        for peer in [*first, *others[:ASKED_MAX]]:
            try:
                return await self.transport.fetch(peer, digest, size_bytes)
            except (TransientError, RemoteError) as error:
                log.debug("a shard does not come from there: %s", error)
        return None
