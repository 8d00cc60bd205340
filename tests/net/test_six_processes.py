"""A syncer that has IPv6 alone, with a learner that has it too and one that listens on IPv4."""

from __future__ import annotations

import socket

import pytest

from tests.net.swarms import TinySwarm


def has_six():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = [
    pytest.mark.net,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_six(), reason="this machine has no IPv6"),
]

SIX, FOUR = "ada", "bob"


class SixSwarm(TinySwarm):
    """Its addresses are of IPv6 but for one learner's."""

    def start(self, role, name, *arguments):
        words = list(arguments)
        if name != FOUR:
            words[words.index("--listen") + 1] = "::1"
        if role == "syncer":
            at = words.index("--host-address") + 1
            words[at] = words[at].replace("/ip4/127.0.0.1", "/ip6/::1")
        return super().start(role, name, *words)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with SixSwarm(tmp_path_factory.mktemp("six")) as made:
        made.prepare()
        made.begin()
        for name in (SIX, FOUR):
            made.start_learner(name, "--no-evaluate", "--duty", "0.2")
        made.all_merge(SIX, FOUR)
        yield made


def test_the_join_link_names_the_address(swarm):
    (address, *_) = swarm.syncer().network.addresses
    assert address.startswith("/ip6/::1/tcp/")


def test_others_can_dial_who_has_six(swarm):
    for look in (swarm.syncer, lambda: swarm.learner(SIX)):
        found = swarm.until(lambda look=look: (n := look()) and n.network.reach == "direct" and n,
                            "a host that others can dial")  # fmt: skip
        assert "Others can dial this host" in found.network.reach_detail


def test_both_got_weights_and_are_merged(swarm):
    merges = swarm.merge_counts()
    assert merges[SIX] > 0
    assert merges[FOUR] > 0
    swarm.processes.check()
