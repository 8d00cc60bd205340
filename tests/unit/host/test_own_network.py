"""Whether this machine has a network: told from a swarm that is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from host import addresses
from host.network import own_network
from host.network.neighbours import ConnectedPeer
from host.partition_monitor import PartitionMonitor
from protocol.errors import PeerUnreachable, TransientError, TransportLost

HERE = "/ip4/127.0.0.1/tcp/4100/p2p/12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr"
THERE = HERE.replace("127.0.0.1", "203.0.113.7")
NAMED = HERE.replace("/ip4/127.0.0.1", "/dns4/example.org")


def test_a_machine_knows_the_way_to_itself():
    assert own_network.has_way([HERE])
    assert not own_network.trouble([HERE])


@pytest.mark.parametrize(
    ("texts", "ways", "has"),
    [
        ([THERE], [], False),
        ([THERE], ["203.0.113.7"], True),
        ([THERE, HERE], ["127.0.0.1"], True),
        ([NAMED], [], False),
        ([NAMED], [own_network.ELSEWHERE[4]], True),
        ([NAMED], [own_network.ELSEWHERE[6]], False),
        ([NAMED.replace("dns4", "dns")], [own_network.ELSEWHERE[6]], True),
        ([], [], True),
    ],
)
def test_one_way_to_one_host_is_enough(texts, ways, has):
    assert own_network.has_way(texts, lambda host: host in ways) is has


@pytest.mark.parametrize(
    ("names", "ways", "has"),
    [
        (["localhost"], ["127.0.0.1", "::1"], True),
        (["no name", "localhost"], ["127.0.0.1", "::1"], True),
        (["localhost"], [], False),
        (["no name"], ["127.0.0.1", "::1"], False),
    ],
)
def test_names_are_looked_up_before_it_is_said_that_there_is_no_network(names, ways, has):
    texts = [NAMED.replace("example.org", name) for name in names]
    said = asyncio.run(own_network.trouble_of_names(texts, lambda host: host in ways))
    assert said == ("" if has else own_network.NO_NETWORK)


SIX = THERE.replace("/ip4/203.0.113.7", "/ip6/2001:db8::7")


@pytest.mark.parametrize(
    ("texts", "here"),
    [
        ([SIX], 4),
        ([SIX, NAMED.replace("dns4", "dns6")], 4),
        ([THERE, NAMED], 6),
        ([THERE, SIX], None),
        ([NAMED.replace("dns4", "dns")], None),
    ],
)
def test_a_network_of_the_other_version_is_no_missing_network(texts, here):
    ways = [] if here is None else [own_network.ELSEWHERE[here]]
    said = own_network.trouble(texts, lambda host: host in ways)
    assert said == (own_network.NO_NETWORK if here is None else own_network.ONE_VERSION[here])
    assert own_network.is_of_this_machine(f"not in the swarm: {said}.")
    assert own_network.trouble(texts, lambda host: False) == own_network.NO_NETWORK


def failed():
    error = TransientError("the engine did not start")
    error.__cause__ = ValueError("failed to connect to bootstrap peers")
    return error


def test_a_dead_link_and_no_network_have_different_words_which_say_what_to_do():
    peers = [addresses.parse_peer(THERE)]
    dead = addresses.explained(peers, failed(), 4100)
    assert isinstance(dead, PeerUnreachable)
    assert "none of the swarm's addresses answers: /ip4/203.0.113.7" in str(dead)
    assert "ask the project's host whether a syncer runs, and for a fresh link" in str(dead)
    offline = addresses.explained(peers, failed(), 4100, own_network.NO_NETWORK)
    assert isinstance(offline, PeerUnreachable)
    assert "this machine has no network" in str(offline)
    assert "Check its cable, wifi or VPN" in str(offline)
    assert "203.0.113.7" not in str(offline), "nobody there is to blame"


class Lost:
    """A transport whose engine is down, as it is soon after a network is lost."""

    def __init__(self):
        self.dialer = SimpleNamespace(
            to_try=lambda _: [addresses.parse_peer(THERE)], away=list, is_urgent=False
        )

    def peers(self):
        raise TransportLost("the engine is down")

    connected = peers


def test_a_running_host_says_that_its_own_network_is_gone_also_while_its_engine_is_down():
    gone = own_network.NO_NETWORK
    told = [gone, gone, "", ""]
    monitor = PartitionMonitor(
        Lost(), voters=tuple, follows=lambda: False, no_network=lambda texts: told.pop(0)
    )
    asyncio.run(monitor.look(100.0))
    assert monitor.trouble == "", "a wifi that roams is back within seconds"
    asyncio.run(monitor.look(105.0))
    assert monitor.trouble.startswith("This machine has no network: ")
    assert monitor.transport.dialer.is_urgent


class Connected:
    """A transport that knows hosts by name alone, and is connected with one of them."""

    key = bytes(32)
    there = addresses.parse_peer(THERE)

    def __init__(self):
        self.dialer = SimpleNamespace(
            to_try=lambda _: [addresses.parse_peer(NAMED)], away=list, is_urgent=False
        )

    def peers(self):
        return [ConnectedPeer(self.there.key, (THERE,))]

    def connected(self):
        return {self.there.key}


@pytest.mark.parametrize(("ways", "has"), [(["203.0.113.7"], True), ([], False)])
def test_a_network_without_a_way_out_is_one_where_a_name_led_to_a_host_on_it(ways, has):
    def no_network(texts):
        return "" if own_network.has_way(texts, lambda host: host in ways) else "gone"

    monitor = PartitionMonitor(Connected(), voters=tuple, follows=lambda: True)
    monitor.no_network = no_network
    for now_s in (100.0, 200.0):
        asyncio.run(monitor.look(now_s))
    assert (monitor.trouble == "") is has
