"""Whether this machine has a network: told from a swarm that is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from host import addresses
from host.network import own_network
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
        ([NAMED], [own_network.ELSEWHERE[1]], True),
        ([], [], True),
    ],
)
def test_one_way_to_one_host_is_enough(texts, ways, has):
    assert own_network.has_way(texts, lambda host: host in ways) is has


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

    def connected(self):
        raise TransportLost("the engine is down")


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
