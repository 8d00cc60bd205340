"""The join link of a project that was found on the same network."""

from __future__ import annotations

from host.files import keystore
from host.nearby import lan_sockets
from host.nearby.searching import LINK_ADDRESSES_MAX, link_to
from protocol.peers.nearby import NearbyHost, NearbyNotice, NearbyProject

FAR = f"/ip4/203.0.113.7/tcp/4100/p2p/{keystore.peer_id(bytes([9]) * 32)}"


def host(number, *ips, addresses=(), port=4100):
    notice = NearbyNotice(
        bytes(16), 4321, "a\x1bb", tuple(addresses), port, "syncer", "text", 800_000, 3, "open"
    )
    return NearbyHost(bytes([number]) * 32, notice, tuple((ip, port) for ip in ips))


def link(*hosts):
    return link_to(NearbyProject(bytes(32), {one.key: one for one in hosts}))


def place(number, text):
    return f"{text}/p2p/{keystore.peer_id(bytes([number]) * 32)}"


def test_where_answers_came_from_stands_before_what_the_hosts_say_and_loopback_last_of_it():
    found = link(host(1, "127.0.0.1", "192.0.2.1", addresses=[FAR]), host(2, "2001:db8::2"))
    assert found.addresses == (
        place(1, "/ip4/192.0.2.1/tcp/4100"),
        place(2, "/ip6/2001:db8::2/tcp/4100"),
        place(1, "/ip4/127.0.0.1/tcp/4100"),
        FAR,
    )
    assert found.name == "a?b"


def test_an_address_that_only_one_network_knows_is_left_out():
    assert lan_sockets.multiaddr_of("fe80::1", 4100) == ""
    assert link(host(1, "fe80::1")) is None
    cable = link(host(1, "169.254.7.7"))
    assert cable.addresses == (place(1, "/ip4/169.254.7.7/tcp/4100"),)
    assert link(host(1, "fe80::1", addresses=[FAR])).addresses == (FAR,)


def test_a_link_stays_short_whoever_answers():
    crowd = [host(number, f"192.0.2.{number}") for number in range(1, 9)]
    crowd[0] = host(1, "192.0.2.1", "192.0.2.101", "192.0.2.102")
    assert len(link(*crowd).addresses) == LINK_ADDRESSES_MAX


def test_a_zone_is_no_part_of_an_address():
    assert lan_sockets.host_of(("fe80::1%eth0", 4109, 0, 4)) == "fe80::1"


def test_only_a_daemon_on_loopback_is_for_this_machine_alone():
    given = ["127.0.0.1", "::1", "0.0.0.0", "::", "192.0.2.1", "example.org"]
    assert [lan_sockets.is_local(text) for text in given] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
