"""A syncer that lacks published data copies them from whoever has them."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from host.files.shard_files import ShardFiles
from protocol.errors import MalformedPayload, NotHeld
from syncer_node.daemon.shard_copies import ShardCopies
from tests.support.builders import digest_of
from tests.support.published import published_project

ME, FIRST, ADA = digest_of("me"), digest_of("first"), digest_of("ada")


class Hosts:
    """Other hosts as a transport shows them: the first syncer, and a learner."""

    key = ME

    def __init__(self, files):
        self.files, self.lacks, self.lies = files, {FIRST: set(), ADA: set()}, set()
        self.asked = 0

    def connected(self):
        return {ME, ADA}

    async def fetch(self, peer, digest, size_bytes):
        self.asked += 1
        found = self.files.find(digest)
        if peer in self.lies:
            raise MalformedPayload("other bytes")
        if found is None or digest in self.lacks[peer]:
            raise NotHeld("no such shard")
        assert len(found) == size_bytes
        return found


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    genesis = published_project(folder)
    files = ShardFiles(folder / "cache", genesis)
    files.look()
    return genesis, files


def copied(hosts, files):
    asyncio.run(asyncio.wait_for(ShardCopies(hosts, files, lambda: [FIRST]).complete(), 60.0))


def test_a_syncer_without_any_has_all_of_them_in_the_end(published, tmp_path):
    genesis, given = published
    hosts = Hosts(given)
    hosts.lacks[FIRST] = {one.digest for one in given.table.shards[3:9]}
    hosts.lacks[ADA] = {one.digest for one in given.table.shards[9:]}
    copied(hosts, ShardFiles(tmp_path, genesis))
    again = ShardFiles(tmp_path, genesis)
    assert again.look() == list(range(len(given.table.shards)))
    asked = hosts.asked
    copied(hosts, again)
    assert hosts.asked == asked


def test_what_somebody_removed_is_copied_again(published, tmp_path):
    genesis, given = published
    hosts, files = Hosts(given), ShardFiles(tmp_path, genesis)
    copied(hosts, files)
    shutil.rmtree(files.folder)
    copied(hosts, files)
    again = ShardFiles(tmp_path, genesis)
    assert again.look() == list(range(len(given.table.shards)))


def test_who_sends_something_else_is_passed_over(published, tmp_path):
    genesis, given = published
    hosts = Hosts(given)
    hosts.lies.add(FIRST)
    files = ShardFiles(tmp_path, genesis)
    copied(hosts, files)
    assert len(files.look()) == len(given.table.shards)
