"""Merged payloads over direct channels: a promised copy comes whole, though it is asked for in
pieces, and a slow line measures itself."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from blake3 import blake3

from host.bulk.giving import Giving
from protocol.errors import NotHeld
from tests.net.channels import agree, sides
from tests.net.hosts import run

pytestmark = pytest.mark.net

PAYLOAD = random.Random(1).randbytes(3_000_000)


def test_a_payload_of_many_pieces_comes_from_a_host_that_gives_one_copy_after_the_other(tmp_path):
    giving = Giving(1e6)

    async def main():
        async with sides(tmp_path, 3) as (one, two, three):
            name = blake3(PAYLOAD).digest()
            one.bulk.serve(
                lambda peer, digest: (
                    memoryview(PAYLOAD)
                    if digest == name
                    and giving.may_give(peer, digest, len(PAYLOAD), time.monotonic())
                    else None
                ),
                None,
            )
            await agree(two, one)
            await agree(three, one)
            assert await two.fetch(one, PAYLOAD) == PAYLOAD
            with pytest.raises(NotHeld):
                await three.fetch(one, PAYLOAD)
            assert two.streams == three.streams == 0

    run(main())


def test_a_line_that_holds_bytes_back_is_measured(tmp_path):
    rate, parts = 16_000_000, [random.Random(at).randbytes(2_000_000) for at in range(8)]

    async def main():
        async with sides(tmp_path, 3) as (one, two, three):
            for part in parts:
                one.hold(part)
            for reader in (two, three):
                await agree(reader, one)
                reader.rate_limiter.limit(None, rate // 2)  # What slows a sender is all the same.
            assert one.rate_limiter.up.bytes_per_s is None
            fetches = [reader.fetch(one, part) for part in parts for reader in (two, three)]
            assert len(await asyncio.gather(*fetches)) == 16

            measured = one.rate_limiter.up.bytes_per_s
            assert measured == pytest.approx(rate, rel=0.4)

    run(main())
