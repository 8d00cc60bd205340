"""Whom a host tries first, and whom it misses."""

from __future__ import annotations

import asyncio

import pytest

from host.addresses import PEERS_TRIED_MAX
from host.files import keystore
from host.nat.dialer import Dialer
from host.nat.peer_file import PeerFile
from host.network.neighbours import ConnectedPeer
from protocol.errors import PeerUnreachable


def key(number):
    return number.to_bytes(32, "big")


def address(number):
    return f"/ip4/203.0.113.{number}/tcp/4100/p2p/{keystore.peer_id(key(number))}"


OWN = key(200)


class Engine:
    """Answers for those that are there."""

    def __init__(self, *there):
        self.there = set(there)
        self.connected = []
        self.greeted = []

    async def greet(self, peer):
        self.greeted.append(peer.key)
        if peer.key not in self.there:
            raise PeerUnreachable("nobody answers")


def greeting(*, bootstrap=(), hints=(), known=(), engine=None):
    peers = PeerFile()
    for number in known:
        peers.saw(key(number), [address(number)])
    texts = [[address(number) for number in numbers] for numbers in (bootstrap, hints)]
    return Dialer(OWN, *texts, peers, lambda: engine or Engine())


def tried(made, attempt=0):
    return [peer.text for peer in made.to_try(attempt)]


def test_hosts_from_before_are_tried_besides_those_of_the_link():
    made = greeting(bootstrap=[1], hints=[2], known=[3])
    assert tried(made) == [address(1), address(2), address(3)]
    assert tried(made, 1) == tried(made)


def test_the_first_host_of_a_swarm_begins_alone_after_one_try():
    made = greeting(hints=[2], known=[3])
    assert tried(made) == [address(2), address(3)]
    assert tried(made, 1) == []


def test_a_host_does_not_dial_itself():
    made = greeting(bootstrap=[200, 1])
    assert tried(made) == [address(1)]


def test_many_hosts_are_tried_in_turns():
    made = greeting(bootstrap=range(1, 21))
    turns = [tried(made, attempt) for attempt in range(3)]
    assert all(len(turn) == PEERS_TRIED_MAX for turn in turns)
    assert {text for turn in turns for text in turn} == {address(k) for k in range(1, 21)}


def test_what_was_found_around_is_tried_in_every_turn():
    made = greeting(bootstrap=range(1, 21))
    made.told([address(99), address(200)])
    for attempt in range(3):
        turn = tried(made, attempt)
        assert turn[0] == address(99)
        assert len(turn) == PEERS_TRIED_MAX
    made.told([])
    assert address(99) not in tried(made)


def test_connections_of_a_lost_engine_are_tried_too():
    made = greeting(bootstrap=[1])
    made.remember([ConnectedPeer(key(7), (address(7),)), ConnectedPeer(key(8), ("nonsense",))])
    assert tried(made) == [address(1), address(7)]


def test_those_that_are_not_connected_are_missed():
    engine = Engine()
    engine.connected = [ConnectedPeer(key(1), (address(1),))]
    made = greeting(bootstrap=[1], hints=[2], known=[3, 2], engine=engine)
    assert set(made.away()) == {key(2), key(3)}


@pytest.mark.parametrize("rounds", [1, 3])
def test_hosts_from_before_take_turns_and_failures_are_kept(rounds):

    engine = Engine(key(3), key(12))
    made = greeting(bootstrap=[1], known=range(2, 14), engine=engine)

    async def main():
        for _ in range(rounds):
            await made.greet_named()
            await made._greet_known()

    asyncio.run(main())
    asked = [one for one in engine.greeted if one != key(1)]
    assert len(asked) == len(set(asked)) == 4 * rounds, "nobody twice before everybody once"
    if rounds == 3:
        assert {one for one, _ in made.known.book.best()[:2]} == {key(3), key(12)}
