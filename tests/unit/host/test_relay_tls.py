"""Sealed streams: what arrives is what was sent, and only to the host whose key was named."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from host.files import keystore
from host.nat import relay_tls
from host.nat.relay_tls import RelayTls
from host.network.certificates import certificate
from protocol.errors import MalformedMessage
from tests.support.choices import first


@pytest.fixture
def hosts(tmp_path):
    return [keystore.load_or_create(tmp_path / name) for name in ("ada", "bob", "eve")]


@asynccontextmanager
async def pipe(tmp_path):
    """Both ends of a stream that anybody could read."""
    arrived = asyncio.Queue()

    async def take(reader, writer):
        await arrived.put((reader, writer))

    async with await asyncio.start_unix_server(take, str(tmp_path / "pipe")):
        near = await asyncio.open_unix_connection(str(tmp_path / "pipe"))
        far = await arrived.get()
        try:
            yield near, far
        finally:
            near[1].transport.abort()
            far[1].transport.abort()


async def both(near, far, ada, bob, *, told_ada, told_bob):
    """What comes of sealing at each end; told_ada: whom Ada takes the other end for."""
    return await asyncio.gather(
        RelayTls(ada).seal(*near, peer=told_ada, is_server=False),
        RelayTls(bob).seal(*far, peer=told_bob, is_server=True),
        return_exceptions=True,
    )


def test_bytes_pass_both_ways_and_the_end_is_seen(tmp_path, hosts):
    ada, bob, _ = hosts

    async def main():
        async with pipe(tmp_path) as (near, far):
            one, other = await both(near, far, ada, bob, told_ada=bob.key, told_bob=ada.key)
            content = bytes(range(256)) * 4000
            one.write(content)
            draining = asyncio.ensure_future(one.drain())
            assert await other.readexactly(len(content)) == content
            await draining
            other.write(b"thanks")
            await other.drain()
            assert await one.read(100) == b"thanks"
            one.write(b"half")
            one.close()
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await other.readexactly(5)
            assert caught.value.partial == b"half"
            assert await other.read(1) == b""

    asyncio.run(main())


def test_nothing_of_the_text_passes_in_the_clear(tmp_path, hosts):
    ada, bob, _ = hosts

    async def main():
        async with pipe(tmp_path) as (near, far):
            one, _ = await both(near, far, ada, bob, told_ada=bob.key, told_bob=ada.key)
            one.write(b"a secret of some length")
            await one.drain()
            assert b"secret" not in await far[0].read(1000)

    asyncio.run(main())


def test_a_read_that_was_cancelled_has_taken_nothing(tmp_path, hosts):
    ada, bob, _ = hosts

    async def main():
        async with pipe(tmp_path) as (near, far):
            one, other = await both(near, far, ada, bob, told_ada=bob.key, told_bob=ada.key)
            one.write(b"abc")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await other.readexactly(6)
            one.write(b"def")
            assert await other.readexactly(6) == b"abcdef"

    asyncio.run(main())


@pytest.mark.parametrize("liar", first(1, ["client", "server"]))
def test_another_host_in_the_middle_is_not_taken_for_the_one_named(
    tmp_path, hosts, liar, monkeypatch
):
    monkeypatch.setattr(relay_tls, "HANDSHAKE_S", 2.0)
    ada, bob, eve = hosts
    ends = (eve, bob) if liar == "client" else (ada, eve)

    async def main():
        async with pipe(tmp_path) as (near, far):
            results = both(near, far, *ends, told_ada=bob.key, told_bob=ada.key)
            async with asyncio.timeout(120):
                one, other = await results
            refused = other if liar == "client" else one
            assert isinstance(refused, MalformedMessage)
            assert "another key" in str(refused)

    asyncio.run(main())


@pytest.mark.parametrize("liar", ["client", "server"])
def test_showing_somebody_elses_certificate_does_not_help(tmp_path, hosts, liar):
    ada, bob, eve = hosts
    victim = ada if liar == "client" else bob

    class Thief(RelayTls):
        """Shows the victim's certificate and then proves its own."""

        def _context(self, theirs, is_server):
            self._certificate = certificate(eve)
            return super()._context(theirs, is_server)

    thief = Thief(eve)
    thief._certificate = certificate(victim)

    async def main():
        async with pipe(tmp_path) as (near, far):
            client = thief if liar == "client" else RelayTls(ada)
            server = thief if liar == "server" else RelayTls(bob)
            sealing = {
                "server": client.seal(*near, peer=bob.key, is_server=False),
                "client": server.seal(*far, peer=ada.key, is_server=True),
            }
            misled = asyncio.ensure_future(sealing.pop(liar))
            thieving = asyncio.ensure_future(sealing.popitem()[1])
            with pytest.raises(MalformedMessage, match="does not prove"):
                await misled
            thieving.cancel()
            await asyncio.gather(thieving, return_exceptions=True)

    asyncio.run(main())


def test_garbage_instead_of_a_certificate_is_refused(tmp_path, hosts):
    ada, bob, _ = hosts

    async def main():
        async with pipe(tmp_path) as (near, far):
            far[1].write((40).to_bytes(2, "big") + bytes(40))
            with pytest.raises(MalformedMessage, match="not a certificate"):
                await RelayTls(ada).seal(*near, peer=bob.key, is_server=False)

    asyncio.run(main())


def test_damage_on_the_way_ends_the_stream(tmp_path, hosts):
    ada, bob, _ = hosts

    async def main():
        async with pipe(tmp_path) as (near, far):
            _, other = await both(near, far, ada, bob, told_ada=bob.key, told_bob=ada.key)
            near[1].write(b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises(ConnectionResetError):
                await other.read(10)

    asyncio.run(main())
