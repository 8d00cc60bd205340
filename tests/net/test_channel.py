"""Direct TLS channels on loopback: honest peers, and each way in which one may be hostile."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading

import pytest
from blake3 import blake3

from host.bulk import channels, connection, connection_io, frames, handshake
from host.bulk.channel_policy import CONNECTIONS_FAR
from host.bulk.tls_context import Contexts
from host.files.keystore import load_or_create
from host.network import blobs, certificates
from host.options import BulkAt
from protocol.errors import (
    BadSignature,
    MalformedMessage,
    MalformedPayload,
    NotHeld,
    UserError,
)
from tests.net.channels import LOOPBACK, agree, sides, until
from tests.net.hosts import run
from tests.support.containers import knowing

pytestmark = pytest.mark.net

BLOB = random.Random(3).randbytes(9_000_001)
SMALL = BLOB[:1000]


def test_a_blob_comes_over_the_channel_and_is_checked(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            one.hold(b"")
            await agree(two, one)
            progress = []
            assert await two.fetch(one, BLOB, on_progress=progress.append) == BLOB
            assert progress == sorted(progress)
            assert progress[-1] == len(BLOB)
            assert await two.fetch(one, b"") == b""
            assert two.streams == 0
            assert two.channels.traffic[one.key].down_bytes > len(BLOB)
            assert two.traffic.down_bytes == two.channels.traffic[one.key].down_bytes
            await until(lambda: one.traffic.up_bytes == two.traffic.down_bytes)
            assert two.round_trips.of(one.key) is not None

    run(main())


def test_the_first_transfer_does_not_wait_for_the_channel(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 1
            await agree(two, one)
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 1

    run(main())


def test_both_ends_fetch_over_the_same_connection(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            mine, theirs = BLOB, BLOB[::-1]
            one.hold(mine)
            two.hold(theirs)
            await agree(two, one)
            got = await asyncio.gather(two.fetch(one, mine), one.fetch(two, theirs))
            assert got == [mine, theirs]
            assert (one.streams, two.streams) == (0, 0)
            assert len(one.channels.to(two.key)) == 1

    run(main())


def test_one_that_cannot_be_dialled_dials_back(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            (listener,), one.channels._listeners = one.channels._listeners, [closed_port()]
            try:
                await agree(two, one)
                # There is a reason from the failed dial until the other side has dialled back.
                await until(lambda: two.channels.to(one.key))
            finally:
                listener.close()
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 0

    run(main())


def test_of_peers_that_are_gone_only_bounded_memories_know(tmp_path):
    async def main():
        async with sides(tmp_path, 5) as (one, *others):
            for other in others:
                other.hold(BLOB)
                await agree(one, other)
                await until(lambda other=other: one.channels.to(other.key))
                assert await one.fetch(other, BLOB) == BLOB
            keys = {other.key for other in others}
            assert ".places" in names_of(knowing(one.channels, "", keys, len(keys)))
            for other in others:
                await other.close()
            await until(lambda: not one.channels.peers)
            # Sums of bytes for screens, and whether a channel is worth another try.
            assert names_of(knowing(one.channels, "", keys, len(keys))) <= {".traffic", ".peers"}

    run(main())


def names_of(paths):
    """The last attribute of each path, without what it is called by its own."""
    return {"." + path.rpartition(".")[2].lstrip("_") for path in paths}


def closed_port():
    """Something with the name of a port that refuses."""
    bound = socket.socket()
    bound.bind((LOOPBACK, 0))
    return bound


def test_neither_reachable_means_streams_and_says_why(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            for side in (one, two):
                side.channels._listeners[0].close()
                side.channels._listeners = [closed_port()]
            await agree(two, one)
            assert "nor can it reach this one" in two.channels.reason(one.key)
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 1
            assert two.faults == one.faults == []

    run(main())


def test_a_host_from_before_there_were_channels_goes_on_with_streams(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            two.hold(BLOB[::-1])
            one.knows_channels = False
            assert await two.fetch(one, BLOB) == BLOB
            await agree(two, one)
            assert "not supported" in two.channels.reason(one.key)
            assert await two.fetch(one, BLOB) == BLOB
            assert await one.fetch(two, BLOB[::-1]) == BLOB[::-1]
            assert two.streams == 2

    run(main())


def test_one_that_is_turned_off_says_so(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            one.channels._tls = None
            await agree(two, one)
            assert "turned off" in two.channels.reason(one.key)
            assert await two.fetch(one, BLOB) == BLOB

        async with sides(tmp_path, at=BulkAt(is_on=False)) as (one, two):
            one.hold(BLOB)
            assert await two.fetch(one, BLOB) == BLOB
            assert (one.channels.port, two.channels.port) == (0, 0)

    run(main())


def test_a_relayed_peer_is_not_dialled(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            for side in (one, two):
                side.addresses = ("/ip4/127.0.0.1/tcp/1/p2p/R/p2p-circuit/p2p/x",)
            await agree(two, one)
            assert "relay" in two.channels.reason(one.key)

    run(main())


def test_what_is_not_held_comes_with_the_sections_that_are(tmp_path):
    sections = 1 << 63 | 0b1011

    async def main():
        async with sides(tmp_path) as (one, two):
            one.bulk.serve(lambda *_: None, None, lambda *_: sections)
            for _ in range(2):  # Over a stream, then over the channel.
                with pytest.raises(NotHeld) as told:
                    await two.fetch(one, SMALL)
                assert told.value.held_sections == sections
                await agree(two, one)
            assert two.streams == 1

    run(main())


def has_grown(asker, other):
    """Wants more each time: a wish that comes before the end of a negotiation is not kept."""
    asker.channels.wanted(other.key, len(BLOB), 1.0)
    return len(asker.channels.to(other.key)) == CONNECTIONS_FAR


@pytest.mark.parametrize("cuts", [1, CONNECTIONS_FAR])
def test_a_channel_that_breaks_in_the_middle_costs_no_byte_that_came(tmp_path, cuts):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            await agree(two, one)
            await until(lambda: has_grown(two, one))
            two.rate_limiter.limit(None, 4 * len(BLOB))  # Slow enough to be cut.

            def cut(filled):
                if filled > 2_000_000 and not broken:
                    broken.append(filled)
                    for connection in two.channels.to(one.key)[:cuts]:
                        connection._there(connection.link._transport.abort)

            broken = []
            before = two.channels.traffic[one.key].down_bytes
            assert await two.fetch(one, BLOB, on_progress=cut) == BLOB
            assert broken
            if cuts < CONNECTIONS_FAR:
                assert two.streams == 0, "the others take over"
            else:
                assert two.streams == 1
                assert "broke" in two.channels.reason(one.key)
                came = two.channels.traffic[one.key].down_bytes - before
                assert came < len(BLOB), "the rest came over the stream"

    run(main())


def test_a_channel_that_goes_silent_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "SILENT_S", 0.3)
    monkeypatch.setattr(channels, "CHECK_EVERY_S", 0.05)

    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            await agree(two, one)

            for connection in one.channels.to(two.key):
                connection.on_requests = lambda _: None
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 1
            assert "silent" in two.channels.reason(one.key)

    run(main())


def test_unused_connections_are_closed_without_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "IDLE_S", 0.2)
    monkeypatch.setattr(channels, "CHECK_EVERY_S", 0.05)

    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            await agree(two, one)
            await until(lambda: not (one.channels.peers or two.channels.peers))
            assert two.channels.reason(one.key) == ""
            await agree(two, one)
            assert two.channels.to(one.key), "and opened again at once"

    run(main())


def test_a_cancelled_transfer_leaves_the_channel_to_others(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            one.hold(SMALL)
            await agree(two, one)
            into = bytearray(len(BLOB))
            begun = asyncio.Event()
            task = asyncio.ensure_future(
                two.fetch(one, BLOB, into=into, on_progress=lambda _: begun.set())
            )
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            kept = bytes(into)
            assert await two.fetch(one, SMALL) == SMALL
            assert await two.fetch(one, BLOB) == BLOB
            assert bytes(into) == kept, "its memory is its caller's again"
            assert two.streams == 0

    run(main())


def test_what_is_dropped_on_its_way_out_is_not_waited_for(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            digest = one.hold(BLOB)
            await agree(two, one)
            connection, gate = two.channels.to(one.key)[0], threading.Event()
            connection._there(gate.wait, 10.0)
            connection.drop(connection.ask(digest, 0, memoryview(bytearray(1000)), gate.is_set))
            gate.set()
            await until(lambda: connection.is_idle)
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 0

    run(main())


def test_lies_are_refused_over_the_channel_too(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            await agree(two, one)
            with pytest.raises(NotHeld):
                await two.fetch(one, BLOB)
            digest = one.hold(BLOB)
            one.blobs[digest] = BLOB[:-1] + b"?"
            with pytest.raises(MalformedPayload, match="do not match"):
                await two.fetch(one, BLOB)
            assert await two.fetch(one, BLOB, is_checked=False) == one.blobs[digest]
            one.blobs[digest] = BLOB[:-1]
            with pytest.raises(MalformedPayload, match="signed are"):
                await two.fetch(one, BLOB)
            one.blobs[digest] = BLOB
            assert await two.fetch(one, BLOB) == BLOB
            assert two.streams == 0

    run(main())


@pytest.mark.parametrize("side", ["up", "down"])
def test_a_ceiling_holds_on_the_channel(tmp_path, side):
    rate, size, count = 4_000_000, 1_000_000, 4
    parts = [random.Random(at).randbytes(size) for at in range(count)]

    async def main():
        async with sides(tmp_path) as (one, two):
            for part in parts:
                one.hold(part)
            await agree(two, one)
            (one if side == "up" else two).rate_limiter.limit(
                *{"up": (rate, None), "down": (None, rate)}[side]
            )
            clock = asyncio.get_running_loop().time
            begun_s = clock()
            assert await asyncio.gather(*(two.fetch(one, part) for part in parts)) == parts
            assert clock() - begun_s == pytest.approx(count * size / rate, rel=0.25)
            assert two.streams == 0

    run(main())


def test_peers_share_a_ceiling_however_many_connections_they_have(tmp_path):
    rate, size = 4_000_000, 2_000_000

    async def main():
        async with sides(tmp_path, 3) as (one, two, three):
            blob = BLOB[:size]
            one.hold(blob)
            await agree(two, one)
            await agree(three, one)
            two.channels.wanted(one.key, size, 1.0)
            await until(lambda: len(two.channels.to(one.key)) == CONNECTIONS_FAR)
            one.rate_limiter.limit(rate, None)
            clock = asyncio.get_running_loop().time

            async def timed(side):
                begun_s = clock()
                await side.fetch(one, blob)
                return clock() - begun_s

            took = await asyncio.gather(timed(two), timed(three))
            assert min(took) > 0.8 * max(took), "four connections get no more than one"

    run(main())


# Hostile peers.


async def opened(side, context=None, **options):
    """A connection to the listener of a side, from nobody it knows."""
    return await asyncio.open_connection(LOOPBACK, side.channels.port, ssl=context, **options)


async def ended(reader):
    """Until the other side has hung up; what it said before."""
    said = b""
    try:
        while part := await reader.read(1000):
            said += part
    except (OSError, ssl.SSLError):
        pass
    return said


def client(contexts, *, lowest=ssl.TLSVersion.TLSv1_3, highest=None):
    context = contexts.client
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = lowest
    if highest is not None:
        context.maximum_version = highest
    return context


async def still_serves(one, two):
    one.hold(BLOB)
    await agree(two, one)
    assert await two.fetch(one, BLOB) == BLOB
    assert two.streams == 0


def test_a_stranger_is_refused_in_the_handshake(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            stranger = Contexts(load_or_create(tmp_path / "stranger"))
            reader, writer = await opened(one, client(stranger), server_hostname="")
            assert await ended(reader) == b"", "not even a greeting"
            writer.close()
            bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
            reader, writer = await opened(one, bare, server_hostname="")
            assert await ended(reader) == b"", "nor for one without a certificate"
            writer.close()
            assert one.channels.peers == {}
            await still_serves(one, two)

    run(main())


def test_a_known_peer_with_old_tls_is_refused(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            mine = Contexts(two.identity)
            one.channels._tls.trust(mine.certificate)
            old = client(mine, lowest=ssl.TLSVersion.TLSv1_2, highest=ssl.TLSVersion.TLSv1_2)
            with pytest.raises((ssl.SSLError, OSError)):
                await opened(one, old, server_hostname="")
            await still_serves(one, two)

    run(main())


def test_a_certificate_of_the_right_name_and_the_wrong_key_is_refused(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            # What is said over the engine must be of the key that the engine has proven.
            two.channels._tls.certificate = Contexts(load_or_create(tmp_path / "other")).certificate
            await agree(two, one)
            assert one.channels.peers == {}
            assert two.channels.peers == {}
            one.hold(BLOB)
            assert await two.fetch(one, BLOB) == BLOB

    run(main())


def test_a_dialled_port_that_proves_another_key_is_refused(tmp_path):
    async def main():
        async with sides(tmp_path, 3) as (one, two, three):
            # Somebody whom Two trusts listens where One says that One does.
            await agree(two, three)
            three.channels._tls.trust(certificates.certificate(two.identity))
            (listener,), (theirs,) = one.channels._listeners, three.channels._listeners
            one.channels._listeners = [theirs.dup()]
            one.addresses = ()  # nor does it dial back
            await agree(two, one)
            listener.close()
            assert not two.channels.to(one.key)
            assert "has proven to be host" in two.channels.reason(one.key)
            assert two.channels.to(three.key)

    run(main())


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0" * 9]
)
def test_plain_text_is_refused(tmp_path, said):
    async def main():
        async with sides(tmp_path) as (one, two):
            reader, writer = await opened(one)
            writer.write(said)
            await writer.drain()
            await asyncio.wait_for(ended(reader), 8)
            await still_serves(one, two)

    run(main())


def test_slow_handshakes_are_cut_off_and_do_not_crowd_out_others(tmp_path, monkeypatch):
    monkeypatch.setattr(channels, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(channels, "HANDSHAKES_PER_ADDRESS_MAX", 4)

    async def main():
        async with sides(tmp_path) as (one, two):
            waiting = [await opened(one) for _ in range(12)]
            for _, writer in waiting:
                writer.write(b"\x16")
            await asyncio.sleep(0.1)
            assert one.channels._handshakes.total() <= 4
            clock = asyncio.get_running_loop().time
            begun_s = clock()
            await asyncio.gather(*(ended(reader) for reader, _ in waiting))
            assert clock() - begun_s < 2.0
            assert one.channels._handshakes == {}
            await still_serves(one, two)

    run(main())


async def raw(one, two):
    """A connection to One that has proven to be Two's, spoken by hand."""
    mine = Contexts(two.identity)
    one.channels._tls.trust(mine.certificate)
    reader, writer = await opened(one, client(mine), server_hostname="")
    assert await reader.readexactly(8) == frames.GREETING
    writer.write(frames.GREETING)
    return reader, writer


REQUEST = frames.Request(1, blake3(BLOB).digest(), 0, 1 << 20)


@pytest.mark.parametrize(
    "said",
    [
        frames.HEADER.pack(9, 0, 0, 1, 0, 0),
        frames.HEADER.pack(1, 0, 0, 1, 1 << 30, 0),
        frames.HEADER.pack(3, 0, 0, 7, 100, 0) + b"d" * 100,
        frames.HEADER.pack(2, 0, 0, 7, 0, 100),
        frames.request_bytes(REQUEST) * (connection_io.REQUESTS_MAX + 60),
    ],
    ids=["unknown kind", "too long", "unasked data", "unasked answer", "too many"],
)
def test_who_breaks_the_rules_is_cut_off_and_kept_off(tmp_path, said):
    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            _, writer = await raw(one, two)
            writer.write(said)
            await until(lambda: one.faults)
            assert one.channels.peers == {}
            writer.transport.abort()
            assert one.channels._shares.transfers[two.key] == 0
            reader, writer = await raw(one, two)
            await asyncio.wait_for(ended(reader), 8)
            assert one.channels.peers == {}
            assert await two.fetch(one, BLOB) == BLOB, "streams stay open to it"

    run(main())


def test_a_truncated_frame_is_an_end_and_no_more(tmp_path):
    async def main():
        async with sides(tmp_path) as (one, two):
            _, writer = await raw(one, two)
            writer.write(frames.request_bytes(REQUEST)[:30])
            await writer.drain()
            await until(lambda: one.channels.peers)
            writer.close()
            await until(lambda: not one.channels.peers)
            assert one.faults == []
            await still_serves(one, two)

    run(main())


def test_one_that_asks_and_does_not_read_costs_bounded_memory_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(blobs, "WRITE_S", 0.5)

    async def main():
        async with sides(tmp_path) as (one, two):
            one.hold(BLOB)
            _, writer = await raw(one, two)
            writer.transport.pause_reading()
            for number in range(connection_io.REQUESTS_MAX):
                asked = frames.Request(number, blake3(BLOB).digest(), 0, 1 << 20)
                writer.write(frames.request_bytes(asked))
            await until(lambda: one.channels._shares.transfers[two.key])
            connection = one.channels.to(two.key)[0]
            most = 0
            while one.channels.peers:
                most = max(most, connection.link._transport.get_write_buffer_size())
                await asyncio.sleep(0.01)
            assert most <= connection_io.WRITE_HIGH_BYTES + frames.DATA_BYTES_MAX
            writer.transport.abort()
            await still_serves(one, two)

    run(main())


def test_connections_are_bounded_per_peer_and_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(channels, "CONNECTIONS_PER_PEER_MAX", 2)
    monkeypatch.setattr(channels, "CONNECTIONS_MAX", 3)

    async def main():
        async with sides(tmp_path, 3) as (one, two, three):
            made = [await raw(one, two) for _ in range(4)]
            for reader, _ in made[2:]:
                await asyncio.wait_for(ended(reader), 8)
            assert one.channels.peers == {two.key: 2}
            made += [await raw(one, three) for _ in range(2)]
            await until(lambda: one.channels.peers.get(three.key) == 2)
            await until(lambda: sum(one.channels.peers.values()) <= 3)
            assert one.channels.peers == {two.key: 1, three.key: 2}, "an idle one gave way"
            for _, writer in made:
                writer.transport.abort()

    run(main())


def test_offers_are_bounded_and_checked(tmp_path):
    mine = certificates.certificate(load_or_create(tmp_path / "mine"))
    other = load_or_create(tmp_path / "other")
    offer = handshake.Offer(0, 1, mine)
    with pytest.raises(MalformedMessage, match="another key"):
        handshake.check(offer, other.key)
    with pytest.raises(MalformedMessage, match="certificate of 0 bytes"):
        certificates.key_of_certificate(b"")
    with pytest.raises(MalformedMessage, match="certificate of 2000 bytes"):
        certificates.key_of_certificate(b"x" * 2000)
    with pytest.raises(MalformedMessage, match="not a certificate"):
        certificates.key_of_certificate(b"x" * 200)
    with pytest.raises(BadSignature):
        certificates.key_of_certificate(mine[:-1] + bytes([mine[-1] ^ 1]))
    assert certificates.certificate(other) == certificates.certificate(other)


def test_a_pinned_port_that_is_taken_is_said_in_words():
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} for bulk data .* --bulk-port"):
            handshake.listening(LOOPBACK, port)
