"""Direct channels under the real network engine, and in a swarm of real processes."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3

from host.bulk import channel_policy
from host.options import BulkAt
from protocol.errors import TransportLost
from tests.net.channels import until as until_async
from tests.net.hosts import run, swarm
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

BLOB = random.Random(9).randbytes(8_000_000)
DIGEST = blake3(BLOB).digest()


async def direct(one, other):
    """Until both know of a direct connection that `one` asked for."""
    one.transport.bulk.channels.wanted(other.identity.key, 1 << 30, None)
    await until_async(
        lambda: (
            one.transport.bulk.channels.to(other.identity.key)
            and other.transport.bulk.channels.to(one.identity.key)
        )
    )


def serve(host):
    host.transport.serve_blobs(lambda _, asked: memoryview(BLOB) if asked == DIGEST else None)


def test_hosts_agree_on_a_channel_and_fall_back_when_it_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(channel_policy, "RESTS_S", (3600.0,))  # Longer than any transfer takes.

    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            serve(one)
            channels, key = two.transport.bulk.channels, one.identity.key
            await direct(two, one)
            assert await two.transport.fetch(key, DIGEST, len(BLOB)) == BLOB
            over = channels.traffic[key].down_bytes
            assert over > len(BLOB)
            # So slow that it can be cut, however late a busy machine hears of the first third.
            two.transport.rate_limiter.limit(None, len(BLOB) // 2)

            def cut(filled):
                if filled > len(BLOB) / 3:
                    for connection in channels.to(key):
                        connection._there(connection.link._transport.abort)

            assert await two.transport.fetch(key, DIGEST, len(BLOB), on_progress=cut) == BLOB
            assert not channels.to(key)
            await until_async(lambda: "broke" in channels.reason(key))
            assert len(BLOB) / 3 < channels.traffic[key].down_bytes - over < len(BLOB)
            before = channels.traffic[key].down_bytes
            two.transport.rate_limiter.limit(None, None)
            assert await two.transport.fetch(key, DIGEST, len(BLOB)) == BLOB
            assert channels.traffic[key].down_bytes == before, "rests after a failure"

    run(main())


def test_a_host_without_channels_and_one_with_them_get_along(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            old = one.transport
            serve(one)
            serve(two)
            # What a daemon does that has never heard of the protocol.
            await old._engine._p2p.remove_binary_stream_handler("shoal.channel.1")
            key = one.identity.key
            for _ in range(2):
                assert await two.transport.fetch(key, DIGEST, len(BLOB)) == BLOB
                await until_async(lambda: two.transport.bulk.channels.reason(key))
            assert two.transport.faults == {}
            old.bulk.channels._choice._is_on = False
            assert await old.fetch(two.identity.key, DIGEST, len(BLOB)) == BLOB

    run(main())


def test_a_channel_outlives_a_new_engine(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            serve(one)
            key = one.identity.key
            await direct(two, one)
            port = two.transport.bulk.channels.port
            two.transport._engine._p2p._child.kill()
            await two.until(lambda state: not state.is_up)
            with pytest.raises(TransportLost):
                await two.transport.fetch(key, DIGEST, len(BLOB))
            await until_async(lambda: two.transport.state.is_up)
            assert two.transport.bulk.channels.port == port
            assert await two.transport.fetch(key, DIGEST, len(BLOB)) == BLOB
            assert two.transport.bulk.channels.to(key)

    run(main())


def test_closing_ends_listener_and_connections(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            await direct(two, one)
            await one.transport.close()
            assert one.transport.bulk.channels.port == 0
            await until_async(lambda: not two.transport.bulk.channels.peers)
        async with swarm(tmp_path, 1, BulkAt(is_on=False)) as (alone,):
            assert alone.transport.bulk.channels.port == 0

    run(main())


WIDER = {
    "model__config__hidden_size": 256,
    "model__config__intermediate_size": 512,
    "model__config__num_hidden_layers": 2,
    "rounds__local_steps": 4,
    "limits__evaluate_every": 100_000,
}
"""Nearly two million parameters: each push has some 300 KB."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A syncer and two learners with direct channels; then one comes back that wants none."""
    found = {}

    def rows(now):
        return {row.name: row for row in now.peers}

    def all_direct():
        now = swarm.syncer()
        is_so = (
            now
            and len(rows(now)) == 2
            and all(row.bulk == "direct" and row.merges > 1 for row in now.peers)
        )
        return now if is_so else None

    def bob_streams():
        now = swarm.syncer()
        bob = rows(now).get("bob") if now else None
        # Why is known once there was enough to fetch that a channel was asked for; until then the
        # reason may still be that of its former life, whose channel broke.
        has_told = bob is not None and bob.bulk == "streams" and bob.bulk_detail
        has_told = has_told and "broke" not in bob.bulk_detail
        if has_told and bob.merges > found["bob"] + 1:
            return now
        return None

    with TinySwarm(tmp_path_factory.mktemp("wide")) as swarm:
        swarm.prepare(**WIDER)
        swarm.begin()
        swarm.start_learner("ada", "--no-evaluate")
        swarm.start_learner("bob", "--no-evaluate")
        found["direct"] = swarm.until(all_direct, "direct channels")
        found["ada"] = swarm.learner("ada")
        found["bob"] = rows(found["direct"])["bob"].merges
        swarm.kill("bob")
        swarm.start_learner("bob", "--no-evaluate", "--bulk-port", "off")
        found["streams"] = swarm.until(bob_streams, "bob over streams")
        yield found


def test_a_swarm_moves_its_bulk_data_directly(seen):
    network = seen["direct"].network
    assert network.bulk_port
    ways = {row.key: row for row in network.bulk}
    for peer in seen["direct"].peers:
        assert ways[peer.key].way == "direct"
        assert ways[peer.key].connections >= 1
        assert ways[peer.key].bytes_down > 100_000
    (way,) = [row for row in seen["ada"].network.bulk if row.key == seen["direct"].key]
    assert way.way == "direct"
    assert seen["direct"].faults == {}


def test_a_learner_that_wants_no_channel_goes_on_over_streams(seen):
    (bob,) = [row for row in seen["streams"].peers if row.name == "bob"]
    assert bob.bulk == "streams"
    assert "not supported" in bob.bulk_detail or "turned off" in bob.bulk_detail
    assert seen["streams"].swarm.global_step > seen["direct"].swarm.global_step
    assert seen["streams"].faults == {}
