"""A syncer that was away, and a host that nobody else can dial: real engines."""

from __future__ import annotations

import asyncio

import pytest

from host.addresses import parse_peer
from host.nat import knocking
from protocol.errors import PeerUnreachable, TransientError
from tests.net.hosts import Host, echo, run, swarm

pytestmark = pytest.mark.net

FAILURES = 3
"""After so many the engine of a host lets an address alone for 9 s, measured."""


async def failed(host, key):
    """Until the host's engine has dialled the other so many times in vain."""
    failures = 0
    while failures < FAILURES:
        try:
            await host.transport.open_control(key)
        except PeerUnreachable as error:
            failures += "dial backoff" not in str(error)
        await asyncio.sleep(0.1)


def test_a_syncer_that_was_away_is_dialled_as_soon_as_it_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(knocking, "EVERY_S", 0.3)
    monkeypatch.setattr(knocking, "GRACE_S", 1.0)
    monkeypatch.setattr(knocking, "ANSWERING_EVERY_S", 0.3)

    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            key, port = one.identity.key, one.transport.port
            returns = []
            two.transport.knocking.missed = lambda: [key]
            two.transport.knocking.on_return = lambda: returns.append(1)
            await one.transport.close()
            await failed(two, key)
            two.states.clear()
            back = Host(tmp_path, "host0", bootstrap=[], port=port)
            back.transport.serve_control(echo)
            try:
                await back.transport.start()
                # It is let alone for so long now that only a new engine can dial it.
                with pytest.raises(TransientError, match="dial backoff"):
                    await two.transport.open_control(key)
                down = await two.until(lambda state: not state.is_up)
                assert "which is back" in down.reason
                await two.until(lambda state: state.is_up)
                stream = await two.transport.open_control(key)
                stream.send(b"here")
                assert await stream.recv() == b"here"
                assert returns == [1]
            finally:
                await back.transport.close()

    run(main())


def test_an_engine_is_known_by_what_it_says_first(tmp_path):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            place = parse_peer(one.transport.addresses()[0])
            assert await knocking.answers(place)
            await one.transport.close()
            assert not await knocking.answers(place)

    run(main())
