"""Bulk transfers over streams between real hosts: honest, lying, silent and slow donors."""

from __future__ import annotations

import asyncio
import random

import pytest
from blake3 import blake3

from host.network import blobs
from host.options import BulkAt
from host.transport import BLOB_PROTOCOL
from protocol import limits
from protocol.errors import (
    LimitExceeded,
    MalformedMessage,
    MalformedPayload,
    NotHeld,
    PeerUnreachable,
    TransientError,
)
from tests.net.hosts import echo, run, swarm

pytestmark = pytest.mark.net

BLOB = random.Random(7).randbytes(3_000_001)
DIGEST = blake3(BLOB).digest()

STREAMS = BulkAt(is_on=False)
"""The direct channel has tests of its own."""


def serve_blob(host, blob=BLOB, digest=DIGEST):
    host.transport.serve_blobs(lambda peer, asked: memoryview(blob) if asked == digest else None)


def serve_raw(host, reply):
    """Makes `host` answer blob requests with whatever bytes `reply` says."""

    async def rude(wire):
        await wire.read_exactly(blobs.REQUEST_BYTES, timeout_s=5)
        await wire.write(reply, timeout_s=5)
        wire.close()

    host.transport._serving[BLOB_PROTOCOL] = rude


def test_a_blob_arrives_and_is_checked(tmp_path):
    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):
            serve_blob(one)
            progress = []
            blob = await two.transport.fetch(
                one.identity.key, DIGEST, len(BLOB), on_progress=progress.append
            )
            assert blob == BLOB
            assert progress[-1] == len(BLOB)
            assert progress == sorted(progress)
            empty = blake3(b"").digest()
            serve_blob(one, b"", empty)
            assert await two.transport.fetch(one.identity.key, empty, 0) == b""

    run(main())


def test_many_transfers_at_once_wait_for_their_turn(tmp_path):
    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):
            serve_blob(one)
            async with asyncio.TaskGroup() as tasks:
                fetches = [
                    tasks.create_task(two.transport.fetch(one.identity.key, DIGEST, len(BLOB)))
                    for _ in range(3 * limits.STREAMS_PER_PEER_MAX)
                ]
            assert all(task.result() == BLOB for task in fetches)
            assert two.transport.bulk._fetch_slots.used == 0
            await asyncio.sleep(0.1)
            assert one.transport.bulk._serve_slots.used == 0

    run(main())


def test_a_peer_may_ask_for_more_before_its_last_streams_are_seen_to_be_closed(tmp_path):
    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):
            serve_blob(one)
            ask = blobs.MAGIC + DIGEST + len(BLOB).to_bytes(8, "big")

            async def asked():
                wire = await two.transport.dial_plain(one.identity.key, BLOB_PROTOCOL)
                await wire.write(ask, timeout_s=5)
                return wire

            answer = bytes([blobs.OK]) + len(BLOB).to_bytes(8, "big")
            read = [await asked() for _ in range(limits.STREAMS_PER_PEER_MAX)]
            for wire in read:
                assert await wire.read_exactly(blobs.ANSWER_BYTES, timeout_s=5) == answer
            more = [await asked() for _ in read]
            waiting = [
                asyncio.ensure_future(wire.read_exactly(blobs.ANSWER_BYTES, timeout_s=5))
                for wire in more
            ]
            answered, _ = await asyncio.wait(waiting, timeout=0.3)
            assert not answered
            for wire in read:
                wire.close()
            assert await asyncio.gather(*waiting) == [answer] * len(more)
            for wire in more:
                wire.close()

    run(main())


def test_a_broken_transfer_goes_on_from_its_offset(tmp_path):
    async def main():
        async with swarm(tmp_path, 3, STREAMS) as (one, two, three):
            cut = 1_300_000
            serve_raw(one, bytes([blobs.OK]) + len(BLOB).to_bytes(8, "big") + BLOB[:cut])
            serve_blob(two)
            into, held = bytearray(len(BLOB)), []
            with pytest.raises(PeerUnreachable, match=f"ended at {cut} of {len(BLOB)} bytes"):
                await three.transport.fetch(
                    one.identity.key, DIGEST, len(BLOB), into=into, on_progress=held.append
                )
            before = three.transport.traffic.down_bytes
            blob = await three.transport.fetch(
                two.identity.key, DIGEST, len(BLOB), into=into, offset=held[-1]
            )
            assert blob == into == BLOB
            assert three.transport.traffic.down_bytes - before < len(BLOB) - cut + 100

    run(main())


def test_a_blob_that_lies_is_refused(tmp_path):
    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):
            key = one.identity.key
            with pytest.raises(NotHeld):
                await two.transport.fetch(key, DIGEST, len(BLOB))
            serve_blob(one, BLOB[:-1] + b"?")
            with pytest.raises(MalformedPayload, match="do not match"):
                await two.transport.fetch(key, DIGEST, len(BLOB))
            unchecked = await two.transport.fetch(key, DIGEST, len(BLOB), is_checked=False)
            assert unchecked == BLOB[:-1] + b"?"
            serve_blob(one, BLOB[:-1])
            with pytest.raises(MalformedPayload, match="signed are"):
                await two.transport.fetch(key, DIGEST, len(BLOB))
            with pytest.raises(LimitExceeded):
                await two.transport.fetch(key, DIGEST, limits.BLOB_BYTES_MAX + 1)
            serve_raw(one, b"\x09" + bytes(8))
            with pytest.raises(MalformedMessage, match="unknown status"):
                await two.transport.fetch(key, DIGEST, len(BLOB))
            serve_raw(one, bytes([blobs.BUSY]) + bytes(8))
            with pytest.raises(TransientError, match="as many transfers"):
                await two.transport.fetch(key, DIGEST, len(BLOB))

    run(main())


def test_a_silent_donor_is_given_up(tmp_path):
    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):

            async def silent(wire):
                await asyncio.sleep(30)

            one.transport._serving[BLOB_PROTOCOL] = silent
            with pytest.raises(PeerUnreachable, match="no answer in time"):
                await two.transport.fetch(one.identity.key, DIGEST, len(BLOB), timeout_s=0.2)

    run(main())


def test_a_trickling_donor_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(blobs, "FLOOR_WINDOW_S", 0.3)

    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):

            async def trickle(wire):
                await wire.write(bytes([blobs.OK]) + len(BLOB).to_bytes(8, "big"), timeout_s=5)
                while True:
                    await wire.write(b"drop", timeout_s=5)
                    await asyncio.sleep(0.02)

            one.transport._serving[BLOB_PROTOCOL] = trickle
            with pytest.raises(PeerUnreachable, match="too slowly"):
                await two.transport.fetch(one.identity.key, DIGEST, len(BLOB))

    run(main())


@pytest.mark.parametrize("side", ["up", "down"])
def test_a_ceiling_holds_for_all_transfers_together_and_control_does_not_wait(tmp_path, side):
    rate, size, streams = 400_000, 200_000, 4
    parts = [random.Random(at).randbytes(size) for at in range(streams)]
    named = {blake3(part).digest(): part for part in parts}

    async def main():
        async with swarm(tmp_path, 2, STREAMS) as (one, two):
            one.transport.serve_blobs(lambda _, asked: memoryview(named[asked]))
            one.transport.serve_control(echo)
            limits_of = {"up": (rate, None), "down": (None, rate)}[side]
            (one if side == "up" else two).transport.rate_limiter.limit(*limits_of)
            clock = asyncio.get_running_loop().time
            begun_s = clock()
            fetches = [
                asyncio.ensure_future(two.transport.fetch(one.identity.key, digest, size))
                for digest in named
            ]
            stream = await two.transport.open_control(one.identity.key)
            stream.send(b"ping")
            assert await stream.recv() == b"ping"
            assert clock() - begun_s < 1.0
            assert [bytes(await fetch) for fetch in fetches] == parts
            return clock() - begun_s

    seconds = []

    async def timed():
        seconds.append(await main())

    run(timed())
    assert seconds[0] == pytest.approx(streams * size / rate, rel=0.25)
