"""The daemon's side of published data: text for the trainer, and shards that its work needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from host.files.shard_files import ShardFiles, learners_folder
from node.download.shard_fetcher import ShardFetcher
from node.governor.disk_usage import tree_bytes
from node.machine import jobs
from protocol.ids import Digest
from protocol.log.records import Span
from protocol.status import ShardStatus

if TYPE_CHECKING:
    from node.daemon.learner_daemon import LearnerDaemon

WITHIN_S: Final = 30.0
"""For shards of a measurement that somebody waits for."""


class PublishedData:
    """What a learner does about published data; nothing where its project publishes none."""

    def __init__(self, daemon: LearnerDaemon) -> None:
        options = daemon.options
        folder = learners_folder(options.instance)
        self.trainer, self._kept = daemon.trainer, options.home.kept_by_learners()
        self.files = ShardFiles(options.home.data_cache(), daemon.genesis, folder)
        self.fetcher: ShardFetcher | None = None
        if self.files.table is None:
            return
        self.fetcher = ShardFetcher(
            transport=daemon.transport,
            locator=daemon.locator,
            files=self.files,
            table=self.files.table,
            release=self._release,
            ceiling=lambda: options.settings().limits.disk_bytes_max,
            other_bytes=self._other_bytes,
            notice=daemon.notice,
            on_fault=lambda peer, error: daemon.driver.fault(peer, error),
        )
        daemon.trainer.queued = self.fetcher.feed.queued

    def _other_bytes(self) -> int:
        return tree_bytes(self._kept) - tree_bytes([self.files.folder])

    async def begin(self) -> None:
        """A trainer starts, with nothing to read."""
        if self.fetcher is not None:
            await self.fetcher.begin()

    def feed(self, action: jobs.Feed | jobs.DropFed) -> None:
        """Text was leased to this learner, or all of it to others."""
        if self.fetcher is None:
            self.trainer.feed(action)
            return
        self.fetcher.take(action)
        if isinstance(action, jobs.DropFed):
            self.trainer.feed(action)

    def _release(self, span: Span) -> None:
        self.trainer.feed(jobs.Feed((span,)))

    def stepped(self, stepped: jobs.Stepped) -> None:
        """The trainer has read so far."""
        if self.fetcher is not None:
            self.fetcher.read(stepped.cursor)

    def find(self, digest: Digest) -> memoryview | None:
        """A shard that can be given to others."""
        return self.files.find(digest)

    @asynccontextmanager
    async def holding(self, job: jobs.Evaluate | jobs.ProbePush) -> AsyncIterator[None]:
        """What a measurement reads is here meanwhile. TransientError if it does not come soon."""
        if self.fetcher is None:
            yield
            return
        async with self.fetcher.holding(self._numbers(self.fetcher, job), WITHIN_S):
            yield

    def _numbers(self, fetcher: ShardFetcher, job: jobs.Evaluate | jobs.ProbePush) -> Iterable[int]:
        if isinstance(job, jobs.Evaluate):
            return fetcher.table.of_heldout(job.sequences)
        return {fetcher.table.at(place.position) for place in (*job.own, *job.other)}

    def waiting(self) -> str:
        """What the trainer waits for, in words; empty if for nothing of this."""
        return "" if self.fetcher is None else self.fetcher.in_words()

    def status(self) -> ShardStatus | None:
        """For screens and programs; None where the project publishes no data."""
        if self.fetcher is None:
            return None
        feed = self.fetcher.feed
        return ShardStatus(
            held=feed.held,
            total=len(self.fetcher.table.shards),
            held_bytes=feed.held_bytes,
            fetched_bytes=feed.asked_bytes,
            fed_bytes=feed.released_bytes,
            waiting=self.waiting(),
        )

    async def run(self) -> None:
        """Works until it is cancelled."""
        if self.fetcher is not None:
            await self.fetcher.run()
