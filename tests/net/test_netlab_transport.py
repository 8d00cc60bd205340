"""Hosts in separate networks: far apart, over links that lose packets, and cut off for a while.

TCP hides all of it; what is asked here is that our time limits fit what TCP needs for that.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time

import pytest

from tests.net.lab_peer import SIZES
from tests.netlab import Lab, Link
from tests.netlab.lab import ROOT
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, needs_lab]

SMALL, MIDDLE, LARGE = SIZES
START_S = 90.0
PARTITION_S = 10.0
CUT_S = 1.5
BACK_S = 20.0
"""After a cut TCP tries again at doubling intervals: up to as long as the cut took, once more."""


class Peer:
    """A `lab_peer` that runs in a node."""

    def __init__(self, lab, node, folder, bootstrap=()):
        place = (folder, node, lab.address(node))
        self.process = lab.run(
            node,
            [sys.executable, "-m", "tests.net.lab_peer", *place, *bootstrap],
            env={"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[dict] = queue.Queue()
        self._number = 0
        self._early: dict[int, dict] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self):
        """Until it is up."""
        told = self._lines.get(timeout=START_S)
        self.key, self.addresses = told["key"], told["addresses"]

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def ask(self, **question):
        """Asks and does not wait; the number for `answer`."""
        self._number += 1
        self.process.stdin.write(json.dumps({"number": self._number, **question}) + "\n")
        self.process.stdin.flush()
        return self._number

    def answer(self, number, *, timeout_s):
        """The answer to a question; queue.Empty if it does not come in time."""
        ends_s = time.monotonic() + timeout_s
        while number not in self._early:
            told = self._lines.get(timeout=max(0.001, ends_s - time.monotonic()))
            self._early[told["number"]] = told
        return self._early.pop(number)

    def fetch(self, peer, size, *, timeout_s):
        return self.answer(self.ask(fetch=peer.key, size=size), timeout_s=timeout_s)

    def say(self, peer, text, *, timeout_s):
        return self.answer(self.ask(say=peer.key, text=text), timeout_s=timeout_s)


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
