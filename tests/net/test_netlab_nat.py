"""Hosts behind a NAT, in separate networks: what they find out, and how they are reached."""

from __future__ import annotations

import time

import pytest

from tests.net.lab_peer import SIZES
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab
from tests.support.lab_hosts import Peer

pytestmark = [pytest.mark.net, needs_lab]

SMALL, MIDDLE, LARGE = SIZES
SETTLED_S = 60.0
LOOK_S = 0.5


def how(peer, other):
    """What a peer knows of itself, and of its way to another one."""
    return peer.answer(peer.ask(how=other.key), timeout_s=10)


def wait_for(peer, other, verdict):
    """What a peer knows, once it has found out how it is reached."""
    ends_s = time.monotonic() + SETTLED_S
    while (found := how(peer, other))["verdict"] != verdict:
        assert time.monotonic() < ends_s, found
        time.sleep(LOOK_S)
    return found


def wait_for_path(peer, other, path):
    """Which way a peer reaches another one is looked at every ten seconds."""
    ends_s = time.monotonic() + SETTLED_S
    while (found := how(peer, other))["path"] != path:
        assert time.monotonic() < ends_s, found
        time.sleep(LOOK_S)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """Two hosts that others can dial and two that they cannot; all know the first."""
    folder = tmp_path_factory.mktemp("nat")
    with Lab(["open", "other", "ada", "bob"], link=Link(latency_s=0.005), seed=3) as lab:
        lab.put_behind_nat("ada", "bob")
        first = Peer(lab, "open", folder)
        first.wait()
        rest = [Peer(lab, node, folder, first.addresses) for node in ("other", "ada", "bob")]
        for peer in rest:
            peer.wait()
        yield lab, first, *rest


def test_each_finds_out_how_it_is_reached(swarm):
    _, first, other, ada, bob = swarm
    wait_for(first, other, "direct")
    wait_for(other, first, "direct")
    for hidden in (ada, bob):
        found = wait_for(hidden, first, "relayed")
        assert first.key in found["relays"]
        assert "forward TCP port" in found["sentence"]


def test_two_hidden_hosts_exchange_data_through_a_relay(swarm):
    lab, first, _, ada, bob = swarm
    wait_for(ada, first, "relayed")
    wait_for(bob, first, "relayed")
    before = lab.counts("bob", "ada").forwarded_bytes
    assert "seconds" in ada.fetch(bob, LARGE, timeout_s=60)
    assert ada.say(bob, "sealed", timeout_s=30)["text"] == "sealed"
    found = how(ada, bob)
    assert found["path"] == "relayed"
    assert how(bob, ada)["path"] == "relayed"
    assert lab.counts("bob", "ada").forwarded_bytes - before < SMALL, "nothing between them"


def test_what_nobody_may_carry_does_not_pass_between_two_hidden_hosts(swarm):
    _, first, _, ada, bob = swarm
    wait_for(ada, first, "relayed")
    wait_for(bob, first, "relayed")
    found = ada.fetch(bob, SMALL, timeout_s=60, carried=False)
    assert found["error"] == "PeerUnreachable"
    assert "seconds" in ada.fetch(bob, SMALL, timeout_s=60)


@pytest.mark.parametrize("is_known", [False, True])
def test_what_nobody_may_carry_comes_from_a_hidden_host_that_can_dial(tmp_path, is_known):
    with Lab(["open", "other", "ada"], link=Link(latency_s=0.005), seed=4) as lab:
        lab.put_behind_nat("ada")
        first = Peer(lab, "open", tmp_path)
        first.wait()
        other, ada = (Peer(lab, node, tmp_path, first.addresses) for node in ("other", "ada"))
        other.wait()
        ada.wait()
        wait_for(ada, first, "relayed")
        wait_for(other, first, "direct")
        if is_known:
            assert other.answer(other.ask(relays_of=ada.key, are=[first.key]), timeout_s=5)
        assert "seconds" in other.fetch(ada, SMALL, timeout_s=60, carried=False)
        assert "seconds" in ada.fetch(other, SMALL, timeout_s=60, carried=False)


def test_a_hidden_host_dials_one_that_asks_for_it_and_can_be_dialled(swarm):
    lab, first, other, ada, _ = swarm
    wait_for(ada, first, "relayed")
    wait_for(other, first, "direct")
    assert other.answer(other.ask(relays_of=ada.key, are=[first.key]), timeout_s=5)
    # What is asked for first may still come over the relay, on a busy machine.
    assert "seconds" in other.fetch(ada, MIDDLE, timeout_s=60)
    wait_for_path(other, ada, "direct")
    before = lab.counts("ada", "other").forwarded_bytes
    assert "seconds" in other.fetch(ada, LARGE, timeout_s=60)
    assert lab.counts("ada", "other").forwarded_bytes - before > LARGE


def test_a_hidden_host_fetches_and_gives_over_what_it_dialled(swarm):
    _, first, _, ada, _ = swarm
    assert "seconds" in ada.fetch(first, MIDDLE, timeout_s=30)
    assert "seconds" in first.fetch(ada, MIDDLE, timeout_s=30)
    wait_for_path(first, ada, "direct")
