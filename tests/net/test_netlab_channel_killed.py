"""Direct connections that somebody outside ends while a payload is under way over them."""

from __future__ import annotations

import queue
import subprocess
import time

import pytest

from host.bulk.channel_policy import CONNECTIONS_FAR, RESTS_S
from tests.net.lab_peer import SIZES
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab
from tests.support.lab_hosts import Peer

pytestmark = [pytest.mark.net, needs_lab, pytest.mark.timeout(240)]

_, MIDDLE, LARGE = SIZES
SLOW = Link(latency_s=0.025, rate_bytes_per_s=1e6)
"""The large blob takes three seconds."""
PATIENCE_S = 40.0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """A lab with two hosts; b fetches from a."""
    folder = tmp_path_factory.mktemp("killed")
    with Lab(["a", "b"], seed=1, link=SLOW) as lab:
        a = Peer(lab, "a", folder)
        a.wait()
        b = Peer(lab, "b", folder, a.addresses)
        b.wait()
        yield lab, a, b


def way(one, other):
    return one.answer(one.ask(way=other.key), timeout_s=5)


def become_direct(a, b):
    """Fetches until b has all the connections that a line of this length gets."""
    ends_s = time.monotonic() + RESTS_S[0] + PATIENCE_S
    while way(b, a)["connections"] < CONNECTIONS_FAR:
        assert time.monotonic() < ends_s, way(b, a)
        assert "seconds" in b.fetch(a, MIDDLE, timeout_s=PATIENCE_S)


def under_way(a, b):
    """A fetch of which some has come over the channel, and the rest has not."""
    before, number = way(b, a)["bytes"], b.ask(fetch=a.key, size=LARGE)
    while way(b, a)["bytes"] - before < LARGE // 4:
        time.sleep(0.02)
    with pytest.raises(queue.Empty):
        b.answer(number, timeout_s=0.01)
    return number


def kill(lab, port, *, count=None):
    """Ends connections at a port of node a in the kernel, with a reset to both ends."""
    here = ["ss", "-tnHO", "state", "established", "sport", "=", f":{port}"]
    found = lab.inside("a", lambda: subprocess.run(here, capture_output=True, text=True))
    others = [line.split()[3].rpartition(":")[2] for line in found.stdout.splitlines()]
    assert len(others) >= (count or 1), found
    for other in others[:count]:
        end = ["ss", "-K", "-tn", "sport", "=", f":{port}", "and", "dport", "=", f":{other}"]
        lab.inside("a", lambda end=end: subprocess.run(end, capture_output=True))
    return len(others[:count])


def test_a_transfer_goes_on_over_the_connections_that_are_left(swarm):
    lab, a, b = swarm
    become_direct(a, b)
    fetching, before = under_way(a, b), way(b, a)["connections"]
    assert kill(lab, way(a, b)["port"], count=2) == 2
    assert "seconds" in b.answer(fetching, timeout_s=PATIENCE_S), "here, with the right digest"
    assert way(b, a)["connections"] == before - 2
    assert way(b, a)["shown"] == [["direct", ""]]


def test_a_transfer_goes_on_over_a_stream_when_all_are_killed_and_a_channel_comes_back(swarm):
    lab, a, b = swarm
    become_direct(a, b)
    before, fetching = way(b, a)["bytes"], under_way(a, b)
    assert kill(lab, way(a, b)["port"]) >= CONNECTIONS_FAR
    assert "seconds" in b.answer(fetching, timeout_s=PATIENCE_S), "here, with the right digest"
    now = way(b, a)
    assert LARGE // 4 <= now["bytes"] - before < LARGE, "the rest did not come over the channel"
    ((shown, why),) = now["shown"]
    assert (shown, now["connections"]) == ("streams", 0)
    assert "broke" in why
    become_direct(a, b)
    before = way(b, a)["bytes"]
    assert "seconds" in b.fetch(a, LARGE, timeout_s=PATIENCE_S)
    assert way(b, a)["bytes"] - before > LARGE
    assert way(b, a)["shown"] == [["direct", ""]]
