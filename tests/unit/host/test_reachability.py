"""What a host takes from those that dial it back, and where it then says that it is reached."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

import pytest

from host.nat import probe_messages, reachability
from host.nat.probe_messages import ReachAsk, ReachTold
from host.nat.reachability import Reachability
from host.network.foreign_errors import Loss
from host.network.streams import Wire

OWN_FOUR, OWN_SIX = "/ip4/8.8.4.4/tcp/4100", "/ip6/2606:4700::1/tcp/4100"
NAMED = "/dns/train.example.org/tcp/4100"


@dataclass
class Other:
    """A host that was asked: where it is, where it sees the asker, and whether it gets through."""

    place: str
    seen: str
    could_dial: bool


@dataclass
class Around:
    """Connections with such hosts, in place of a transport's."""

    others: dict[bytes, Other]
    own: list[str] = field(default_factory=lambda: [NAMED, OWN_FOUR, OWN_SIX])
    port_outside: int = 4100

    def connected(self):
        return set(self.others)

    def addresses(self):
        return self.own

    async def look_at_connections(self):
        pass

    async def where(self, key):
        return (self.others[key].place,)

    async def dial_plain(self, key, protocol):
        assert protocol == reachability.PROTOCOL
        ends = socket.socketpair()
        near, far = [
            Wire(key, *await asyncio.open_unix_connection(sock=end), loss=Loss(), counters=())
            for end in ends
        ]
        self.answering = asyncio.ensure_future(self._answer(key, far))
        return near

    async def _answer(self, key, stream):
        await probe_messages.receive(stream, ReachAsk)
        other = self.others[key]
        told = ReachTold(other.could_dial, other.seen, relays=False, addresses=())
        await probe_messages.reply(stream, told)


def reach_of(monkeypatch, *others):
    """What a host finds out from these."""
    monkeypatch.setattr(reachability, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(reachability, "LOOK_EVERY_S", 0.0)
    around = Around({bytes([number]) * 32: one for number, one in enumerate(others)})
    heard, everybody = set(), asyncio.Event()

    def on_addresses(key, texts):
        heard.add(key)
        if heard == around.connected():
            everybody.set()

    found = Reachability(around, on_addresses, lambda: False)

    async def ask():
        running = asyncio.create_task(found.run())
        async with asyncio.timeout(10.0):
            await everybody.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(ask())
    return found


FAR_FOUR, FAR_SIX = "/ip4/1.1.1.1/tcp/9", "/ip6/2606:4700:9::9/tcp/9"


@pytest.mark.parametrize(
    ("opened", "closed", "told", "words"),
    [
        (OWN_FOUR, OWN_SIX, (NAMED, OWN_FOUR), "over IPv4 alone: 1 of 2 that tried"),
        (OWN_SIX, OWN_FOUR, (NAMED, OWN_SIX), "over IPv6 alone: 1 of 2 that tried"),
    ],
)
def test_who_is_open_over_one_version_tells_its_addresses_of_that(
    monkeypatch, opened, closed, told, words
):
    others = Other(FAR_FOUR, opened, could_dial=True), Other(FAR_SIX, closed, could_dial=False)
    found = reach_of(monkeypatch, *others)
    assert found.verdict == "direct"
    assert words in found.sentence
    assert found.told_addresses() == told


def test_who_is_open_over_both_tells_all(monkeypatch):
    others = [Other(FAR_FOUR, seen, could_dial=True) for seen in (OWN_FOUR, OWN_SIX)]
    found = reach_of(monkeypatch, *others)
    assert "Others can dial this host: 2 of 2" in found.sentence
    assert found.told_addresses() == (NAMED, OWN_FOUR, OWN_SIX)


@pytest.mark.parametrize(
    ("neighbour", "own"),
    [("/ip6/2606:4700::beef/tcp/9", OWN_SIX), ("/ip4/8.8.4.4/tcp/9", OWN_FOUR)],
)
def test_who_is_on_the_same_line_has_not_come_through_the_router(monkeypatch, neighbour, own):
    beside = Other(neighbour, own, could_dial=True)
    assert reach_of(monkeypatch, beside).verdict == "direct", "nobody else says anything"
    far = Other(FAR_FOUR, own, could_dial=False)
    found = reach_of(monkeypatch, beside, beside, far)
    assert found.verdict == "outward"
    assert found.count == (0, 1)
