"""What the relay of the network lab can carry, and how exact its latencies are. Needs root.

.venv/bin/python benchmarks/netlab_relay.py [--megabytes 200] [--latency-ms 20] [--nodes 2]

One TCP connection between two nodes, then small datagrams to and fro.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.netlab import Lab, Link, missing  # noqa: E402

PORT = 5000
TRIPS = 200
CHUNK_BYTES = 1 << 18


def main() -> int:
    """Prints both results, with and without latency."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--nodes", type=int, default=2)
    chosen = parser.parse_args()
    if (lacking := missing()) is not None:
        print(lacking)
        return 1
    for latency_s in (0.0, chosen.latency_ms / 1000):
        started_s = time.monotonic()
        nodes = [f"node{number}" for number in range(chosen.nodes)]
        with Lab(nodes, link=Link(latency_s=latency_s)) as lab:
            opened_s = time.monotonic() - started_s
            print(f"{1e3 * latency_s:g} ms one way, {chosen.nodes} nodes open in {opened_s:.2f} s")
            measure_rate(lab, nodes[0], nodes[1], chosen.megabytes * 1_000_000)
            measure_trips(lab, nodes[0], nodes[1], latency_s)
    return 0


def measure_rate(lab: Lab, a: str, b: str, total_bytes: int) -> None:
    """Prints the rate of one connection and what it cost the relay."""
    with lab.inside(b, lambda: socket.create_server((lab.address(b), PORT))) as server:
        near = lab.inside(a, lambda: socket.create_connection((lab.address(b), PORT)))
        far, _ = server.accept()
    with near, far:
        near.setblocking(False)
        before_s, started_s = cpu_s(lab), time.monotonic()
        chunk, sent, got = bytes(CHUNK_BYTES), 0, 0
        while got < total_bytes:
            readable, writable, _ = select.select([far], [near] if sent < total_bytes else [], [])
            if writable:
                sent += near.send(chunk[: total_bytes - sent])
            if readable:
                got += len(far.recv(CHUNK_BYTES))
        took_s = time.monotonic() - started_s
    packets = lab.counts(a, b).forwarded + lab.counts(b, a).forwarded
    busy_s = cpu_s(lab) - before_s
    print(
        f"  TCP: {8e-6 * got / took_s:.0f} Mbit/s; relay: {packets} packets, "
        f"{1e6 * busy_s / packets:.1f} µs of CPU each, {busy_s / took_s:.0%} of a core"
    )


def measure_trips(lab: Lab, a: str, b: str, latency_s: float) -> None:
    """Prints how long a datagram takes there and back."""

    def bind(node: str) -> socket.socket:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind((lab.address(node), PORT))
        return bound

    with lab.inside(a, lambda: bind(a)) as near, lab.inside(b, lambda: bind(b)) as far:
        trips = []
        for _ in range(TRIPS):
            started_s = time.monotonic()
            near.sendto(b"there", (lab.address(b), PORT))
            far.recv(100)
            far.sendto(b"back", (lab.address(a), PORT))
            near.recv(100)
            trips.append(time.monotonic() - started_s)
    cuts = [1e3 * cut for cut in statistics.quantiles(trips, n=100)]
    print(
        f"  round trip of {2e3 * latency_s:g} ms: median {cuts[49]:.2f} ms, "
        f"99 of 100 within {cuts[98]:.2f} ms"
    )


def cpu_s(lab: Lab) -> float:
    """Processor seconds of the relay so far."""
    fields = Path(f"/proc/{lab.relay_pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
