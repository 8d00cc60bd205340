"""Streams that a third host carries, on loopback: what it carries, for whom, and how fast."""

from __future__ import annotations

import asyncio
import time

import pytest
from blake3 import blake3

from host.nat.reachability import PROTOCOL as REACH_PROTOCOL
from host.nat.relay import OFFER_PROTOCOL as RELAYED_PROTOCOL
from host.nat.relay import PROTOCOL as RELAY_PROTOCOL
from host.network import blobs, slots, streams
from protocol.errors import MalformedMessage, PeerBusy, PeerUnreachable
from tests.net.hosts import echo, run, swarm

pytestmark = pytest.mark.net

BLOB = bytes(range(256)) * 1200
DIGEST = blake3(BLOB).digest()
RATE = 200_000


def serve_blob(host):
    host.transport.serve_blobs(lambda _, name: memoryview(BLOB) if name == DIGEST else None)


async def fetch_through(asker, giver):
    """The blob, by way of whoever carries it."""
    wire = await asker.transport.relay.through(giver.identity.key, "blob")
    assert wire.peer == giver.identity.key
    target = blobs.room_for(len(BLOB))
    await blobs.Download(DIGEST, target).run(wire)
    return bytes(target)


async def introduced(hosts):
    """All are connected with the first, and none says where it can be dialled."""
    for host in hosts:
        await host.transport.look_at_connections()
        host.transport.reachability.told_addresses = tuple


def test_a_third_host_carries_a_transfer_sealed(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as (relay, ada, bob):
            serve_blob(bob)
            await introduced([relay, ada, bob])
            assert await fetch_through(ada, bob) == BLOB
            assert relay.transport.relay.carried_bytes > len(BLOB)
            assert relay.transport.traffic_by_peer[bob.identity.key].down_bytes > len(BLOB)
            assert bob.identity.key in ada.transport.relay.used()
            assert ada.identity.key in bob.transport.relay.used()

    run(main(), timeout_s=60)


def test_a_standing_stream_is_carried_too(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as (relay, ada, bob):
            bob.transport.serve_control(echo)
            await introduced([relay, ada, bob])
            wire = await ada.transport.relay.through(bob.identity.key, "control")
            await streams.offer_hello(wire)
            wire.abort("enough")
            for _ in range(400):
                if not relay.transport.relay.open:
                    break
                await asyncio.sleep(0.05)
            assert relay.transport.relay.open == 0

    run(main(), timeout_s=60)


def test_what_is_carried_keeps_to_its_ceiling(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as (relay, ada, bob):
            serve_blob(bob)
            await introduced([relay, ada, bob])
            relay.transport.relay.limit(RATE)
            began_s = time.monotonic()
            assert await fetch_through(ada, bob) == BLOB
            assert time.monotonic() - began_s > 0.8 * len(BLOB) / RATE

    run(main(), timeout_s=60)


@pytest.mark.parametrize("why", ["off", "absent", "busy"])
def test_what_is_not_carried_is_said(tmp_path, why, monkeypatch):
    async def main():
        async with swarm(tmp_path, 3) as (relay, ada, bob):
            await introduced([relay, ada, bob])
            key, expected = bob.identity.key, PeerUnreachable
            if why == "off":
                relay.transport.relay.limit(0)
            elif why == "absent":
                key = bytes(31) + b"\x01"
            else:
                monkeypatch.setattr(relay.transport.relay, "_slots", slots.Slots(0, 0))
                expected = PeerBusy
            with pytest.raises(expected):
                await ada.transport.relay.through(key, "blob")
            assert relay.transport.relay.carried_bytes == 0

    run(main(), timeout_s=60)


def test_a_host_that_can_be_dialled_is_dialled_instead(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as (relay, ada, bob):
            serve_blob(bob)
            await introduced([relay, ada, bob])
            here = tuple(ada.transport.addresses())
            ada.transport.reachability.told_addresses = lambda: here
            assert await fetch_through(ada, bob) == BLOB
            assert relay.transport.relay.carried_bytes < 1000
            assert await bob.transport.is_connected(ada.identity.key)

    run(main(), timeout_s=60)


def test_a_relay_that_sits_in_the_middle_itself_is_found_out(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as (relay, ada, bob):
            await introduced([relay, ada, bob])
            middle = relay.transport.relay

            async def impersonate(wire):
                from host.nat import probe_messages
                from host.nat.probe_messages import RelayAsk, RelayTold

                ask = await probe_messages.receive(wire, RelayAsk)
                assert ask.to == bob.identity.key
                await probe_messages.send(wire, RelayTold("open"))
                await middle._sealed(wire, ada.identity.key, is_server=True)

            relay.transport._serving[RELAY_PROTOCOL] = impersonate
            with pytest.raises(PeerUnreachable, match="another key"):
                await ada.transport.relay.through(bob.identity.key, "blob")

    run(main(), timeout_s=60)


def test_every_start_says_what_it_is_told_in_vain(tmp_path):
    """Nonsense on the protocols of this file ends the stream and is counted."""

    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            for protocol in (
                RELAY_PROTOCOL,
                RELAYED_PROTOCOL,
                REACH_PROTOCOL,
            ):
                wire = await two.transport.dial_plain(one.identity.key, protocol)
                await wire.write((7).to_bytes(4, "big") + b"garbage", timeout_s=5)
                with pytest.raises(PeerUnreachable):
                    await wire.read_exactly(1, timeout_s=5)
            assert one.transport.faults == {MalformedMessage.reason: 3}
            wire = await two.transport.dial_plain(one.identity.key, RELAY_PROTOCOL)
            await wire.write((1 << 30).to_bytes(4, "big"), timeout_s=5)
            with pytest.raises(PeerUnreachable):
                await wire.read_exactly(1, timeout_s=5)
            assert one.transport.faults["limit-exceeded"] == 1

    run(main(), timeout_s=60)
