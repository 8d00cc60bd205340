"""A joiner fetches weights over real transports: three donors, one of which leaves midway."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from host.bulk.blob_store import BlobStore
from host.network.leader_discovery import LearnerNotice, learners_topic
from host.network.token_bucket import TokenBucket
from host.runtime.lifecycle import background
from node.download.fetcher import StateFetcher
from node.download.locator import Locator
from node.machine.jobs import FetchState
from protocol import wire
from protocol.errors import TransientError
from protocol.numerics.versions import state_manifests
from tests.net.hosts import TOPICS, run, swarm

pytestmark = pytest.mark.net

PROJECT = b"\x00"
NUMEL = 10 * 262_144 + 128
"""Two arrays of ten chunks, and one short one each."""
DONOR_BYTES_PER_S = 5e6


def a_state(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=NUMEL).astype(np.float32) for _ in range(2))


class Donor:
    """What a host serves, counted by who asked."""

    def __init__(self, host, states, bytes_per_s=DONOR_BYTES_PER_S):
        self.key = host.identity.key
        self.host = host
        self.blob_store = BlobStore()
        self.asked = 0
        for theta, momentum in states:
            self.blob_store.put_group(state_manifests(theta, momentum).blobs(theta, momentum))
        bucket = TokenBucket(bytes_per_s)
        host.transport.serve_blobs(self._get, lambda *_: bucket)

    def _get(self, _, digest):
        self.asked += 1
        return self.blob_store.get(digest)

    async def announce(self):
        notice = wire.encode(LearnerNotice("donor", "training", 1))
        await self.host.transport.announce(learners_topic(PROJECT), notice, 30.0)


def a_fetcher(host, syncer, newest=lambda _: 1):
    rng = random.Random(0)
    faults = []
    fetcher = StateFetcher(
        host.transport,
        Locator(host.transport, PROJECT, b"", rng, frozenset()),
        rng=rng,
        leader=lambda: syncer.key,
        newest=newest,
        on_fault=lambda peer, error: faults.append((peer, error)),
    )
    return fetcher, faults


def a_job(fragment, state):
    return FetchState(fragment, 1, state_manifests(*state).digests)


async def arrived(fetcher, count):
    """Until so many bytes are verified."""
    progress = None
    while progress is None or progress.done_bytes < count:
        await asyncio.sleep(0.02)
        progress = fetcher.progress()


def test_one_of_three_donors_leaves_midway_and_the_syncer_gives_nothing(tmp_path):
    assert learners_topic(PROJECT) in TOPICS

    async def main():
        states = [a_state(1), a_state(2)]
        async with swarm(tmp_path, 5) as (first, *others, last):
            syncer = Donor(first, states)
            donors = [Donor(host, states) for host in others]
            for donor in donors:
                await donor.announce()
            fetcher, faults = a_fetcher(last, syncer)
            async with background(fetcher.run):
                fetches = [
                    asyncio.create_task(fetcher.fetch(a_job(at, state), NUMEL))
                    for at, state in enumerate(states)
                ]
                await arrived(fetcher, 8e6)
                assert fetcher.progress().rate > DONOR_BYTES_PER_S
                await donors[1].host.transport.close()
                assemblies = await asyncio.gather(*fetches)
            for assembly, state in zip(assemblies, states, strict=True):
                for mine, theirs in zip(assembly.arrays(), state, strict=True):
                    np.testing.assert_array_equal(mine, theirs)
            gave = {key for assembly in assemblies for key in assembly.sources}
            assert gave == {donor.key for donor in donors}
            assert syncer.asked == 0
            assert faults == []
            received = last.transport.traffic.down_bytes
            # What was under way at the one that left, ten chunks of 1 MiB at most, and what is
            # asked twice near the end.
            lost = 12 << 20
            assert received < sum(one.total_bytes for one in assemblies) + lost

    run(main(), timeout_s=60)


def test_without_learners_the_syncer_gives_everything_and_then_says_so(tmp_path):
    async def main():
        held, unheld = a_state(3), a_state(4)
        async with swarm(tmp_path, 2) as (one, two):
            syncer = Donor(one, [held], bytes_per_s=1e9)
            fetcher, _ = a_fetcher(two, syncer)
            async with background(fetcher.run):
                assembly = await fetcher.fetch(a_job(0, held), NUMEL)
                assert assembly.sources == {syncer.key: assembly.total_bytes}
                with pytest.raises(TransientError, match="does not hold"):
                    await fetcher.fetch(a_job(0, unheld), NUMEL)
                assert fetcher.progress() is None

    run(main(), timeout_s=60)
