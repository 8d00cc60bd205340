"""What counts as one network address, and which port a host takes."""

from __future__ import annotations

import socket
from itertools import chain

import pytest

from host import addresses
from host.addresses import PortTaken, kept_port, steady_port
from protocol.errors import TransientError, UserError

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("/ip4/192.0.2.7/tcp/4100", "192.0.2.7"),
        ("/ip4/127.0.0.1/tcp/4100", "127.0.0.1"),
        ("/ip6/2001:db8:1:2:3:4:5:6/tcp/4100", "2001:db8:1:2::/64"),
        ("/ip6/2001:db8:1:2:ffff::1/tcp/9", "2001:db8:1:2::/64"),
        ("/ip6/::ffff:192.0.2.7/tcp/4100", "192.0.2.7"),
        ("/ip4/192.0.2.7/tcp/4100/p2p/12D3KooW/p2p-circuit", ""),
        ("/dns4/example.org/tcp/4100", ""),
        ("/ip4/300.0.2.7/tcp/4100", ""),
        ("", ""),
    ],
)
def test_a_host_commands_one_ipv4_address_or_a_whole_ipv6_network(text, network):
    assert addresses.network_of(text) == network


# Ports.


@pytest.fixture
def taken():
    """A port on which somebody listens."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_that_nobody_asked_for_is_given_up_for_a_free_one(taken):
    chosen = kept_port(LOOPBACK, taken, is_asked_for=False)
    assert chosen not in (0, taken)
    assert kept_port(LOOPBACK, chosen, is_asked_for=False) == chosen


def test_a_port_that_its_owner_asked_for_is_not(taken):
    with pytest.raises(PortTaken, match=f"port {taken} is in use"):
        kept_port(LOOPBACK, taken, is_asked_for=True)


def test_a_steady_port_is_free_and_given_to_no_outgoing_connection(taken, monkeypatch):
    picks = chain([taken], addresses.STEADY_PORTS)
    monkeypatch.setattr(addresses.random, "choice", lambda ports: next(picks))
    assert steady_port(LOOPBACK) in addresses.STEADY_PORTS


def test_no_other_port_helps_where_the_address_is_not_ours():
    with pytest.raises(UserError, match="has no address"):
        kept_port("203.0.113.7", 0, is_asked_for=False)


needs_six = pytest.mark.skipif(not addresses.has_six(), reason="this machine has no IPv6")


@needs_six
def test_everywhere_is_one_port_of_both_versions():
    assert addresses.places_of("all") == ("0.0.0.0", "::")
    port = kept_port("all", 0, is_asked_for=False)
    with addresses.socket_for("::") as listener:
        listener.bind(("::", port))
        listener.listen()
        assert kept_port("0.0.0.0", port, is_asked_for=True) == port, "that is free"
        with pytest.raises(PortTaken, match=f"port {port} is in use"):
            kept_port("all", port, is_asked_for=True)
        assert kept_port("all", port, is_asked_for=False) not in (0, port)


def test_everywhere_is_ipv4_where_there_is_nothing_else(monkeypatch):
    monkeypatch.setattr(addresses, "has_six", lambda: False)
    assert addresses.places_of("all") == ("0.0.0.0",)


@pytest.mark.parametrize("place", ["127.0.0.1", "::1", "0.0.0.0"])
def test_an_address_stands_for_itself(place):
    assert addresses.places_of(place) == (place,)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("/ip4/192.0.2.7/tcp/4100/p2p/12D3KooW", 4),
        ("/ip6/2001:db8::7/tcp/4100", 6),
        ("/dns/example.org/tcp/4100", None),
        ("", None),
    ],
)
def test_a_name_is_of_no_version(text, version):
    assert addresses.ip_version_of(text) == version


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [(1000.0, 940.5, "60 s (it is ahead)"), (900.0, 940.0, "40 s (it is behind)")],
)
def test_a_clock_that_is_off_is_told_by_how_much_and_which_way(ours, theirs, words):
    error = TransientError("the engine did not start")
    error.__cause__ = ValueError(
        f"local time must be within 3 seconds  of others(local: {ours:.5f}, peer: {theirs:.5f})"
    )
    assert f"clock differs by {words}" in str(addresses.explained([], error, 4100))
