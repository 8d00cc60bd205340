"""Which router a host asks, and what it says of that."""

from __future__ import annotations

from host.nat.router import Router, default_gateway, engine_sentence
from protocol.peers.port_mapping import PortMapper
from tests.support import port_gateway

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def line(name, destination, gateway, flags, metric=0, mask="00000000"):
    return f"{name}\t{destination}\t{gateway}\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"


def test_the_gateway_of_the_default_route_is_found():
    local = line("eth0", "0001A8C0", "00000000", "0001", 100, "00FFFFFF")
    assert default_gateway(HEAD + local + line("eth0", "00000000", "0101A8C0", "0003")) == (
        "192.168.1.1"
    )


def test_of_several_the_one_with_the_lowest_metric():
    routes = line("wlan0", "00000000", "FE02A8C0", "0003", 600)
    routes += line("eth0", "00000000", "0101A8C0", "0003", 100)
    assert default_gateway(HEAD + routes) == "192.168.1.1"


def test_without_a_default_route_there_is_none():
    tunnel = line("tun0", "00000000", "00000000", "0001")
    odd = "eth0\t00000000\tZZ\t0003\t0\t0\t0\t00000000\t0\t0\t0\nshort line\n"
    assert default_gateway("") == ""
    assert default_gateway(HEAD + tunnel + odd) == ""


def test_what_came_of_the_engines_asking_is_a_sentence():
    listening = ["/ip4/192.168.1.5/tcp/4200/p2p/x", "/ip4/8.8.8.8/tcp/4777/p2p/x"]
    own = ["192.168.1.5", "127.0.0.1"]
    assert "forwards TCP port 4777, as the network engine asked" in engine_sentence(listening, own)
    assert "nothing came of it" in engine_sentence(listening[:1], own)
    assert "nothing came of it" in engine_sentence(listening, [*own, "8.8.8.8"]), "its own address"


def router(*, is_hidden):
    made = Router(True, lambda: is_hidden, lambda: [4200], lambda: None)
    made.gateway = "192.168.1.1"
    made.mapper = PortMapper("192.168.1.5", [4200], bytes(12))
    made.mapper.begin(0.0)
    return made


def test_what_came_of_asking_is_a_sentence(monkeypatch):
    monkeypatch.setattr(port_gateway, "tell", lambda **_: None)
    made = router(is_hidden=True)
    assert made.sentence(4200) == ""
    (request,) = made.mapper.due(0.0)
    made.mapper.take(port_gateway.pcp(request, "100.64.0.3", 0, False), 0.0)
    assert made.sentence(4200) == (
        "Its router (192.168.1.1) forwards TCP port 4200 (PCP), but its own address there is "
        "100.64.0.3: another router is behind it."
    )
    refused = router(is_hidden=True)
    (request,) = refused.mapper.due(0.0)
    refused.mapper.take(port_gateway.pcp(request, "100.64.0.3", 0, True), 0.0)
    assert refused.sentence(4200) == (
        "Its router (192.168.1.1) was asked to forward it, but it refused: it does not allow that."
    )
    assert refused.is_settled
