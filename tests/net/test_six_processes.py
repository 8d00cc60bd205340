"""Swarms over IPv6: a syncer that has it alone, and one that has both versions on one port."""

from __future__ import annotations

import msgspec
import pytest

from host.addresses import has_six
from host.join_link import format_link, parse_link
from tests.net.swarms import TinySwarm

pytestmark = [
    pytest.mark.net,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_six(), reason="this machine has no IPv6"),
]

SIX, FOUR = "ada", "bob"
PLACES = {4: "/ip4/127.0.0.1", 6: "/ip6/::1"}


def option(words, name):
    """Where the value of an option is."""
    return words.index(name) + 1


class SixSwarm(TinySwarm):
    """Its addresses are of IPv6 but for one learner's."""

    def start(self, role, name, *arguments):
        words = list(arguments)
        if name != FOUR:
            words[option(words, "--listen")] = "::1"
        if role == "syncer":
            at = option(words, "--host-address")
            words[at] = words[at].replace(PLACES[4], PLACES[6])
        return super().start(role, name, *words)


class BothSwarm(TinySwarm):
    """Its syncer listens everywhere, and each learner is told its address of one version."""

    def start(self, role, name, *arguments):
        words = list(arguments)
        if role == "syncer":
            words[option(words, "--listen")] = "all"
            four = words[option(words, "--host-address")]
            words += ["--host-address", four.replace(PLACES[4], PLACES[6])]
        else:
            words[words.index(self.link)] = self.link_of(6 if name == SIX else 4)
            if name == SIX:
                words[option(words, "--listen")] = "::1"
        return super().start(role, name, *words)

    def link_of(self, version):
        """The join link with the address of one version alone."""
        link = parse_link(self.link)
        found = tuple(text for text in link.addresses if text.startswith(PLACES[version]))
        return format_link(msgspec.structs.replace(link, addresses=found))


@pytest.fixture(scope="module", params=[SixSwarm, BothSwarm], ids=["six", "both"])
def swarm(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp("six")) as made:
        made.prepare()
        made.begin()
        for name in (SIX, FOUR):
            made.start_learner(name, "--no-evaluate", "--duty", "0.2")
        made.all_merge(SIX, FOUR)
        yield made


def test_the_join_link_names_each_address(swarm):
    versions = [4, 6] if isinstance(swarm, BothSwarm) else [6]
    told = swarm.syncer().network.addresses
    for version, text in zip(versions, told, strict=True):
        assert text.startswith(f"{PLACES[version]}/tcp/")


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
