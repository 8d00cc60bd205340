"""Asking a router for ports: what is sent, what of the answers counts, renewing and giving back."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.peers import port_mapping
from protocol.peers.port_mapping import LIFE_S, PortMapper
from tests.support import port_gateway

NONCE = bytes(range(12))
OWN, EXTERNAL = "192.168.1.5", "203.0.113.9"


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(port_gateway, "tell", lambda **_: None)


def mapper(*ports):
    made = PortMapper(OWN, ports or (4200, 4210), NONCE)
    made.begin(0.0)
    return made


def pcp(request, *, above=0, refuses=False):
    return port_gateway.pcp(request, EXTERNAL, above, refuses)


def pmp(request, *, above=0):
    return port_gateway.nat_pmp(request, EXTERNAL, above)


def answered(made, now_s, answer):
    """Lets a router answer what is due; what was sent."""
    sent = made.due(now_s)
    for request in sent:
        made.take(answer(request), now_s)
    return sent


def test_pcp_maps_every_port_and_learns_the_address_outside():
    made = mapper()
    sent = answered(made, 0.0, pcp)
    assert [len(one) for one in sent] == [60, 60]
    assert sent[0][8:24] == bytes(10) + b"\xff\xff" + socket.inet_aton(OWN)
    assert not made.is_asking
    assert {port: (one.outside, one.ip) for port, one in made.mappings.items()} == {
        4200: (4200, EXTERNAL),
        4210: (4210, EXTERNAL),
    }
    assert made.refusal == ""


def test_a_router_that_knows_nat_pmp_alone_is_asked_so():
    made = mapper()
    answered(made, 0.0, pmp)
    assert made.dialect == "NAT-PMP"
    assert made.is_asking
    sent = answered(made, 0.0, pmp)
    assert sent[0] == bytes(2)
    assert [len(one) for one in sent[1:]] == [12, 12]
    assert made.mappings[4200].outside == 4200
    assert made.mappings[4200].ip == EXTERNAL


def test_the_address_may_come_after_a_port():
    made = mapper()
    answered(made, 0.0, pmp)
    address, first, second = made.due(0.0)
    made.take(pmp(first), 0.0)
    assert made.mappings[4200].ip == ""
    made.take(pmp(address), 0.0)
    made.take(pmp(second), 0.0)
    assert [one.ip for one in made.mappings.values()] == [EXTERNAL, EXTERNAL]


def test_another_port_outside_is_kept_when_it_is_renewed():
    made = mapper(4200)
    answered(made, 0.0, lambda request: pcp(request, above=7))
    one = made.mappings[4200]
    assert (one.outside, one.ends_s, one.renew_s) == (4207, 600.0, 300.0)
    assert made.due(299.0) == []
    assert made.pause_s(299.0) == pytest.approx(1.0)
    (again,) = answered(made, 300.0, lambda request: pcp(request, above=7))
    assert int.from_bytes(again[42:44], "big") == 4207
    assert made.mappings[4200].ends_s == 900.0


def test_a_silent_router_is_asked_four_times_in_each_dialect_and_no_more():
    made, now_s, sent = mapper(4200), 0.0, []
    while made.is_asking:
        sent += [(now_s, len(one)) for one in made.due(now_s)]
        assert made.pause_s(now_s) > 0
        now_s += made.pause_s(now_s)
    assert sent[-1][0] < 2 * port_mapping.GIVE_UP_S
    assert [length for _, length in sent] == [60] * 4 + [2, 12] * 4
    assert made.refusal == "it does not answer"
    assert made.due(10_000.0) == []


def test_a_refusal_has_its_reason_in_words():
    made = mapper(4200)
    answered(made, 0.0, lambda request: pcp(request, refuses=True))
    assert made.refusal == "it refused: it does not allow that"
    assert not made.is_asking
    assert made.mappings == {}


def test_a_renewal_that_is_not_answered_is_tried_again_until_the_mapping_ends():
    made = mapper(4200)
    answered(made, 0.0, pcp)
    tries, now_s = set(), 300.0
    while now_s < 600.0:
        tries |= {int(now_s) for _ in made.due(now_s)}
        assert made.mappings
        now_s += max(0.05, made.pause_s(now_s))
    assert len(tries) >= 8
    assert made.due(now_s) == []
    assert made.mappings == {}
    assert made.refusal == "it does not answer any more"


@pytest.mark.parametrize("dialect", ["PCP", "NAT-PMP"])
def test_what_was_granted_is_given_back(dialect):
    made = mapper()
    answer = pcp if dialect == "PCP" else pmp
    answered(made, 0.0, answer)
    if dialect == "NAT-PMP":
        answered(made, 0.0, answer)
    requests = made.end()
    at, size = (4, 4) if dialect == "PCP" else (8, 4)
    assert [int.from_bytes(one[at : at + size], "big") for one in requests] == [0, 0]
    assert made.end() == []
    assert LIFE_S > 0


def test_an_answer_to_somebody_else_or_to_nothing_that_was_asked_means_nothing():
    made = mapper(4200)
    (request,) = made.due(0.0)
    sound = pcp(request)
    strangers = [
        sound[:24] + bytes(12) + sound[36:],
        sound[:40] + (99).to_bytes(2, "big") + sound[42:],
        sound[:36] + bytes([17]) + sound[37:],
        sound[:20],
        sound + bytes(port_mapping.DATAGRAM_BYTES_MAX),
        request,
    ]
    for datagram in strangers:
        made.take(datagram, 0.0)
    assert made.is_asking
    assert made.mappings == {}
    made.take(sound, 0.0)
    assert 4200 in made.mappings
    made.take(sound[:42] + (1).to_bytes(2, "big") + sound[44:], 0.0)
    assert made.mappings[4200].outside == 4200, "it was answered"


def test_a_life_of_a_second_or_of_a_century_is_bounded():
    for told, kept in ((1, port_mapping.LIFE_S_MIN), (2**32 - 1, port_mapping.LIFE_S_MAX)):
        made = mapper(4200)
        (request,) = made.due(0.0)
        sound = pcp(request)
        made.take(sound[:4] + told.to_bytes(4, "big") + sound[8:], 0.0)
        assert made.mappings[4200].ends_s == kept


@given(st.lists(st.binary(max_size=80), max_size=30), st.integers(0, 1))
def test_noise_grants_nothing(noise, dialect):
    made = mapper(4200)
    for at, datagram in enumerate(noise):
        made.due(at / 10)
        made.take(bytes([2 * dialect]) + datagram, at / 10)
    assert all(0 < one.outside < 65_536 for one in made.mappings.values())
    assert set(made.mappings) <= {4200}
