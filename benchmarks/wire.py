"""Bulk data between two hosts: streams and the direct channel against the raw transport below them.

    python benchmarks/wire.py [--on loopback,line] [--rounds 5] [--json FILE]

Two processes, each with two hosts: one with direct channels and one without. `line` is a link of
100 Mbit/s, 50 ms there and back and 0.5 % loss each way between two networks (tests/netlab; needs
root). In each round the same bytes go over a plain TCP connection (sendall, recv_into), over raw
TLS 1.3 with the same certificates, as one connection and as several at once, over the engine's
streams and over the channel; rates are medians, told as shares of the better raw ones. Ours check
the blake3 digest; raw connections are dialled for each transfer, as ours are not.

Then: what an int4 payload costs per parameter; how evenly four transfers at once share the link;
how long a control message takes there and back while bulk data runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import queue
import random
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import uvloop  # noqa: E402
from blake3 import blake3  # noqa: E402

from node.host.channel_tls import Contexts  # noqa: E402
from node.host.options import BulkAt  # noqa: E402
from protocol.errors import ShoalError  # noqa: E402
from protocol.ids import NodeKey  # noqa: E402
from protocol.numerics import codecs  # noqa: E402
from tests.net.hosts import Host, echo  # noqa: E402
from tests.netlab import Lab, Link, missing  # noqa: E402

LINE = Link(latency_s=0.025, loss_frac=0.005, rate_bytes_per_s=100e6 / 8)
SIZES = {"loopback": 256 << 20, "line": 24 << 20}
PARAMETERS = 4 << 20
RAW_CONNECTIONS = 4
CHUNK_BYTES = 256 << 10
AT_ONCE = 4
PING_EVERY_S = 0.01
ANSWER_S = 120.0
WAYS = ("streams", "channel")


def content(size: int) -> bytes:
    """The same in both processes."""
    return random.Random(size).randbytes(1 << 20) * (size >> 20)


def payload() -> bytes:
    """A displacement of `PARAMETERS` parameters as int4."""
    rng = np.random.default_rng(1)
    return bytes(codecs.encode("int4", rng.standard_normal(PARAMETERS, dtype=np.float32)))


class Raw:
    """The transports without anything of ours: a thread for each connection."""

    def __init__(self, tls: Contexts, host: str, blob: memoryview) -> None:
        self.tls = tls
        self.blob = blob
        self.listener = socket.create_server((host, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            plain, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        """Asked for: 1 byte, whether with TLS; 8 bytes, how many."""
        with contextlib.suppress(OSError):
            is_tls = plain.recv(1) == b"s"
            out = self.tls.server.wrap_socket(plain, server_side=True) if is_tls else plain
            with out:
                left = int.from_bytes(out.recv(8), "big")
                at = 0
                while left:
                    piece = self.blob[at : at + min(CHUNK_BYTES, left)]
                    out.sendall(piece)
                    at, left = at + len(piece), left - len(piece)
                out.recv(1)

    def fetch(self, place: tuple[str, int], size: int, *, is_tls: bool, connections: int) -> None:
        """`size` bytes over so many connections at once."""
        each = size // connections
        threads = [
            threading.Thread(target=self._fetch, args=(place, each, is_tls))
            for _ in range(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _fetch(self, place: tuple[str, int], size: int, is_tls: bool) -> None:
        into = memoryview(bytearray(size))
        plain: socket.socket = socket.create_connection(place)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(b"s" if is_tls else b"p")
        found = self.tls.client.wrap_socket(plain) if is_tls else plain
        with found:
            found.sendall(size.to_bytes(8, "big"))
            at = 0
            while at < size:
                at += found.recv_into(into[at:])


class Peer:
    """One process: its hosts by way, and the raw servers; it answers questions on stdin."""

    def __init__(self, folder: Path, name: str, address: str, theirs: dict[str, Any]) -> None:
        self.theirs = theirs
        self.address = address
        self.hosts = {
            way: Host(
                folder / way,
                name,
                bootstrap=theirs["addresses"][way] if theirs else [],
                listen_host=address,
                bulk=BulkAt(is_on=way == "channel"),
            )
            for way in WAYS
        }
        size = max(SIZES.values())
        self.blobs = {at: content(at) for at in {size, *SIZES.values()}}
        self.blobs[-1] = payload()
        self.names = {size: blake3(blob).digest() for size, blob in self.blobs.items()}
        self.by_name = {self.names[size]: blob for size, blob in self.blobs.items()}
        self.tls = Contexts(self.hosts["channel"].identity)
        self.raw = Raw(self.tls, address, memoryview(self.blobs[size]))
        self.streams: dict[str, Any] = {}
        if theirs:
            self.tls.trust(bytes.fromhex(theirs["certificate"]))

    def told(self) -> dict[str, Any]:
        return {
            "keys": {way: host.identity.key.hex() for way, host in self.hosts.items()},
            "addresses": {way: host.transport.addresses() for way, host in self.hosts.items()},
            "certificate": self.tls.certificate.hex(),
            "raw": [self.address, self.raw.listener.getsockname()[1]],
        }

    async def fetch(self, way: str, size: int, **options: Any) -> None:
        host = self.hosts[way].transport
        blob = self.blobs[size]
        await host.fetch(self._key(way), self.names[size], len(blob), **options)

    def _key(self, way: str) -> NodeKey:
        return bytes.fromhex(self.theirs["keys"][way])

    async def timed(self, what: str, size: int) -> dict[str, Any]:
        """Seconds for one transfer."""
        began_s = time.perf_counter()
        if what in WAYS:
            await self.fetch(what, size)
        else:
            place = (self.theirs["raw"][0], self.theirs["raw"][1])
            many = RAW_CONNECTIONS if what.endswith("4") else 1
            is_tls = what.startswith("tls")
            await asyncio.to_thread(self.raw.fetch, place, size, is_tls=is_tls, connections=many)
        return {"seconds": time.perf_counter() - began_s}

    async def cost(self, way: str) -> dict[str, Any]:
        """Bytes that our side counted for one payload."""
        traffic = self.hosts[way].transport.traffic
        before = traffic.down_bytes + traffic.up_bytes
        await self.fetch(way, -1)
        return {"bytes": traffic.down_bytes + traffic.up_bytes - before}

    async def share(self, way: str, size: int) -> dict[str, Any]:
        """What each of several transfers of the same blob had when the first one was complete."""
        had = [0] * AT_ONCE
        snapshot: list[int] = []

        def note(at: int, count: int) -> None:
            had[at] = count
            if count == size and not snapshot:
                snapshot.extend(had)

        await asyncio.gather(
            *(
                self.fetch(way, size, on_progress=lambda count, at=at: note(at, count))
                for at in range(AT_ONCE)
            )
        )
        return {"had": snapshot}

    async def ping(self, way: str, size: int, times: int) -> dict[str, Any]:
        """Round trips of control messages; while bulk data runs where `size` is not 0."""
        if way not in self.streams:
            transport = self.hosts[way].transport
            self.streams[way] = await transport.open_control(self._key(way))
        stream, trips, is_over = self.streams[way], [], asyncio.Event()

        async def load() -> None:
            while not is_over.is_set():
                await self.fetch(way, size)

        task = asyncio.ensure_future(load()) if size else None
        try:
            for _ in range(times):
                await asyncio.sleep(PING_EVERY_S)
                began_s = time.perf_counter()
                stream.send(b"ping")
                await stream.recv()
                trips.append(time.perf_counter() - began_s)
        finally:
            is_over.set()
            if task is not None:
                await task
        return {"trips": trips}

    async def warm(self, size: int) -> dict[str, Any]:
        """Until the channel stands with as many connections as it gets."""
        channels, key = self.hosts["channel"].transport.bulk.channels, self._key("channel")
        count = -1
        for way in WAYS:
            await self.fetch(way, size)
        while count != len(channels.to(key)) or not count:
            count = len(channels.to(key))
            await self.fetch("channel", size)
            await asyncio.sleep(1.0)
        return {"connections": count}

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        verb = asked.pop("verb")
        try:
            found: dict[str, Any] = await getattr(self, verb)(**asked)
            return found
        except (ShoalError, OSError, ssl.SSLError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    async def serve(self) -> None:
        for host in self.hosts.values():
            host.transport.serve_control(echo)
            host.transport.serve_blobs(lambda _, name: _view(self.by_name.get(name)))
            await host.transport.start()
        print(json.dumps(self.told()), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            if "trust" in asked:
                self.tls.trust(bytes.fromhex(asked["trust"]))
                print("{}", flush=True)
            else:
                print(json.dumps(await self.answer(asked)), flush=True)
        for host in self.hosts.values():
            await host.transport.close()


def _view(blob: bytes | None) -> memoryview | None:
    return None if blob is None else memoryview(blob)


class Process:
    """A `Peer` in a process of its own."""

    def __init__(self, started: subprocess.Popen[str]) -> None:
        self.process = started
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.told = json.loads(self._lines.get(timeout=ANSWER_S))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._lines.get(timeout=ANSWER_S))
        if "error" in found:
            raise RuntimeError(f"{question}: {found['error']}")
        return found


Start = Callable[[str, list[str]], "subprocess.Popen[str]"]
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@contextlib.contextmanager
def on_loopback() -> Iterator[tuple[Start, Callable[[str], str], Lab | None]]:
    """Both processes on this machine."""
    running: list[subprocess.Popen[str]] = []

    def start(_: str, arguments: list[str]) -> subprocess.Popen[str]:
        running.append(subprocess.Popen([sys.executable, __file__, *arguments], **PIPES))
        return running[-1]

    try:
        yield start, lambda _: "127.0.0.1", None
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def on_line() -> Iterator[tuple[Start, Callable[[str], str], Lab | None]]:
    """Each in a network of its own, with the emulated line between."""
    with Lab(["a", "b"], link=LINE, seed=1) as lab:

        def start(node: str, arguments: list[str]) -> subprocess.Popen[str]:
            return lab.run(node, [sys.executable, __file__, *arguments], **PIPES)

        yield start, lab.address, lab


def measure(kind: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Everything on one kind of link."""
    size = SIZES[kind]
    with (on_loopback if kind == "loopback" else on_line)() as (start, address, lab):
        one = Process(start("a", ["peer", str(folder), "a", address("a"), "{}"]))
        place = json.dumps(one.told)
        two = Process(start("b", ["peer", str(folder), "b", address("b"), place]))
        one.ask(trust=two.told["certificate"])
        connections = two.ask(verb="warm", size=size)["connections"]
        cases = ["tcp", "tcp 4", "tls", "tls 4", *WAYS]
        took: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case in cases:
                took[case].append(two.ask(verb="timed", what=case, size=size)["seconds"])
        rates = {case: statistics.median(size / 1e6 / s for s in took[case]) for case in cases}
        per_parameter = {}
        for way in WAYS:
            before = lab.counts("a", "b").forwarded_bytes if lab else 0
            counted = two.ask(verb="cost", way=way)["bytes"] / PARAMETERS
            packets = (lab.counts("a", "b").forwarded_bytes - before) / PARAMETERS if lab else None
            per_parameter[way] = {"counted": counted, "packets": packets}
        shares = {way: two.ask(verb="share", way=way, size=size)["had"] for way in WAYS}
        pings = {}
        for way in WAYS:
            for load in (0, size):
                trips = two.ask(verb="ping", way=way, size=load, times=200)["trips"]
                cuts = statistics.quantiles(trips, n=100)
                pings[f"{way}, {'under load' if load else 'idle'}"] = {
                    "median_ms": 1e3 * cuts[49],
                    "p99_ms": 1e3 * cuts[98],
                }
    return {
        "connections": connections,
        "size": size,
        "mb_per_s": rates,
        "seconds": took,
        "bytes_per_parameter": per_parameter,
        "fairness": {way: jain(had) for way, had in shares.items()},
        "control": pings,
    }


def jain(had: list[int]) -> float:
    """Jain's fairness index: 1 where all have the same, 1/n where one has everything."""
    return float(sum(had) ** 2 / (len(had) * sum(one * one for one in had)))


def show(kind: str, found: dict[str, Any]) -> None:
    """One table for one kind of link."""
    rates = found["mb_per_s"]
    print(f"\n{kind}: {found['size'] >> 20} MiB, {found['connections']} direct connections")
    print(f"  {'':12}{'MB/s':>9}{'of TCP':>9}{'of TLS':>9}")
    tcp, tls = (max(rates[name], rates[f"{name} 4"]) for name in ("tcp", "tls"))
    for case, rate in rates.items():
        of_tcp, of_tls = rate / tcp, rate / tls
        print(f"  {case:12}{rate:9.1f}{of_tcp:9.2f}{of_tls:9.2f}")
    for way, cost in found["bytes_per_parameter"].items():
        packets = "" if cost["packets"] is None else f", {cost['packets']:.4f} as packets"
        print(f"  int4 over {way}: {cost['counted']:.4f} byte per parameter{packets}")
    for way, index in found["fairness"].items():
        print(f"  {AT_ONCE} transfers at once over {way}: fairness {index:.3f}")
    for case, trips in found["control"].items():
        shown = f"median {trips['median_ms']:.1f} ms, p99 {trips['p99_ms']:.1f} ms"
        print(f"  control message, {case}: {shown}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="loopback,line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    for kind in given.on.split(","):
        if kind == "line" and (lacking := missing()) is not None:
            print(lacking)
            continue
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            found[kind] = measure(kind, given.rounds, Path(folder))
        show(kind, found[kind])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        own_folder, own_name, own_address, other = sys.argv[2:]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

            async def alone() -> None:
                made = Peer(Path(own_folder), own_name, own_address, json.loads(other))
                await made.serve()

            runner.run(alone())
    else:
        sys.exit(main())
