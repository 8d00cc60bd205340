"""The process between the namespaces: every packet of every node goes through it.

It reads IP packets from the nodes' TUN devices and writes each, when its link says, to the device
of the node that has the destination address. It ends when its test process does.

Arguments: the descriptor of a control socket, a seed, and `NAME=ADDRESS=DESCRIPTOR` for each node.
On the control socket come JSON messages, each answered when it has taken effect:
`{"links": [[FROM, TO, is_open, latency_s, ...], ...]}` with the fields of `Link` in order,
`{"lines": [[NODE, "up" or "down", latency_s, ...], ...]}` likewise, `{"nats": [NODE, ...]}` with
all nodes that are behind a NAT from now on, `{"moves": {NODE: ADDRESS}}`, and
`{"count": [FROM, TO]}`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Final

from tests.netlab.link import Link, RateLimiter
from tests.netlab.nat import begins_tcp

MESSAGE_BYTES_MAX: Final = 1 << 20
PACKET_BYTES_MAX: Final = 1 << 16
BURST_PACKETS: Final = 64
"""Taken from one device in a row, before anybody else has a turn."""

PRIORITY: Final = -10
"""Before the processes under test: a late relay would be a slower network."""


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """The way from one node to another."""

    shaper: RateLimiter
    up: RateLimiter
    """The line of the node that it begins at, which its other paths share."""
    down: RateLimiter
    """The line of the node that it ends at."""
    out: int
    """The TUN device at its end."""

    def admit(self, size_bytes: int, now_s: float) -> float | None:
        """When a packet that comes now is at the line that it ends at; None if it never is.

        Only then may it wait there: packets of others that are there before it go first.
        """
        at_s = self.up.admit(size_bytes, now_s)
        return None if at_s is None else self.shaper.admit(size_bytes, at_s)


class Relay:
    """Nodes, the links between them, and the packets on their way."""

    def __init__(
        self, control: socket.socket, nodes: list[tuple[str, str, int]], seed: str
    ) -> None:
        self._control = control
        self._paths: dict[int, dict[bytes, Path]] = {}
        """By the device that a packet comes from, then by its destination."""
        self._by_names: dict[tuple[str, str], Path] = {}
        self._waiting: list[tuple[float, int, Path, bytes, bool]] = []
        """Packets, each with whether the line that it ends at has let it through."""
        self._number = 0
        self._devices = {name: tun for name, _, tun in nodes}
        self._behind_nat: set[int] = set()
        """Devices of nodes that nobody outside can begin a connection to."""
        self._lines = {
            (name, way): RateLimiter(Link(), seed=f"{seed} {name} {way}")
            for name, _, _ in nodes
            for way in ("up", "down")
        }
        for name, _, tun in nodes:
            self._paths[tun] = {}
            for other, address, out in nodes:
                if other != name:
                    shaper = RateLimiter(Link(), seed=f"{seed} {name} {other}")
                    path = Path(shaper, self._lines[name, "up"], self._lines[other, "down"], out)
                    self._paths[tun][socket.inet_aton(address)] = path
                    self._by_names[name, other] = path

    def run(self) -> None:
        """Forwards until the control socket closes."""
        control = self._control.fileno()
        # Of all ways to wait, this one has a timeout finer than a millisecond.
        sources = [control, *self._paths]
        while True:
            ready, _, _ = select.select(sources, (), (), self._deliver())
            for source in ready:
                if source != control:
                    self._take_in(source)
                elif not self._obey():
                    return

    def _take_in(self, tun: int) -> None:
        paths = self._paths[tun]
        with contextlib.suppress(BlockingIOError):
            for _ in range(BURST_PACKETS):
                packet = os.read(tun, PACKET_BYTES_MAX)
                if is_for_everybody(packet):
                    for path in paths.values():
                        self._admit(packet, path)
                elif (path := paths.get(packet[16:20])) is not None:
                    self._admit(packet, path)

    def _admit(self, packet: bytes, path: Path) -> None:
        """Queues a packet, if its link takes it."""
        if path.out in self._behind_nat and begins_tcp(packet):
            path.shaper.counts.refused += 1
            return
        at_s = path.admit(len(packet), time.monotonic())
        if at_s is not None:
            self._wait(at_s, path, packet, is_through=False)

    def _wait(self, at_s: float, path: Path, packet: bytes, *, is_through: bool) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (at_s, self._number, path, packet, is_through))

    def _deliver(self) -> float | None:
        """Hands over what is due; seconds until the next packet is."""
        waiting = self._waiting
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            at_s, _, path, packet, is_through = heapq.heappop(waiting)
            if not is_through:
                arrives_s = path.down.admit(len(packet), at_s)
                if arrives_s is None:
                    continue
                if arrives_s > at_s:  # Others may come before it.
                    self._wait(arrives_s, path, packet, is_through=True)
                    continue
            if path.shaper.is_open:
                with contextlib.suppress(OSError):  # No memory for it: lost, as anywhere.
                    os.write(path.out, packet)
        return max(0.0, waiting[0][0] - time.monotonic()) if waiting else None

    def _obey(self) -> bool:
        """Does what the lab asks; False when there is no lab any more."""
        try:
            message = self._control.recv(MESSAGE_BYTES_MAX)
        except ConnectionError:
            return False
        if not message:
            return False
        asked = json.loads(message)
        answer: dict[str, Any] = {}
        for sender, receiver, is_open, *link in asked.get("links", ()):
            shaper = self._by_names[sender, receiver].shaper
            shaper.link, shaper.is_open = Link(*link), is_open
        for node, way, *link in asked.get("lines", ()):
            self._lines[node, way].link = Link(*link)
        if "nats" in asked:
            self._behind_nat = {self._devices[node] for node in asked["nats"]}
        for node, address in asked.get("moves", {}).items():
            self._move(node, socket.inet_aton(address))
        if "count" in asked:
            sender, receiver = asked["count"]
            answer = dataclasses.asdict(self._by_names[sender, receiver].shaper.counts)
        self._control.send(json.dumps(answer).encode())
        return True

    def _move(self, node: str, address: bytes) -> None:
        """Packets to its former address go nowhere."""
        out = self._devices[node]
        for tun, paths in self._paths.items():
            if tun != out:
                (former,) = [one for one, path in paths.items() if path.out == out]
                paths[address] = paths.pop(former)


def is_for_everybody(packet: bytes) -> bool:
    """Whether it is an IPv4 packet to a group: on a local network everybody gets it."""
    return packet[:1] >= b"\x40" and packet[:1] < b"\x50" and 224 <= packet[16] <= 239


def main(arguments: list[str]) -> None:
    """Runs the relay of one lab."""
    control, seed, *given = arguments
    nodes = []
    for text in given:
        name, address, tun = text.rsplit("=", 2)
        nodes.append((name, address, int(tun)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; the lab ends us.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    gc.disable()  # Nothing here is circular, and a collection would delay packets.
    with socket.socket(fileno=int(control)) as wire:
        Relay(wire, nodes, seed).run()


if __name__ == "__main__":
    main(sys.argv[1:])
