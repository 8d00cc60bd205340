"""A daemon on published data: what it fetches, writes, throws away, and gives its trainer."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest

from host.files.shard_files import MANIFEST, ShardFiles
from host.runtime.lifecycle import background
from node.download.shard_fetcher import NotHere, ShardFetcher
from node.machine import jobs
from protocol.errors import MalformedPayload, NotHeld
from protocol.log.records import Span
from protocol.messages import Cursor
from tests.support.builders import digest_of
from tests.support.published import published_project
from tests.support.tiny_project import BLOCK_SEQUENCES

ME, HOST, ADA = digest_of("me"), digest_of("host"), digest_of("ada")
SOON_S = 20.0


class Hosts:
    """Other hosts as a transport shows them."""

    key = ME

    def __init__(self, **shelves):
        self.shelves = {HOST: shelves.get("host"), ADA: shelves.get("ada")}
        self.lies, self.asked = set(), []
        self.happened = asyncio.Event()

    def connected(self):
        return {ME, *(peer for peer, files in self.shelves.items() if files is not None)}

    async def fetch(self, peer, digest, size_bytes):
        self.asked.append(peer)
        self.happened.set()
        if peer in self.lies:
            raise MalformedPayload("other bytes")
        found = self.shelves[peer].find(digest) if self.shelves[peer] else None
        if found is None:
            raise NotHeld("no such shard")
        assert len(found) == size_bytes
        return found


class Table:
    """The swarm's table, which knows no learner, and the link, which names the host."""

    named = frozenset({HOST})

    async def donors_or_none(self):
        return []


@pytest.fixture(scope="module")
def genesis_and_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    genesis = published_project(folder)
    files = ShardFiles(folder / "cache", genesis)
    files.look()
    return genesis, files


class Learner:
    """A fetcher, and what its trainer was given."""

    def __init__(self, genesis_and_host, cache, hosts, *, ceiling=None, other_bytes=0):
        genesis, given = genesis_and_host
        self.hosts, self.files = hosts, ShardFiles(cache, genesis, "learner-me")
        if self.files.table is None:
            self.files.keep_manifest(given.find(genesis.published.manifest))
        self.released, self.faults, self.notices = [], [], []
        self.fetcher = ShardFetcher(
            transport=hosts,
            locator=Table(),
            files=self.files,
            table=self.files.table,
            release=self._release,
            ceiling=lambda: ceiling,
            other_bytes=lambda: other_bytes,
            notice=self.notices.append,
            on_fault=lambda peer, _: self.faults.append(peer),
        )
        self.shard = self.files.table.order.shard_blocks
        self.shard_bytes = self.files.table.shards[0].bytes

    def feed(self, *spans):
        self.fetcher.take(jobs.Feed(tuple(Span(start, stop, 0) for start, stop in spans)))

    @property
    def blocks(self):
        return sum(span.stop - span.start for span in self.released)

    @asynccontextmanager
    async def at_work(self):
        async with background(self.fetcher.run):
            yield self

    def _release(self, span):
        self.released.append(span)
        self.hosts.happened.set()

    async def until(self, look):
        async with asyncio.timeout(SOON_S):
            while not look():
                self.hosts.happened.clear()
                await self.hosts.happened.wait()


def run(main):
    asyncio.run(main)


def test_leased_text_comes_from_the_host_and_is_there_after_a_restart(genesis_and_host, tmp_path):
    hosts = Hosts(host=genesis_and_host[1])

    async def main():
        async with Learner(genesis_and_host, tmp_path, hosts).at_work() as learner:
            learner.feed((0, 3 * learner.shard))
            await learner.until(lambda: learner.blocks == 3 * learner.shard)
            assert learner.fetcher.in_words() == ""
            assert hosts.asked == [HOST] * 3
        async with Learner(genesis_and_host, tmp_path, hosts).at_work() as learner:
            learner.feed((0, 3 * learner.shard))
            await learner.until(lambda: learner.blocks == 3 * learner.shard)
            assert len(hosts.asked) == 3
            number = learner.files.table.at(0)
            assert learner.files.find(learner.files.table.shards[number].digest) is not None

    run(main())


def test_text_comes_again_where_somebody_removed_it(genesis_and_host, tmp_path):
    hosts = Hosts(host=genesis_and_host[1])

    async def main():
        async with Learner(genesis_and_host, tmp_path, hosts).at_work() as learner:
            learner.feed((0, 3 * learner.shard))
            await learner.until(lambda: learner.blocks == 3 * learner.shard)
            shutil.rmtree(learner.files.folder.parent)
            await learner.fetcher.begin()
            assert (learner.files.folder / MANIFEST).is_file()
            learner.feed((0, 2 * learner.shard))
            await learner.until(lambda: learner.blocks == 5 * learner.shard)
            assert len(hosts.asked) == 5
            for at in (0, learner.shard):
                one = learner.files.table.shards[learner.files.table.at(at)]
                assert learner.files.path(one).is_file()

    run(main())


def test_a_disk_that_takes_no_list_of_shards_is_said(genesis_and_host, tmp_path):
    async def main():
        learner = Learner(genesis_and_host, tmp_path / "cache", Hosts())
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("in the way")
        await learner.fetcher.begin()
        assert [said for said in learner.notices if "cannot be written" in said]

    run(main())


def test_who_lies_is_told_of_and_another_one_is_asked(genesis_and_host, tmp_path):
    hosts = Hosts(host=genesis_and_host[1], ada=genesis_and_host[1])
    hosts.lies.add(ADA)

    async def main():
        async with Learner(genesis_and_host, tmp_path, hosts).at_work() as learner:
            learner.feed((0, 4))
            await learner.until(lambda: learner.blocks == 4)
            assert learner.faults == [ADA]
            assert hosts.asked == [ADA, HOST]

    run(main())


def test_what_nobody_gives_is_waited_for_in_words(genesis_and_host, tmp_path):
    hosts = Hosts()

    async def main():
        async with Learner(genesis_and_host, tmp_path, hosts).at_work() as learner:
            learner.feed((0, 4))
            await learner.until(lambda: "no such shard" in learner.fetcher.in_words())
            assert "fetching shard" in learner.fetcher.in_words()
            with pytest.raises(NotHere):
                async with learner.fetcher.holding([learner.files.table.train_shards], 0.01):
                    raise AssertionError("it is not here")
            hosts.shelves[HOST] = genesis_and_host[1]
            await learner.until(lambda: learner.blocks == 4)

    run(main())


def test_files_stay_below_the_ceiling_of_the_machines_owner(genesis_and_host, tmp_path):
    hosts = Hosts(host=genesis_and_host[1])

    async def main():
        other = 10_000
        shard = genesis_and_host[1].table.shards[0].bytes
        ceiling = other + int(2.5 * shard / 0.9)
        learner = Learner(genesis_and_host, tmp_path, hosts, ceiling=ceiling, other_bytes=other)
        async with learner.at_work():
            size = learner.shard
            learner.feed((0, 5 * size))
            await learner.until(lambda: learner.fetcher.feed.is_full and learner.blocks == 2 * size)
            for turn in range(1, 4):
                assert sum(one.stat().st_size for one in learner.files.folder.glob("*.shard")) <= (
                    2 * shard
                )
                learner.fetcher.read(Cursor(turn * size, BLOCK_SEQUENCES))
                await learner.until(lambda: learner.blocks == (2 + turn) * size)  # noqa: B023

    run(main())


def test_text_that_went_to_others_reaches_no_trainer(genesis_and_host, tmp_path):
    hosts = Hosts(host=genesis_and_host[1])

    async def main():
        async with Learner(genesis_and_host, tmp_path, hosts).at_work() as learner:
            size = learner.shard
            learner.feed((0, size))
            learner.fetcher.take(jobs.DropFed())
            learner.feed((size, 2 * size))
            await learner.until(lambda: learner.released)
            assert learner.released == [Span(size, 2 * size, 0)]

    run(main())
