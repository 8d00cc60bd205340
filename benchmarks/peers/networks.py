"""What a contender's processes talk over: loopback alone, or a line for each of them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.netlab import Lab, Link, namespaces

BYTES_PER_S_OF_MBPS = 125e3
LAB_DEVICE = namespaces.DEVICE.decode()

PACKET_BYTES = 9000
"""The relay of the lab handles each packet in Python; larger ones leave the processor to those who
are measured."""

QUEUE_S = 0.25
"""Of a line's rate: what its modem holds back before it drops."""

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41


class Network(Protocol):
    """Where the processes of one contender run."""

    interface: str

    def host(self, node: str) -> str:
        """The IPv4 address that a node listens on."""

    def enter(self, node: str) -> None:
        """Moves the calling process, a child before its program starts, into a node."""

    def inodes(self) -> set[int]:
        """Of its namespaces; none where it has no own one."""

    def received_bytes(self) -> int | None:
        """So far on all its interfaces, headers included; None where nobody counts."""

    def close(self) -> None:
        """Takes it away; its processes have ended."""


class Loopback:
    """A network namespace with loopback only, for all; where that is refused, the machine's own."""

    interface = "lo"

    def __init__(self) -> None:
        self._namespace = _loopback()

    def host(self, node: str) -> str:
        return "127.0.0.1"

    def enter(self, node: str) -> None:
        if self._namespace is not None:
            namespaces.enter(self._namespace)

    def inodes(self) -> set[int]:
        return set() if self._namespace is None else {os.fstat(self._namespace).st_ino}

    def received_bytes(self) -> int | None:
        if self._namespace is None:
            return None

        def look() -> int:
            self.enter("")
            return _received(self.interface)

        return namespaces.in_thread(look)

    def close(self) -> None:
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody has at home."""

    down_mbps: float
    up_mbps: float
    rtt_ms: float
    """Between any two."""

    def slower(self, factor: float) -> Line:
        """With so much less of each rate."""
        return Line(self.down_mbps / factor, self.up_mbps / factor, self.rtt_ms)


class Lines:
    """A node for each process, behind a line of its own. Needs Linux and root."""

    interface = LAB_DEVICE

    def __init__(self, nodes: dict[str, Line], *, packet_bytes: int = PACKET_BYTES) -> None:
        self._lab = Lab(list(nodes), mtu_bytes=packet_bytes)
        self._lab.__enter__()
        for node, line in nodes.items():
            up, down = _link(line.up_mbps, line.rtt_ms), _link(line.down_mbps, line.rtt_ms)
            self._lab.put_on_line(node, up=up, down=down)
        self._nodes = tuple(nodes)

    def host(self, node: str) -> str:
        return self._lab.address(node)

    def enter(self, node: str) -> None:
        namespace = os.open(self._lab.path(node), os.O_RDONLY | os.O_CLOEXEC)
        namespaces.enter(namespace)
        os.close(namespace)
        # torchft tells others its host's name, and nobody here resolves names: so it is an address.
        if _libc.unshare(_CLONE_NEWUTS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(self.host(node))

    def inodes(self) -> set[int]:
        return {os.stat(self._lab.path(node)).st_ino for node in self._nodes}

    def received_bytes(self) -> int | None:
        counts = [self._lab.inside(one, lambda: _received(self.interface)) for one in self._nodes]
        return sum(counts)

    def close(self) -> None:
        self._lab.close()


def _link(mbps: float, rtt_ms: float) -> Link:
    """A quarter of the round trip: two lines lie on each way."""
    rate = mbps * BYTES_PER_S_OF_MBPS
    return Link(
        latency_s=rtt_ms / 4000, rate_bytes_per_s=rate, queue_bytes=max(65536, int(QUEUE_S * rate))
    )


def _received(interface: str) -> int:
    """By this thread's namespace."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == interface:
            return int(rest.split()[0])
    raise RuntimeError(f"there is no interface {interface}")


def _loopback() -> int | None:
    """A descriptor of a new network namespace with loopback only; None where refused."""

    def make() -> int:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            up = struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING)
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    try:
        return namespaces.in_thread(make)
    except OSError:
        return None
