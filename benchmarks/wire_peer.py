"""One process of `wire.py`: two hosts, one with direct channels and one without, and the raw
transports below them. It answers questions on stdin, a line of JSON each.

    python -m benchmarks.wire_peer FOLDER NAME ADDRESS WHAT_THE_OTHER_ONE_TOLD
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop
from blake3 import blake3

from host.bulk.tls_context import Contexts
from host.network import blobs
from host.options import BulkAt
from protocol.errors import ShoalError
from protocol.ids import NodeKey
from protocol.numerics import codecs
from tests.net.hosts import Host, echo

PARAMETERS = 4 << 20
PAYLOAD = -1
"""Stands for the size of an int4 payload of so many parameters."""
CHUNK_BYTES = 256 << 10
HASHED_BYTES = 1 << 20
PING_EVERY_S = 0.01
SAMPLE_S = 0.02
WAYS = ("streams", "channel")


def content(size: int) -> bytes:
    """The same in both processes. Sizes in the same MiB: as many bytes, but others."""
    if size == PAYLOAD:
        rng = np.random.default_rng(1)
        return bytes(codecs.encode("int4", rng.standard_normal(PARAMETERS, dtype=np.float32)))
    return random.Random(size).randbytes(1 << 20) * (size >> 20)


class Raw:
    """The transports without anything of ours: a thread for each connection, both ends.

    Connections stand, as those of the channel do, and are used again.
    """

    def __init__(self, tls: Contexts, host: str, blob: memoryview) -> None:
        self.tls = tls
        self.blob = blob
        self.listener = socket.create_server((host, 0))
        self._standing: dict[bool, list[socket.socket]] = {True: [], False: []}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            plain, _ = self.listener.accept()
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        """Asked for: 1 byte, whether with TLS; then 8 bytes, how many, again and again."""
        with contextlib.suppress(OSError):
            is_tls = plain.recv(1) == b"s"
            out = self.tls.server.wrap_socket(plain, server_side=True) if is_tls else plain
            with out:
                while asked := out.recv(8):
                    left, at = int.from_bytes(asked, "big"), 0
                    while left:
                        piece = self.blob[at : at + min(CHUNK_BYTES, left)]
                        out.sendall(piece)
                        at, left = at + len(piece), left - len(piece)

    def fetch_checked(self, place: tuple[str, int], size: int) -> None:
        """The same over one TLS connection, with the digest computed in another thread."""
        mine = self._standing[True]
        if not mine:
            mine.append(self._dial(place, True))
        into, hasher = blobs.room_for(size), blake3()
        with ThreadPoolExecutor(1) as hashing:
            for at in range(0, size, HASHED_BYTES):
                _read(mine[0], into[at : at + HASHED_BYTES], ask=0 if at else size)
                hashing.submit(hasher.update, into[at : at + HASHED_BYTES])
        hasher.digest()

    def fetch(self, place: tuple[str, int], size: int, *, is_tls: bool, connections: int) -> None:
        """`size` bytes into new memory, over so many connections at once."""
        mine = self._standing[is_tls]
        while len(mine) < connections:
            mine.append(self._dial(place, is_tls))
        into = blobs.room_for(size)
        each = size // connections
        threads = [
            threading.Thread(target=_read, args=(one, into[at * each : (at + 1) * each], each))
            for at, one in enumerate(mine[:connections])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _dial(self, place: tuple[str, int], is_tls: bool) -> socket.socket:
        plain: socket.socket = socket.create_connection(place)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(b"s" if is_tls else b"p")
        return self.tls.client.wrap_socket(plain) if is_tls else plain


def _read(found: socket.socket, into: memoryview, ask: int) -> None:
    if ask:
        found.sendall(ask.to_bytes(8, "big"))
    at = 0
    while at < len(into):
        at += found.recv_into(into[at:])


class Peer:
    """The hosts by way, and the raw servers."""

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
        self.names: dict[int, bytes] = {}
        self.blobs: dict[bytes, memoryview] = {}
        self.tls = Contexts(self.hosts["channel"].identity)
        self.raw = Raw(self.tls, address, memoryview(b""))
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

    # What is asked.

    async def meet(self, told: dict[str, Any]) -> dict[str, Any]:
        """The other process, for the one that was started first."""
        self.theirs = told
        self.tls.trust(bytes.fromhex(told["certificate"]))
        return {}

    async def hold(self, sizes: list[int]) -> dict[str, Any]:
        """From now on this side serves and fetches blobs of these sizes."""
        for size in sizes:
            blob = content(size)
            self.names[size] = blake3(blob).digest()
            self.blobs[self.names[size]] = memoryview(blob)
        self.raw.blob = max(self.blobs.values(), key=len)
        return {}

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

    async def timed(self, what: str, size: int) -> dict[str, Any]:
        """Seconds for one transfer."""
        began_s = time.perf_counter()
        if what in WAYS:
            await self.fetch(what, size)
        else:
            place = (self.theirs["raw"][0], self.theirs["raw"][1])
            if what == "tls 1, checked":
                await asyncio.to_thread(self.raw.fetch_checked, place, size)
            else:
                many, is_tls = int(what.split()[1]), what.startswith("tls")
                fetch = functools.partial(self.raw.fetch, is_tls=is_tls, connections=many)
                await asyncio.to_thread(fetch, place, size)
        return {"seconds": time.perf_counter() - began_s}

    async def spent(self) -> dict[str, Any]:
        """Processor seconds of this process, and of its network engines, so far."""
        times = [os.times(), *(child.cpu_times() for child in psutil.Process().children())]
        own, *engines = (one.user + one.system for one in times)
        return {"host": own, "engines": sum(engines)}

    async def moved(self) -> dict[str, Any]:
        """Bytes of our sockets and our engines', as the kernel counts them: with TLS, without what
        was sent again."""
        told = await asyncio.to_thread(
            subprocess.run, ["ss", "-tinpHO"], capture_output=True, text=True, check=True
        )
        mine = {os.getpid(), *(child.pid for child in psutil.Process().children())}
        sums = {"bytes_acked": 0, "bytes_received": 0}
        for line in told.stdout.splitlines():
            pids = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
            for name in sums if pids & mine else ():
                if found := re.search(rf"\b{name}:(\d+)", line):
                    sums[name] += int(found[1])
        return {"up": sums["bytes_acked"], "down": sums["bytes_received"]}

    async def share(self, way: str, size: int, count: int) -> dict[str, Any]:
        """Seconds of each of several transfers of different blobs that begin together."""

        async def one(size: int) -> float:
            began_s = time.perf_counter()
            await self.fetch(way, size)
            return time.perf_counter() - began_s

        return {"seconds": await asyncio.gather(*(one(size + at) for at in range(count)))}

    async def limit(self, up: int | None, down: int | None) -> dict[str, Any]:
        """Ceilings of the owner, bytes per second."""
        for host in self.hosts.values():
            host.transport.rate_limiter.limit(up, down)
        return {}

    async def sampled(self, way: str, size: int, count: int) -> dict[str, Any]:
        """What had come when, while several transfers ran."""
        traffic = self.hosts[way].transport.traffic
        began_s, began = time.perf_counter(), traffic.down_bytes
        samples = [(0.0, 0)]

        async def watch() -> None:
            while True:
                await asyncio.sleep(SAMPLE_S)
                samples.append((time.perf_counter() - began_s, traffic.down_bytes - began))

        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.gather(*(self.fetch(way, size + at) for at in range(count)))
        finally:
            watching.cancel()
        samples.append((time.perf_counter() - began_s, traffic.down_bytes - began))
        return {"samples": samples}

    async def ping(self, way: str, size: int, times: int) -> dict[str, Any]:
        """Round trips of control messages; while bulk data runs where `size` is not 0."""
        if way not in self.streams:
            transport = self.hosts[way].transport
            self.streams[way] = await transport.open_control(self._key(way))
        stream, trips, is_over = self.streams[way], [], asyncio.Event()
        loaded, began_s = 0, time.perf_counter()

        async def load() -> None:
            nonlocal loaded
            while not is_over.is_set():
                await self.fetch(way, size)
                loaded += size

        task = asyncio.ensure_future(load()) if size else None
        try:
            for _ in range(times):
                await asyncio.sleep(PING_EVERY_S)
                sent_s = time.perf_counter()
                stream.send(b"ping")
                await stream.recv()
                trips.append(time.perf_counter() - sent_s)
        finally:
            is_over.set()
            if task is not None:
                await task
        return {"trips": trips, "mb_per_s": loaded / 1e6 / (time.perf_counter() - began_s)}

    # Inside.

    async def fetch(self, way: str, size: int) -> None:
        host, name = self.hosts[way].transport, self.names[size]
        await host.fetch(self._key(way), name, len(self.blobs[name]))

    def _key(self, way: str) -> NodeKey:
        return bytes.fromhex(self.theirs["keys"][way])

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
            host.transport.serve_blobs(lambda _, name: self.blobs.get(name))
            await host.transport.start()
        print(json.dumps(self.told()), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await self.answer(json.loads(line))), flush=True)
        for host in self.hosts.values():
            await host.transport.close()


async def main(folder: str, name: str, address: str, other: str) -> None:
    await Peer(Path(folder), name, address, json.loads(other)).serve()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
