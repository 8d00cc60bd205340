"""A host that many keys keep busy still serves a newcomer, with real engines on loopback."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3

from host.network import blobs
from host.options import BulkAt
from host.transport import BLOB_PROTOCOL, CONTROL_PROTOCOL
from tests.net.hosts import echo, run, swarm

pytestmark = pytest.mark.net

GENESIS = random.Random(5).randbytes(20_000)
WEIGHTS = random.Random(6).randbytes(900_000)
NAMES = {blake3(blob).digest(): memoryview(blob) for blob in (GENESIS, WEIGHTS)}

STREAMS = BulkAt(is_on=False)


def test_silent_streams_of_many_keys_do_not_keep_a_newcomer_from_the_genesis(tmp_path, monkeypatch):
    monkeypatch.setattr("host.stream_server.INCOMING_MAX", 24)
    monkeypatch.setattr("host.stream_server.INCOMING_FOR_MEMBERS", 4)
    monkeypatch.setattr("host.bulk.transfers.limits.STREAMS_SERVED_MAX", 12)

    async def main():
        async with swarm(tmp_path, 6, STREAMS) as (one, *hostile, newcomer):
            one.transport.serve_control(echo)
            one.transport.serve_blobs(lambda peer, asked: NAMES.get(asked))
            key, ask = one.identity.key, blobs.MAGIC + blake3(WEIGHTS).digest() + bytes(8)
            for at, host in enumerate(hostile):
                dial = host.transport.dial_plain
                for protocol in (CONTROL_PROTOCOL, BLOB_PROTOCOL):
                    for _ in range(3):
                        await (await dial(key, protocol)).write(b"S", timeout_s=5)
                # And some that ask for weights, whole, and do not read them.
                for _ in range(3 if at < 2 else 0):
                    await (await dial(key, BLOB_PROTOCOL)).write(ask, timeout_s=5)
            fetched = await newcomer.transport.fetch(key, blake3(GENESIS).digest(), len(GENESIS))
            assert fetched == GENESIS
            stream = await newcomer.transport.open_control(key)
            stream.send(b"hello")
            assert await stream.recv() == b"hello"

    run(main())
