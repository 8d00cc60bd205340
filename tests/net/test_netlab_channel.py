"""Direct channels between separate networks: a long line that loses packets, and a cut one."""

from __future__ import annotations

import time

import pytest

from host.bulk.channel_policy import CONNECTIONS_FAR
from tests.net.lab_peer import SIZES
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab
from tests.support.lab_hosts import Peer

pytestmark = [pytest.mark.net, needs_lab]

SMALL, MIDDLE, LARGE = SIZES
LOSSY = Link(latency_s=0.025, loss_frac=0.005, rate_bytes_per_s=12.5e6)
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """A lab with two hosts that have fetched from each other until they had a channel."""
    folder = tmp_path_factory.mktemp("direct")
    with Lab(["a", "b"], seed=1, link=LOSSY) as lab:
        a = Peer(lab, "a", folder)
        a.wait()
        b = Peer(lab, "b", folder, a.addresses)
        b.wait()
        until_direct(b, a)
        yield lab, a, b


def until_direct(b, a):
    ends_s = time.monotonic() + PATIENCE_S
    while way(b, a)["connections"] < CONNECTIONS_FAR:
        assert time.monotonic() < ends_s, way(b, a)
        assert "seconds" in b.fetch(a, MIDDLE, timeout_s=PATIENCE_S)


def way(one, other):
    return one.answer(one.ask(way=other.key), timeout_s=5)


def test_a_long_line_gets_several_connections_and_all_bytes_come_over_them(swarm):
    lab, a, b = swarm
    before, lost = way(b, a)["bytes"], lab.counts("a", "b").lost
    for _ in range(3):
        assert "seconds" in b.fetch(a, LARGE, timeout_s=PATIENCE_S)
    assert way(b, a)["bytes"] - before > 3 * LARGE
    assert lab.counts("a", "b").lost > lost
    assert way(a, b)["connections"] == CONNECTIONS_FAR, "the other side has the same ones"


def test_control_messages_pass_bulk_data(swarm):
    _, a, b = swarm
    assert b.say(a, "before", timeout_s=5)["text"] == "before"
    fetching = [b.ask(fetch=a.key, size=LARGE) for _ in range(4)]
    began_s = time.monotonic()
    assert b.say(a, "meanwhile", timeout_s=5)["text"] == "meanwhile"
    assert time.monotonic() - began_s < 1.0
    for number in fetching:
        assert "seconds" in b.answer(number, timeout_s=PATIENCE_S)


def test_a_short_cut_is_outlived(swarm):
    lab, a, b = swarm
    fetching = b.ask(fetch=a.key, size=LARGE)
    lab.silence("a")
    time.sleep(1.0)
    lab.heal()
    assert "seconds" in b.answer(fetching, timeout_s=PATIENCE_S)
    assert "seconds" in a.fetch(b, LARGE, timeout_s=PATIENCE_S), "and in the other direction"


def test_on_a_slow_line_a_small_answer_does_not_wait_for_large_pieces(tmp_path):
    slow = Link(latency_s=0.025, rate_bytes_per_s=400e3)
    with Lab(["a", "b"], seed=1, link=slow) as lab:
        a = Peer(lab, "a", tmp_path)
        a.wait()
        b = Peer(lab, "b", tmp_path, a.addresses)
        b.wait()
        until_direct(b, a)
        waits_s = []
        for _ in range(2):
            fetching = b.ask(fetch=a.key, size=LARGE)
            time.sleep(1.0)  # Of the eight seconds that it takes.
            waits_s.append(b.fetch(a, SMALL, timeout_s=PATIENCE_S)["seconds"])
            assert "seconds" in b.answer(fetching, timeout_s=PATIENCE_S)
        assert min(waits_s) < 2.0, waits_s
        assert way(a, b)["up_bytes_per_s"] == pytest.approx(400e3, rel=0.35)
