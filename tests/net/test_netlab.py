"""The network lab keeps its word: what it says about its links is what programs in it see."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.netlab import Lab, LabFailed, Link, namespaces
from tests.netlab.lab import ROOT
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, needs_lab]

PORT = 5000
SILENCE_S = 0.3
"""Nothing in this time means nothing at all; links in these tests are faster."""


def datagrams(lab, node):
    """A socket in a node that gives up when nothing comes."""

    def bind():
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind((lab.address(node), PORT))
        bound.settimeout(SILENCE_S)
        return bound

    return lab.inside(node, bind)


@contextlib.contextmanager
def sockets(lab, *nodes):
    with contextlib.ExitStack() as closing:
        yield [closing.enter_context(datagrams(lab, node)) for node in nodes]


def reaches(lab, sender, receiver, from_node, to_node):
    """Whether a datagram arrives."""
    sender.sendto(b"hello", (lab.address(to_node), PORT))
    try:
        assert receiver.recv(100) == b"hello"
    except TimeoutError:
        return False
    return True


def connect(lab, a, b):
    """Both ends of a TCP connection from a to b."""
    with lab.inside(b, lambda: socket.create_server((lab.address(b), PORT))) as server:
        near = lab.inside(a, lambda: socket.create_connection((lab.address(b), PORT), 5))
        far, _ = server.accept()
    far.settimeout(5)
    return near, far


def transfer_s(near, far, payload):
    """How long a payload takes through a connection, to its last byte."""
    started_s = time.monotonic()
    near.setblocking(False)
    left, got = memoryview(payload), 0
    while got < len(payload):
        readable, writable, _ = select.select([far], [near] if left else [], [], 5)
        assert readable or writable, "nothing moves"
        if writable:
            left = left[near.send(left[: 1 << 16]) :]
        if readable:
            got += len(far.recv(1 << 18))
    return time.monotonic() - started_s


def test_a_round_trip_takes_twice_the_latency():
    with Lab(["a", "b"], link=Link(latency_s=0.03)) as lab, sockets(lab, "a", "b") as (a, b):
        trips = []
        for _ in range(20):
            started_s = time.monotonic()
            assert reaches(lab, a, b, "a", "b")
            assert reaches(lab, b, a, "b", "a")
            trips.append(time.monotonic() - started_s)
        assert min(trips) >= 0.06
        assert statistics.median(trips) < 0.075


def test_each_direction_has_a_shape_of_its_own():
    with Lab(["a", "b"]) as lab:
        lab.shape_one_way("a", "b", Link(rate_bytes_per_s=1_000_000, latency_s=0.005))
        near, far = connect(lab, "a", "b")
        with near, far:
            payload = bytes(2_000_000)
            up_s = transfer_s(near, far, payload)
            down_s = transfer_s(far, near, payload)
    assert len(payload) / up_s == pytest.approx(1_000_000, rel=0.2)
    assert down_s < up_s / 4


def test_what_two_send_to_one_shares_its_line():
    rate = 1_000_000
    with Lab(["a", "b", "c"]) as lab:
        lab.put_on_line("c", up=Link(), down=Link(rate_bytes_per_s=rate))
        pairs = [connect(lab, "a", "c"), connect(lab, "b", "c")]
        payload = bytes(1_000_000)
        started_s = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda pair: transfer_s(*pair, payload), pairs))
        together_s = time.monotonic() - started_s
        back_s = transfer_s(*reversed(pairs[0]), payload)
        for pair in pairs:
            for one in pair:
                one.close()
    assert 2 * len(payload) / together_s == pytest.approx(rate, rel=0.2)
    assert back_s < together_s / 4


def test_what_waits_at_its_senders_line_keeps_nobody_from_the_receivers():
    wait_s = 1.0
    with Lab(["a", "b", "c"]) as lab, sockets(lab, "a", "b", "c") as (a, b, c):
        lab.put_on_line("a", up=Link(rate_bytes_per_s=20_000 / wait_s), down=Link())
        lab.put_on_line("c", up=Link(), down=Link(rate_bytes_per_s=1_000_000))
        for _ in range(20):
            a.sendto(bytes(1000), (lab.address("c"), PORT))
        started_s = time.monotonic()
        b.sendto(b"hello", (lab.address("c"), PORT))
        while c.recv(2000) != b"hello":
            pass
        assert time.monotonic() - started_s < wait_s / 2


def test_loss_is_counted_and_tcp_outlives_it():
    with Lab(["a", "b"], link=Link(latency_s=0.002, loss_frac=0.02), seed=3) as lab:
        near, far = connect(lab, "a", "b")
        with near, far:
            transfer_s(near, far, bytes(1_000_000))
        counts = lab.counts("a", "b")
    assert counts.forwarded_bytes > 1_000_000
    assert 0.005 < counts.lost / (counts.lost + counts.forwarded) < 0.05


def test_a_one_way_cut_is_one_way():
    with Lab(["a", "b"]) as lab, sockets(lab, "a", "b") as (a, b):
        lab.cut_one_way("a", "b")
        assert not reaches(lab, a, b, "a", "b")
        assert reaches(lab, b, a, "b", "a")
        assert lab.counts("a", "b").cut == 1
        lab.heal("b", "a")
        assert reaches(lab, a, b, "a", "b")


def test_a_partition_separates_groups_until_it_heals():
    nodes = ("a", "b", "c", "d")
    with Lab(nodes) as lab, sockets(lab, *nodes) as (a, b, c, d):
        lab.partition({"a", "b"}, {"c"})
        assert reaches(lab, a, b, "a", "b")
        assert not reaches(lab, a, c, "a", "c")
        assert not reaches(lab, c, b, "c", "b")
        assert reaches(lab, c, d, "c", "d"), "of no group"
        lab.silence("d")
        assert not reaches(lab, c, d, "c", "d")
        lab.heal("d")
        assert reaches(lab, c, d, "c", "d")
        assert not reaches(lab, a, c, "a", "c"), "another cut than the one that was healed"
        lab.heal()
        assert reaches(lab, a, c, "a", "c")


def test_eight_nodes_in_two_halves():
    nodes = tuple("abcdefgh")
    with Lab(nodes, link=Link(latency_s=0.01)) as lab, sockets(lab, *nodes) as bound:
        lab.partition(nodes[:3], nodes[3:])
        for sender in bound:
            for node in nodes:
                sender.sendto(b"hello", (lab.address(node), PORT))
        names = {lab.address(node): node for node in nodes}
        for node, receiver in zip(nodes, bound, strict=True):
            heard = set()
            with contextlib.suppress(TimeoutError):
                while True:
                    heard.add(names[receiver.recvfrom(100)[1][0]])
            assert heard == set(nodes[:3] if node in nodes[:3] else nodes[3:])


def test_a_relay_that_has_died_is_told():
    with Lab(["a", "b"]) as lab:
        os.kill(lab.relay_pid, signal.SIGKILL)
        with pytest.raises(LabFailed, match="relay"):
            lab.cut("a", "b")


def test_a_cut_also_catches_what_is_on_its_way():
    with Lab(["a", "b"], link=Link(latency_s=0.1)) as lab, sockets(lab, "a", "b") as (a, b):
        a.sendto(b"hello", (lab.address("b"), PORT))
        while not lab.counts("a", "b").forwarded:
            pass
        lab.cut("a", "b")
        with pytest.raises(TimeoutError):
            b.recv(100)


def test_a_connection_goes_on_after_a_cut():
    with Lab(["a", "b"]) as lab:
        near, far = connect(lab, "a", "b")
        with near, far:
            lab.cut("a", "b")
            near.sendall(b"still here")
            far.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                far.recv(100)
            lab.heal()
            far.settimeout(5)
            assert far.recv(100) == b"still here"


def test_a_node_that_moves_is_reached_at_its_new_address_alone():
    with Lab(["a", "b"]) as lab, sockets(lab, "a", "b") as (a, b):
        former = lab.address("b")
        assert reaches(lab, a, b, "a", "b")
        moved = lab.move("b")
        assert moved == lab.address("b") != former
        with sockets(lab, "b") as (again,):
            assert reaches(lab, a, again, "a", "b")
            assert reaches(lab, again, a, "b", "a")
        a.sendto(b"to nobody", (former, PORT))
        with pytest.raises(TimeoutError):
            b.recv(100)


def test_names_lead_where_the_labs_file_says_now(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("10.77.0.9 train.example.org\n")
    look = "import socket; print(socket.gethostbyname('train.example.org'))"

    def told(lab):
        return lab.run("a", [sys.executable, "-c", look], stdout=subprocess.PIPE, text=True)

    with Lab(["a"], hosts=hosts) as lab:
        assert told(lab).communicate(timeout=60)[0] == "10.77.0.9\n"
        with hosts.open("r+") as file:
            file.write("10.77.0.8 train.example.org\n")
        assert told(lab).communicate(timeout=60)[0] == "10.77.0.8\n"
    assert "train.example.org" not in Path("/etc/hosts").read_text()


def test_two_labs_do_not_see_each_other():
    with (
        Lab(["a", "b"]) as one,
        Lab(["a", "b"]) as other,
        sockets(one, "a", "b") as (a, _),
        sockets(other, "b") as (b,),
    ):
        assert one.address("b") == other.address("b")
        assert not reaches(one, a, b, "a", "b")


def test_unknown_nodes_are_refused():
    with pytest.raises(ValueError, match="differ"):
        Lab(["a", "a"])
    with Lab(["a", "b"]) as lab:
        for wrong in (lambda: lab.cut("a", "z"), lambda: lab.shape("a", "a", Link())):
            with pytest.raises(ValueError, match="no link"):
                wrong()
        with pytest.raises(ValueError, match="no node"):
            lab.heal("z")


CROWD = """
import subprocess, sys, time
sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(60)
"""


def holders(inodes):
    """Pids of whoever runs in these namespaces or holds them open."""
    wanted = {f"net:[{inode}]" for inode in inodes}
    found = set(namespaces.processes_in(inodes))
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for link in folder.iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link) in wanted:
                        found.add(int(folder.parent.name))
    return found


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_the_end_of_a_lab_leaves_nothing():
    with Lab(["a", "b"]) as lab:
        inodes = {os.stat(lab.path(node)).st_ino for node in lab.nodes}
        assert len(inodes) == 2
        assert os.stat("/proc/self/ns/net").st_ino not in inodes
        process = lab.run("a", [sys.executable, "-c", CROWD], stdout=subprocess.PIPE, text=True)
        sleeper = int(process.stdout.readline())
        assert {process.pid, sleeper} <= holders(inodes)
    assert process.returncode == -signal.SIGKILL
    assert not is_running(sleeper)
    assert holders(inodes) == set()
    process.stdout.close()


def test_one_node_can_be_killed_with_everything_in_it():
    with Lab(["a", "b"]) as lab:
        victim, other = (lab.run(node, ["sleep", "60"]) for node in lab.nodes)
        lab.kill("a")
        assert victim.returncode == -signal.SIGKILL
        assert other.poll() is None


CRASH = f"""
import subprocess, sys, time
from tests.netlab import Lab
with Lab(["a", "b"]) as lab:
    process = lab.run("a", [sys.executable, "-c", {CROWD!r}], stdout=subprocess.PIPE, text=True)
    sleeper = process.stdout.readline().strip()
    print(process.pid, lab.relay_pid, sleeper, flush=True)
    time.sleep(60)
"""


def test_a_test_that_is_killed_leaves_nothing_for_long():
    lost = subprocess.Popen(
        [sys.executable, "-c", CRASH],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    child, relay, sleeper = map(int, lost.stdout.readline().split())
    lost.kill()
    lost.communicate()
    ends_s = time.monotonic() + 5
    while (is_running(child) or is_running(relay)) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert not is_running(child)
    assert not is_running(relay)
    assert is_running(sleeper), "nobody told it"
    with Lab(["a"]):
        pass
    while is_running(sleeper) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert not is_running(sleeper)


def test_nobody_begins_a_connection_to_a_node_behind_a_nat():
    with Lab(["inside", "outside"]) as lab:
        lab.put_behind_nat("inside")
        near, far = connect(lab, "inside", "outside")
        with near, far:
            far.sendall(b"an answer")
            assert near.recv(100) == b"an answer", "what was begun inside works both ways"
        with (
            lab.inside("inside", lambda: socket.create_server((lab.address("inside"), PORT))),
            pytest.raises(TimeoutError),
        ):
            lab.inside(
                "outside",
                lambda: socket.create_connection((lab.address("inside"), PORT), SILENCE_S),
            )
        assert lab.counts("outside", "inside").refused >= 1
        lab.forward("inside")
        near, far = connect(lab, "outside", "inside")
        near.close()
        far.close()
