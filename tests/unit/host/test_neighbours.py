from __future__ import annotations

from host.files import keystore
from host.network.hivemind_parts import Multiaddr, p2pd_pb2
from host.network.neighbours import ConnectedPeer, Neighbours


def key(number: int) -> bytes:
    return bytes([number]) * 32


def named(number: int, *places: str):
    one = p2pd_pb2.PeerInfo(id=keystore.peer_id_bytes(key(number)))
    one.addrs.extend(Multiaddr(place).to_bytes() for place in places)
    return one


def test_peers_are_read_with_whole_addresses():
    place = "/ip4/10.0.0.1/tcp/7"
    found = Neighbours().read([named(1, place), named(2)])
    assert found == [
        ConnectedPeer(key(1), (f"{place}/p2p/{keystore.peer_id(key(1))}",)),
        ConnectedPeer(key(2), ()),
    ]


def test_what_was_read_once_is_not_read_again():
    mine = Neighbours()
    first = mine.read([named(1, "/ip4/10.0.0.1/tcp/7"), named(2, "/ip4/10.0.0.2/tcp/7")])
    again = mine.read([named(2, "/ip4/10.0.0.2/tcp/7"), named(1, "/ip4/10.0.0.1/tcp/8")])
    assert again[0] is first[1]
    assert again[1].addresses == (f"/ip4/10.0.0.1/tcp/8/p2p/{keystore.peer_id(key(1))}",)


def test_those_who_left_are_forgotten():
    mine = Neighbours()
    (first,) = mine.read([named(1, "/ip4/10.0.0.1/tcp/7")])
    assert mine.read([]) == []
    (again,) = mine.read([named(1, "/ip4/10.0.0.1/tcp/7")])
    assert again == first
    assert again is not first


def test_programs_that_are_no_hosts_of_ours_are_left_out():
    stranger = p2pd_pb2.PeerInfo(id=b"\x12\x20" + bytes(32))
    assert Neighbours().read([stranger, named(1)]) == [ConnectedPeer(key(1), ())]
