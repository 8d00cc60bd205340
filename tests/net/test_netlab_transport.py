"""Hosts in separate networks: far apart, over links that lose packets, and cut off for a while.

TCP hides all of it; what is asked here is that our time limits fit what TCP needs for that.
"""

from __future__ import annotations

import queue
import time

import pytest

from tests.net.lab_peer import SIZES
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab
from tests.support.lab_hosts import Peer

pytestmark = [pytest.mark.net, needs_lab]

SMALL, MIDDLE, LARGE = SIZES
PARTITION_S = 10.0
CUT_S = 1.5
BACK_S = 20.0
"""After a cut TCP tries again at doubling intervals: up to as long as the cut took, once more."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """A lab and its hosts; b and c know a."""
    folder = tmp_path_factory.mktemp("apart")
    with Lab(["a", "b", "c"], seed=1) as lab:
        a = Peer(lab, "a", folder)
        a.wait()
        others = [Peer(lab, node, folder, a.addresses) for node in ("b", "c")]
        for other in others:
            other.wait()
        yield lab, a, *others


def test_a_host_is_known_by_the_address_of_its_node(swarm):
    lab, *peers = swarm
    for node, peer in zip(lab.nodes, peers, strict=True):
        assert peer.addresses[0].startswith(f"/ip4/{lab.address(node)}/tcp/")


def test_a_blob_arrives_over_a_long_link_that_loses_packets(swarm):
    lab, a, b, _ = swarm
    lab.shape_all(Link(latency_s=0.05, loss_frac=0.02))
    before = lab.counts("a", "b").lost
    fetched = b.fetch(a, MIDDLE, timeout_s=40)
    assert fetched["seconds"] > 0.1, "a round trip"
    assert lab.counts("a", "b").lost > before


def test_a_transfer_goes_on_after_a_short_cut(swarm):
    lab, a, b, _ = swarm
    lab.shape_all(Link(latency_s=0.02, rate_bytes_per_s=1_000_000))
    before = lab.counts("a", "b").forwarded_bytes
    fetching = b.ask(fetch=a.key, size=LARGE)
    ends_s = time.monotonic() + 10
    while lab.counts("a", "b").forwarded_bytes < before + LARGE / 2:
        assert time.monotonic() < ends_s
        time.sleep(0.01)
    lab.cut_one_way("a", "b")
    with pytest.raises(queue.Empty):
        b.answer(fetching, timeout_s=CUT_S)
    lab.heal()
    assert "seconds" in b.answer(fetching, timeout_s=15)
    assert lab.counts("a", "b").forwarded_bytes - before < 1.4 * LARGE, "not begun anew"


def test_hosts_outlive_a_partition_and_others_notice_nothing(swarm):
    lab, a, b, c = swarm
    lab.shape_all(Link(latency_s=0.02, rate_bytes_per_s=500_000))
    assert b.say(a, "before", timeout_s=5)["text"] == "before"
    lab.partition({"a", "c"}, {"b"})
    cut_s = time.monotonic()
    waiting = b.ask(say=a.key, text="from the other side")
    assert "seconds" in c.fetch(a, LARGE, timeout_s=PARTITION_S)
    with pytest.raises(queue.Empty):
        b.answer(waiting, timeout_s=PARTITION_S - (time.monotonic() - cut_s))
    lab.heal()
    said = b.answer(waiting, timeout_s=BACK_S)
    assert said.get("text") == "from the other side", said
    assert "seconds" in b.fetch(a, SMALL, timeout_s=10)
