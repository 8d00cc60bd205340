"""A host behind a NAT asks its router for its ports, is dialled then, and gives them back."""

from __future__ import annotations

import fcntl
import json
import queue
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from tests.netlab import Lab, Link
from tests.netlab.lab import ROOT
from tests.netlab.marks import needs_lab
from tests.support.lab_hosts import Peer

pytestmark = [pytest.mark.net, needs_lab]

SETTLED_S = 90.0
LOOK_S = 0.5
SIOCADDRT = 0x890B
UP_BY_GATEWAY = 0x3


class Gateway:
    """A router's program in a node, and what it says of itself."""

    def __init__(self, lab, *arguments):
        self.process = lab.run(
            "gate",
            [sys.executable, "-m", "tests.support.port_gateway", *arguments],
            env={"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.next() == {"began": True}

    def _read(self):
        for line in self.process.stdout:
            self.told.put(json.loads(line))

    def next(self):
        return self.told.get(timeout=SETTLED_S)

    def rest(self):
        """What it said since then, after it has ended."""
        self.process.kill()
        self.process.wait()
        found = []
        while not self.told.empty():
            found.append(self.told.get())
        return found


def route_through(lab, node, router):
    """Gives a node a default route."""

    def address(text):
        return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))

    def add():
        places = (address("0.0.0.0"), address(lab.address(router)), address("0.0.0.0"))
        entry = struct.pack(
            "L16s16s16sHhLPhPLLH", 0, *places, UP_BY_GATEWAY, 0, 0, 0, 0, 0, 0, 0, 0
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCADDRT, entry)

    lab.inside(node, add)


def until(peer, other, is_so):
    """What a peer knows of itself, once that is so."""
    ends_s = time.monotonic() + SETTLED_S
    while True:
        found = peer.answer(peer.ask(how=other.key), timeout_s=10)
        if is_so(found):
            return found
        assert time.monotonic() < ends_s, found
        time.sleep(LOOK_S)


@pytest.fixture
def lab():
    nodes = ["open", "ada", "gate"]
    with Lab(nodes, link=Link(latency_s=0.005), seed=4) as lab:
        lab.put_behind_nat("ada")
        route_through(lab, "ada", "gate")
        yield lab


def peers(lab, folder):
    first = Peer(lab, "open", folder)
    first.wait()
    ada = Peer(lab, "ada", folder, first.addresses)
    ada.wait()
    return first, ada


@pytest.mark.parametrize(("kind", "words"), [("pcp", "(PCP)"), ("nat-pmp", "(NAT-PMP)")])
def test_a_router_forwards_until_the_host_ends(lab, tmp_path, kind, words):
    gateway = Gateway(lab, kind, lab.address("ada"))
    first, ada = peers(lab, tmp_path)
    ports = {tuple(gateway.next()["forward"]) for _ in range(2)}
    lab.forward("ada")
    found = until(ada, first, lambda found: found["verdict"] == "direct")
    assert ports == {(port, port) for port in (found["port"], found["bulk_port"])}
    address = lab.address("ada")
    assert (
        f"Its router ({lab.address('gate')}) forwards TCP port {found['port']}"
        in (found["sentence"])
    )
    assert words in found["sentence"]
    assert found["addresses"][0].startswith(f"/ip4/{address}/tcp/{found['port']}/p2p/")
    ada.process.stdin.close()
    ada.process.wait(30)
    ended = {gateway.next().get("ended") for _ in range(2)}
    assert ended == {found["port"], found["bulk_port"]}


def test_a_router_that_refuses_is_quoted_and_asked_once(lab, tmp_path):
    gateway = Gateway(lab, "refuses", lab.address("ada"))
    first, ada = peers(lab, tmp_path)
    found = until(ada, first, lambda found: "Its router" in found["sentence"])
    assert found["verdict"] in ("relayed", "outward")
    assert "it refused: it does not allow that." in found["sentence"]
    # In a sentence of its own, or within one, as the verdict has it.
    assert f"forward tcp port {found['port']}" in found["sentence"].lower()
    assert gateway.rest() == []


def test_the_engine_asks_where_that_is_wanted_and_says_so(lab, tmp_path):
    gateway = Gateway(lab, "nat-pmp", "8.8.8.8")
    first = Peer(lab, "open", tmp_path)
    first.wait()
    ada = Peer(lab, "ada", tmp_path, first.addresses, BY_ENGINE="yes")
    ada.wait()
    ours, outside = gateway.next()["forward"]
    found = until(ada, first, lambda found: "as the network engine asked" in found["sentence"])
    assert ours == found["port"]
    assert f"Its router forwards TCP port {outside}, " in found["sentence"]
    assert all(one["forward"] == [ours, outside] for one in gateway.rest()), "we ask beside it"


def test_a_port_outside_is_told_to_others_where_it_differs(lab, tmp_path):
    """Nobody forwards that one here, so nobody is reached by it; but they were told the right."""
    gateway = Gateway(lab, "pcp", "203.0.113.77", "1000")
    first, ada = peers(lab, tmp_path)
    gateway.next()
    found = until(ada, first, lambda found: "forwards" in found["sentence"])
    outside = found["port"] + 1000
    assert f"forwards TCP port {outside} (PCP)" in found["sentence"]
    assert found["addresses"][0].startswith(f"/ip4/203.0.113.77/tcp/{outside}/p2p/")
    assert found["verdict"] != "direct"
