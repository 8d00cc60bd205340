"""Streams that say nothing keep nobody out."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from host import stream_server
from host.files.keystore import peer_id_bytes
from host.network import streams
from host.network.engine import Engine, Options
from host.network.foreign_errors import Loss
from host.network.hivemind_parts import PeerID
from host.stream_server import StreamServer
from tests.support.table_entries import identity

HERE, THERE = "/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.2/tcp/1"
MEMBER = identity(7777)


class Served:
    """A server with room for 20 streams, 4 of them for members, and who talks to it."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(stream_server, "INCOMING_MAX", 20)
        monkeypatch.setattr(stream_server, "INCOMING_FOR_MEMBERS", 4)
        monkeypatch.setattr(stream_server, "INCOMING_PER_PEER_MAX", 6)
        monkeypatch.setattr(streams, "SAYS_S", 0.5)
        nobody = Options(identity(1), "127.0.0.1", 0, (), frozenset(), False)
        self.engine = Engine(nobody, Loss())
        self.server = StreamServer(lambda key: (), lambda key: key == MEMBER.key)
        self.heard = []
        self.writers = []

    async def open(self, of, address=HERE):
        """The opener's ends of a new stream."""
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=near)
        self.writers.append(writer)
        description = SimpleNamespace(peer_id=PeerID(peer_id_bytes(of.key)), addr=address)
        await self.server.accept(
            self.engine,
            self.server.control,
            description,
            *await asyncio.open_unix_connection(sock=far),
        )
        return reader, writer

    async def hello(self, of, address=HERE):
        """How the server answers a control stream; empty where it just ends."""
        reader, writer = await self.open(of, address)
        try:
            writer.write(streams.HELLO)
            return await reader.read(len(streams.HELLO))
        except ConnectionError:
            return b""

    async def handle(self, stream):
        self.heard.append(await stream.recv())

    async def run(self, work):
        self.server.handler = self.handle
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as self.server.tasks:
            result = await work
            for writer in self.writers:
                writer.transport.abort()
        return result


@pytest.fixture
def served(monkeypatch):
    return Served(monkeypatch)


def test_silent_streams_of_many_keys_keep_no_newcomer_out(served):
    async def work():
        for number in range(10):
            for _ in range(4):
                _, writer = await served.open(identity(number + 1))
                writer.write(streams.HELLO[:-1])
        await asyncio.sleep(0)
        return await served.hello(identity(99)), await served.hello(identity(98), THERE)

    assert asyncio.run(served.run(work())) == (streams.HELLO, streams.HELLO)


def test_the_key_with_most_silent_streams_gives_way_and_gets_no_more(served):
    async def work():
        modest = [await served.open(identity(number)) for number in range(1, 11)]
        greedy = [await served.open(identity(50)) for _ in range(6)]
        more = [await served.open(identity(50)) for _ in range(6)]
        new = await served.hello(identity(99))
        ended = [await reader.read(1) for reader, _ in [*more, greedy[0]]]
        for _, writer in modest:
            writer.write(streams.HELLO)
        return new, ended, [await reader.read(8) for reader, _ in modest]

    new, ended, answers = asyncio.run(served.run(work()))
    assert new == streams.HELLO
    assert ended == [b""] * 7
    assert answers == [streams.HELLO] * 10, "whoever was slow to speak is still there"


def test_streams_that_have_spoken_are_not_dropped_and_members_still_find_room(served):
    async def work():
        first = [await served.hello(identity(number)) for number in range(1, 17)]
        return first, await served.hello(identity(99)), await served.hello(MEMBER)

    first, stranger, member = asyncio.run(served.run(work()))
    assert first == [streams.HELLO] * 16
    assert stranger == b""
    assert member == streams.HELLO


def test_a_control_stream_without_a_first_frame_is_closed(served):
    async def work():
        reader, writer = await served.open(identity(1))
        writer.write(streams.HELLO)
        said = await reader.readexactly(len(streams.HELLO))
        return said, await reader.read(1)

    assert asyncio.run(served.run(work())) == (streams.HELLO, b"")


def test_a_control_stream_that_spoke_once_may_be_silent(served):
    async def work():
        reader, writer = await served.open(identity(1))
        writer.write(streams.HELLO + (2).to_bytes(4, "big") + b"hi")
        await reader.readexactly(len(streams.HELLO))
        await reader.read(1)

    asyncio.run(served.run(work()))
    assert served.heard == [b"hi"]
