"""A syncer's download of weights: what came stays, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from protocol import limits
from protocol.errors import TransientError
from protocol.numerics.versions import state_manifests
from syncer_node.daemon.array_fetcher import AT_ONCE, ArrayFetcher
from tests.support.donors import a_state

ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32
CHUNKS = 12
CHUNK_BYTES = 1 << 18


@pytest.fixture(autouse=True)
def smaller_chunks(monkeypatch):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", CHUNK_BYTES)


class Donors:
    """A transport to hosts that hold one state; one of them sends so many blobs and breaks off."""

    def __init__(self, state, sends=10**9):
        theta, momentum = state
        manifests = state_manifests(theta, momentum)
        self.blobs = {name: bytes(blob) for name, blob in manifests.blobs(theta, momentum)}
        self.digests, self.size_bytes = manifests.digests, theta.nbytes
        self.left = sends
        self.asked = Counter()
        self.together = self.most = 0
        self.has_begun = asyncio.Event()

    async def fetch(self, source, digest, length, on_progress):
        if length == CHUNK_BYTES:
            self.has_begun.set()
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(0)
        self.together -= 1
        if self.left == 0:
            raise TransientError("the line broke")
        self.left -= 1
        self.asked[digest] += 1
        assert length == len(self.blobs[digest])
        return memoryview(self.blobs[digest])


def fetched(donors, folder):
    fetcher = ArrayFetcher(donors, folder)
    return fetcher, asyncio.run(fetcher.state([ONE, OTHER], donors.digests, donors.size_bytes))


@pytest.mark.parametrize("is_fresh", [True, False])
def test_it_is_what_it_should_be_and_zeros_do_not_come(tmp_path, is_fresh):
    state = a_state(1, chunks=CHUNKS, is_fresh=is_fresh)
    donors = Donors(state)
    fetcher, found = fetched(donors, tmp_path / "begun")
    for mine, theirs in zip(found, state, strict=True):
        assert np.array_equal(mine, theirs)
    assert sum(donors.asked.values()) == 2 + CHUNKS * (1 if is_fresh else 2)
    assert set(donors.asked.values()) == {1}
    assert donors.most == AT_ONCE
    fetcher.done([donors.digests])
    assert list((tmp_path / "begun").iterdir()) == []
    fetcher.tidy()
    assert not (tmp_path / "begun").exists()


def test_the_next_try_goes_on_where_a_line_broke_also_of_another_daemon(tmp_path):
    state = a_state(2, chunks=CHUNKS)
    donors = Donors(state, sends=1 + CHUNKS // 2)
    with pytest.raises(TransientError, match="the line broke"):
        fetched(donors, tmp_path / "begun")
    came = donors.asked.copy()
    donors.left = 10**9
    _, found = fetched(donors, tmp_path / "begun")
    for mine, theirs in zip(found, state, strict=True):
        assert np.array_equal(mine, theirs)
    twice = [digest for digest, count in donors.asked.items() if count > 1]
    assert twice == [donors.digests.theta], "only the manifest comes again"
    assert len(came) == 1 + CHUNKS // 2


def test_nothing_is_tidied_up_while_something_is_on_its_way(tmp_path):
    donors = Donors(a_state(3, chunks=CHUNKS))

    async def both():
        fetcher = ArrayFetcher(donors, tmp_path / "begun")
        task = asyncio.create_task(fetcher.state([ONE], donors.digests, donors.size_bytes))
        await donors.has_begun.wait()
        fetcher.tidy()
        assert list((tmp_path / "begun").iterdir()) != []
        await task

    asyncio.run(both())
