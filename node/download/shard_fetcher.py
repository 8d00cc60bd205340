"""Carries out what `ShardFeed` decides: fetches shards, evicts them, and gives text to the trainer.

What is fetched was checked against its hash before it is written; who sent something else is told
of. Disks are read and written on a thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from host.files.shard_files import ShardFiles
from host.runtime import lifecycle
from host.transport import Transport
from node.download.locator import Locator
from node.download.shard_feed import Ask, Cancel, Evict, Refusal, Release, ShardFeed
from node.machine import jobs
from protocol.errors import NotHeld, PeerBusy, RemoteError, TransientError, UserError
from protocol.log.records import Span
from protocol.messages import Cursor
from protocol.shards import ShardTable

LEARNERS_EVERY_S: Final = 10.0
"""Other learners are looked up so often, while something is wanted."""

ROOM_EVERY_S: Final = 10.0
"""The disk is looked at so often, where its owner set a ceiling."""

ROOM_FRAC: Final = 0.9
"""Of what the ceiling leaves: beyond it all training pauses, and logs grow meanwhile."""

DISK_AGAIN_S: Final = 10.0
"""Until a disk that was full is tried again."""

log = logging.getLogger("shoal.node")


class NotHere(TransientError):
    """Shards that somebody waits for did not come in time."""


@dataclass(eq=False)
class ShardFetcher:
    """The published data of one learner."""

    transport: Transport
    locator: Locator
    files: ShardFiles
    table: ShardTable
    release: Callable[[Span], None]
    """Gives the trainer text whose shards are here."""
    ceiling: Callable[[], int | None]
    """Bytes that these shards and `other_bytes` may take; None for whatever the disk has."""
    other_bytes: Callable[[], int]
    """What else is counted, on the disk. Called on a thread."""
    notice: Callable[[str], None]
    on_fault: Callable[[bytes, RemoteError], None]
    feed: ShardFeed = field(init=False)
    trouble: str = ""
    """Why nothing comes, in words; empty while something does."""
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _fetches: set[asyncio.Task[None]] = field(default_factory=set)
    _asks: dict[Ask, asyncio.Task[None]] = field(default_factory=dict)
    _failure: BaseException | None = None
    _learners: list[bytes] = field(default_factory=list)
    _learners_s: float = -1e9
    _other_bytes: int = 0
    _other_s: float = -1e9

    def __post_init__(self) -> None:
        block_sequences = self.files.genesis.data.block_sequences
        self.feed = ShardFeed(self.table, block_sequences, random.Random())

    # What the daemon tells.

    async def begin(self) -> None:
        """A trainer starts, with nothing to read. The last one may have missed what is gone."""
        self.feed.begin()
        try:
            gone = await asyncio.to_thread(self.files.mend)
        except UserError as error:
            self.notice(str(error))
            return
        if gone:
            log.warning("%d shards of the text are no longer on the disk", len(gone))
            self.feed.lost(gone)
        self._wake()

    def take(self, action: jobs.Feed | jobs.DropFed) -> None:
        """Text was leased to this learner, or all of it to others."""
        if isinstance(action, jobs.DropFed):
            self.feed.begin()
        else:
            self.feed.feed(action.spans)
        self._wake()

    def read(self, cursor: Cursor) -> None:
        """The trainer has read so far."""
        self.feed.read(cursor)
        if self.feed.is_full:
            self._wake()

    @asynccontextmanager
    async def holding(self, numbers: Iterable[int], within_s: float) -> AsyncIterator[None]:
        """These shards are here meanwhile. NotHere if they do not come in time."""
        wanted = tuple(numbers)
        self.feed.need(wanted)
        self._wake()
        try:
            try:
                async with asyncio.timeout(within_s):
                    while not self.feed.is_here(wanted):
                        self._changed.clear()
                        await self._changed.wait()
            except TimeoutError as error:
                raise NotHere(f"its text did not come within {within_s:.0f} s") from error
            yield
        finally:
            self.feed.let_go(wanted)

    def in_words(self) -> str:
        """What the trainer waits for; empty if it has text, or if none is leased to it."""
        feed = self.feed
        if feed.is_looking:
            return "looking which shards of the text are here"
        if (number := feed.awaited) is None:
            return ""
        if feed.is_full:
            return "limits.disk_bytes_max leaves no room for the text leased to it; raise it"
        said = f"fetching shard {number + 1:,} of {self.table.train_shards:,} of the text"
        return f"{said}; {self.trouble}" if self.trouble else said

    # At work.

    async def run(self) -> None:
        """Works until it is cancelled."""
        self.feed.found(await asyncio.to_thread(self.files.look))
        try:
            while True:
                self._woken.clear()
                await self._look()
                try:
                    async with asyncio.timeout(self._patience_s()):
                        await self._woken.wait()
                except TimeoutError:
                    pass  # Somebody who could not give something may be able to by now.
        finally:
            async with lifecycle.ending(self._fetches):
                log.debug("fetching no more shards")

    def _patience_s(self) -> float | None:
        """Until it looks again if nothing happens before; None: nothing could be different then."""
        now_s = time.monotonic()
        deadline_s = self.feed.deadline_s(now_s)
        if deadline_s is not None:
            return deadline_s - now_s
        return None if self.ceiling() is None else ROOM_EVERY_S

    async def _look(self) -> None:
        """Carries out what there is to do now."""
        if self._failure is not None:
            raise self._failure
        if self.feed.wanted():
            self._name_peers()
        self.feed.room_bytes = await self._room()
        for order in self.feed.orders(time.monotonic()):
            match order:
                case Release(span):
                    self.release(span)
                case Evict(number):
                    await asyncio.to_thread(self.files.evict, number)
                case Cancel(ask):
                    if (task := self._asks.pop(ask, None)) is not None:
                        task.cancel()
                case Ask():
                    self._asks[order] = self._spawn(self._fetch(order))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._fetches.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._fetches.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self._wake()

    def _name_peers(self) -> None:
        """Says who may be asked; the swarm's table is slow, so that nobody waits for its answer."""
        now_s = time.monotonic()
        if now_s - self._learners_s > LEARNERS_EVERY_S:
            self._learners_s = now_s
            self._spawn(self._look_up())
        others = sorted(self.transport.connected() - {self.transport.key, *self._learners})
        named = [one for one in sorted(self.locator.named) if one != self.transport.key]
        self.feed.peers(named, [*self._learners, *others])

    async def _look_up(self) -> None:
        self._learners = await self.locator.donors_or_none()

    async def _room(self) -> int | None:
        """Bytes that all shards together may take."""
        ceiling = self.ceiling()
        if ceiling is None:
            return None
        now_s = time.monotonic()
        if now_s - self._other_s > ROOM_EVERY_S:
            self._other_bytes = await asyncio.to_thread(self.other_bytes)
            self._other_s = now_s
        return int(ROOM_FRAC * max(0, ceiling - self._other_bytes))

    async def _fetch(self, ask: Ask) -> None:
        """One shard, from this machine or from the host that was chosen."""
        one, why = self.table.shards[ask.number], "gone"
        refusal: Refusal
        try:
            if await asyncio.to_thread(self.files.link, ask.number):
                self._came(ask, is_copy=True)
                return
            content = await self.transport.fetch(ask.peer, one.digest, one.bytes)
            await asyncio.to_thread(self.files.keep, ask.number, content)
            self._came(ask)
            return
        except NotHeld as error:
            refusal, why = "lacks", str(error)
        except PeerBusy as error:
            refusal, why = "busy", str(error)
        except TransientError as error:
            refusal, why = "gone", str(error)
        except RemoteError as error:
            refusal, why = "wrong", str(error)
            self.on_fault(ask.peer, error)
        except UserError as error:
            refusal, why = "busy", str(error)
            self.notice(str(error))
            await asyncio.sleep(DISK_AGAIN_S)
        self.trouble = why
        self._asks.pop(ask, None)
        self.feed.failed(ask, refusal, time.monotonic())
        self._wake()

    def _came(self, ask: Ask, *, is_copy: bool = False) -> None:
        self.trouble = ""
        self._asks.pop(ask, None)
        self.feed.came(ask, time.monotonic(), is_copy=is_copy)
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._changed.set()
