"""Whom a host knocks at, and when it wants a new engine because of that."""

from __future__ import annotations

import asyncio

import pytest

from host.addresses import PeerAddress
from host.nat import knocking
from host.nat.knocking import Knocking, Returns

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))


class World:
    """Hosts that are missed, those of them that answer, and those that the engine has dialled."""

    def __init__(self, *missed):
        self.missed = list(missed)
        self.answering = set()
        self.connected = set()
        self.knocked = []
        self.returns = 0
        self.now_s = 100.0
        self.made = Knocking(self.places, self.is_connected, self.knock)
        self.made.missed = lambda: self.missed
        self.made.on_return = self.returned

    def places(self, key):
        return [] if key == THREE else [PeerAddress(key, f"at {at}") for at in range(9)]

    async def is_connected(self, key):
        return key in self.connected

    async def knock(self, place):
        self.knocked.append(place.key)
        # The last address that is tried is the one that is right.
        return place.key in self.answering and place.text == f"at {knocking.PLACES_MAX - 1}"

    def returned(self):
        self.returns += 1

    def look(self, after_s=1.0):
        self.now_s += after_s
        return asyncio.run(self.made.look(self.now_s))

    def pause_s(self):
        return self.made.pause_s(self.now_s)


def test_a_syncer_that_comes_back_is_told_once_and_the_engine_gets_time_to_dial_it():
    world = World(ONE)
    assert world.look() == ""
    assert world.look() == ""
    world.answering = {ONE}
    assert world.look() == ""
    assert world.returns == 1
    assert world.pause_s() == knocking.ANSWERING_EVERY_S
    assert world.look(knocking.GRACE_S - 0.1) == ""
    assert "01010101, which is back" in world.look(0.2)
    assert world.returns == 1


def test_where_the_engine_dials_it_nothing_is_started_anew():
    world = World(ONE)
    world.look()
    world.answering = {ONE}
    world.look()
    world.connected = {ONE}
    assert world.look(knocking.GRACE_S + 1) == ""
    world.connected = set()
    assert world.look(knocking.GRACE_S + 1) == "", "it was not silent since"
    assert world.returns == 1


def test_one_that_is_found_otherwise_while_it_is_knocked_at_keeps_the_engine():
    world = World(ONE)
    world.look()
    world.answering = {ONE}
    world.look()
    looks = iter([[ONE], []])
    world.made.missed = lambda: next(looks)
    assert world.look(knocking.GRACE_S + 1) == ""


def test_a_host_that_answers_and_was_never_silent_is_not_the_engine_s_fault():
    world = World(ONE)
    world.answering = {ONE}
    assert not any(world.look() for _ in range(100))
    assert world.returns == 0


def test_one_return_starts_the_engine_anew_once_and_several_not_too_often():
    world = World(ONE)

    def come_back():
        world.answering = set()
        world.look()
        world.answering = {ONE}
        world.look()
        return world.look(knocking.GRACE_S + 1)

    assert come_back()
    assert not any(world.look() for _ in range(200)), "a new engine does not help there"
    world.now_s += knocking.ANEW_EVERY_S
    assert come_back()
    assert come_back() == "", "that is too soon"
    found = [world.look() for _ in range(int(knocking.ANEW_EVERY_S))]
    assert len([one for one in found if one]) == 1


def test_nobody_is_knocked_at_who_is_not_missed_or_is_connected_or_has_no_address():
    world = World(ONE, TWO, THREE)
    world.connected = {TWO}
    world.look()
    assert set(world.knocked) == {ONE}
    assert len(world.knocked) == knocking.PLACES_MAX
    world.missed = []
    world.look()
    assert len(world.knocked) == knocking.PLACES_MAX


def test_many_that_are_missed_are_not_all_knocked_at():
    world = World(*(bytes([number]) * 32 for number in range(10, 60)))
    world.look()
    assert len(set(world.knocked)) == knocking.HOSTS_MAX


def test_a_long_absence_is_knocked_at_less_often():
    world = World(ONE)
    world.look()
    assert world.pause_s() == knocking.EVERY_S
    world.look(knocking.SOON_S + 1)
    assert world.pause_s() == knocking.LATER_EVERY_S
    world.missed = []
    world.look()
    assert world.pause_s() == knocking.EVERY_S


def test_what_is_no_longer_missed_is_forgotten():
    returns = Returns()
    returns.knocked(ONE, is_answered=False, now_s=0.0)
    returns.only([TWO])
    assert not returns.knocked(ONE, is_answered=True, now_s=1.0)
    assert not returns.is_any_back


@pytest.mark.parametrize("name", ["x" * 300, "a..b", ""])
def test_a_name_that_leads_nowhere_does_not_answer(name):
    place = PeerAddress(ONE, f"/dns4/{name}/tcp/4100/p2p/id")
    assert not asyncio.run(knocking.answers(place))


@pytest.mark.parametrize(
    "says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", knocking.ENGINE_SAYS[:-1]]
)
def test_what_listens_there_has_to_speak_as_an_engine(says):
    async def talk(reader, writer):
        writer.write(says)
        writer.close()

    async def main():
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await knocking.answers(PeerAddress(ONE, f"/ip4/127.0.0.1/tcp/{port}/p2p/id"))

    assert not asyncio.run(main())
