"""Frames of a control stream come whole and in order, whether their sender writes or its task."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from host.network.foreign_errors import Loss
from host.network.streams import OUTBOX_FRAMES_MAX, ControlStream, Traffic, Wire
from protocol.errors import PeerUnreachable
from tests.support.table_entries import identity

FRAMES = [bytes([at]) * size for at, size in enumerate((1, 50_000, 7, 200_000, 100_000, 3, 90_000))]


@asynccontextmanager
async def stream_to():
    """A stream that its task writes to, what it counts, and a socket at its other end."""
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=near)
    far.setblocking(False)
    counted = Traffic()
    wire = Wire(identity(1).key, reader, writer, loss=Loss(), counters=(counted,))
    stream = ControlStream(wire)
    task = asyncio.create_task(stream.run_writer())
    try:
        yield stream, counted, far
    finally:
        stream.abort("over")
        await task
        far.close()


async def flood(stream, count, then=None):
    """Send so many frames of 1 kB, whoever reads them."""
    for _ in range(count):
        stream.send(bytes(1000))
        await asyncio.sleep(0)
    if then is not None:
        await then()


async def received(far, count):
    """So many frames from the other end."""
    loop, found, held = asyncio.get_running_loop(), [], b""
    while len(found) < count:
        held += await loop.sock_recv(far, 1 << 16)
        while len(held) >= 4 and len(held) >= 4 + int.from_bytes(held[:4], "big"):
            size = int.from_bytes(held[:4], "big")
            found.append(held[4 : 4 + size])
            held = held[4 + size :]
    return found


@pytest.mark.parametrize("has_turns", [False, True])
def test_frames_come_in_order_also_while_a_peer_reads_slowly(has_turns):
    async def play():
        async with stream_to() as (stream, counted, far):
            for frame in FRAMES:
                if has_turns:
                    await asyncio.sleep(0)
                stream.send(frame)
            assert await received(far, len(FRAMES)) == FRAMES
            stream.send(b"one more")
            assert await received(far, 1) == [b"one more"]
            sent = [*FRAMES, b"one more"]
            assert counted.up_bytes == sum(4 + len(frame) for frame in sent)

    asyncio.run(play())


def test_a_stream_says_whether_a_whole_frame_lies_here():
    async def play():
        loop = asyncio.get_running_loop()
        async with stream_to() as (stream, _, far):
            assert not stream.has_frame
            frames = [b"first", b"second", b"third"]
            told = b"".join(len(one).to_bytes(4, "big") + one for one in frames)
            await loop.sock_sendall(far, told[:-1])
            assert await stream.recv() == b"first"
            assert stream.has_frame
            assert await stream.recv() == b"second"
            assert not stream.has_frame, "a byte of the third is missing"
            await loop.sock_sendall(far, told[-1:])
            assert await stream.recv() == b"third"

    asyncio.run(play())


def test_an_idle_stream_takes_a_frame_without_a_turn_of_its_task():
    async def play():
        async with stream_to() as (stream, counted, _):
            await asyncio.sleep(0)
            stream.send(b"at once")
            assert counted.up_bytes == 4 + len(b"at once")

    asyncio.run(play())


def test_a_peer_that_does_not_read_at_all_is_let_go():
    async def play():
        async with stream_to() as (stream, _, _):
            with pytest.raises(PeerUnreachable, match="does not read"):
                await flood(stream, 2 * OUTBOX_FRAMES_MAX)
            with pytest.raises(PeerUnreachable, match="does not read"):
                stream.send(b"more")

    asyncio.run(play())


def test_a_stream_whose_peer_went_away_ends_at_the_next_read():
    async def play():
        async with stream_to() as (stream, _, far):
            await asyncio.sleep(0)
            far.close()
            with pytest.raises(PeerUnreachable):
                await flood(stream, 100, then=stream.recv)

    asyncio.run(play())
