"""How fast a joiner gets its weights from three learners behind emulated lines. Needs root.

    python benchmarks/bootstrap_lab.py [--sizes 10,100,500] [--mbps 100] [--rtt-ms 50] [--times 3]

Each host has a network of its own (tests/netlab): every donor's line to the joiner carries so many
Mbit/s of IP packets and takes half the round trip; the way back is as long, and fast. Every time
plain TCP goes first: one connection from each donor, all at once, through the same lines, as many
bytes in all as the model has. Then a joiner with a fresh key, which knows none of the donors, finds
them in the table, connects, and fetches and verifies the model. Told are the seconds from asking
to the last verified byte, and two shares: of the rate that plain TCP reached in its second half,
when its windows had opened (the rate of the lines), and of what plain TCP took for the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import uvloop

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from host.bulk.blob_store import BlobStore  # noqa: E402
from host.files import keystore  # noqa: E402
from host.network.leader_discovery import LearnerNotice, learners_topic  # noqa: E402
from host.network.token_bucket import TokenBucket  # noqa: E402
from host.runtime.lifecycle import background  # noqa: E402
from host.transport import Transport  # noqa: E402
from node.download.fetcher import StateFetcher  # noqa: E402
from node.download.locator import Locator  # noqa: E402
from node.machine.jobs import FetchState  # noqa: E402
from protocol import wire  # noqa: E402
from protocol.numerics.versions import StateManifests, state_manifests  # noqa: E402
from tests.netlab import Lab, Link, missing  # noqa: E402

PROJECT = bytes(32)
FRAGMENTS = 8
DONORS = 3
BLOCK = 128
PORT = 5000
PIECE_BYTES = 1 << 16
UNLIMITED_MBPS = 10_000.0
"""What donors may give: the line alone is the limit."""

SEED, JOINER = "seed", "joiner"
NAMES = tuple(f"donor{at}" for at in range(DONORS))


def states(megabytes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Value and momentum of each fragment, the same in every process."""
    rng = np.random.default_rng(megabytes)
    numel = round(megabytes * 1e6 / (8 * FRAGMENTS * BLOCK)) * BLOCK
    return [
        (rng.random(numel, dtype=np.float32), rng.random(numel, dtype=np.float32))
        for _ in range(FRAGMENTS)
    ]


def host(home: Path, bootstrap: list[str], listen: str) -> Transport:
    return Transport(
        keystore.load_or_create(home / "key"),
        port=0,
        bootstrap=bootstrap,
        topics=(learners_topic(PROJECT),),
        listen_host=listen,
        on_state=lambda _: None,
    )


async def donate(chosen: argparse.Namespace) -> None:
    """Serve until standard input ends; without weights only be in the table."""
    home = chosen.donor
    blob_store, bucket = BlobStore(), TokenBucket(chosen.mbps * 1e6 / 8)
    kept = [states(size) for size in chosen.sizes]
    for model in kept:
        for theta, momentum in model:
            blob_store.put_group(state_manifests(theta, momentum).blobs(theta, momentum))
    transport = host(home, chosen.bootstrap, chosen.listen)
    transport.serve_blobs(lambda _, name: blob_store.get(name), lambda *_: bucket)
    await transport.start()
    notice = wire.encode(LearnerNotice(home.name, "training", 1))
    if kept:
        await transport.announce(learners_topic(PROJECT), notice, 300.0)
    print(json.dumps(transport.addresses()), flush=True)
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    while not ended.done():
        await asyncio.wait([ended], timeout=60)
        if kept:
            await transport.announce(learners_topic(PROJECT), notice, 300.0)
    await transport.close()


async def fetch(transport: Transport, manifests: list[StateManifests], numel: int) -> dict:
    """One download of a whole model; seconds, and bytes by donor."""
    rng = random.Random(os.urandom(8))
    fetcher = StateFetcher(
        transport,
        Locator(transport, PROJECT, b"", rng, frozenset()),
        rng=rng,
        leader=lambda: None,
        newest=lambda _: 1,
        on_fault=lambda peer, error: print("fault:", error),
    )
    async with background(fetcher.run):
        begun_s = time.monotonic()
        cpu_s = time.process_time()
        jobs = [FetchState(at, 1, made.digests) for at, made in enumerate(manifests)]
        assemblies = await asyncio.gather(*(fetcher.fetch(job, numel) for job in jobs))
        seconds, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    sources: dict[str, int] = {}
    for assembly in assemblies:
        for key, count in assembly.sources.items():
            sources[key.hex()[:8]] = sources.get(key.hex()[:8], 0) + count
    return {"seconds": seconds, "cpu_s": cpu_s, "sources": sources}


def bytes_of(megabytes: int) -> int:
    """Of a model as `states` makes it."""
    return round(megabytes * 1e6 / (8 * FRAGMENTS * BLOCK)) * BLOCK * 8 * FRAGMENTS


async def join(chosen: argparse.Namespace) -> None:
    """One download by a host that nobody knew before."""
    model = states(chosen.sizes[0])
    manifests, numel = [state_manifests(*state) for state in model], model[0][0].size
    del model
    transport = host(chosen.home, chosen.bootstrap, chosen.listen)
    await transport.start()
    try:
        print(json.dumps(await fetch(transport, manifests, numel)), flush=True)
    finally:
        await transport.close()


class Bench:
    """The lab and the donors in it."""

    def __init__(self, lab: Lab, home: Path, chosen: argparse.Namespace) -> None:
        self.lab = lab
        self.home = home
        self.chosen = chosen
        self.donors: list[subprocess.Popen[bytes]] = []
        self.bootstrap: list[str] = []
        self.joined = 0

    def start_donor(self, name: str, sizes: list[int]) -> None:
        donor = self.lab.run(
            name,
            [
                *(sys.executable, __file__, "--donor", self.home / name),
                *("--listen", self.lab.address(name), "--mbps", str(UNLIMITED_MBPS)),
                *("--sizes", ",".join(map(str, sizes))),
                *("--bootstrap", *self.bootstrap),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.donors.append(donor)

    def open(self) -> None:
        """The donors, and before them a host without weights, as a syncer is in the table."""
        self.start_donor(SEED, [])
        self.bootstrap = self._told(self.donors[0])[:1]
        for name in NAMES:
            self.start_donor(name, self.chosen.sizes)
        for donor in self.donors[1:]:
            self._told(donor)

    @staticmethod
    def _told(donor: subprocess.Popen[bytes]) -> list[str]:
        assert donor.stdout is not None
        found: list[str] = json.loads(donor.stdout.readline())
        return found

    def download(self, megabytes: int) -> dict:
        """What `fetch` found."""
        self.joined += 1
        cpu_s = relay_cpu_s(self.lab)
        done = self.lab.run(
            JOINER,
            [
                *(sys.executable, __file__, "--home", self.home / f"joiner{self.joined}"),
                *("--sizes", str(megabytes), "--listen", self.lab.address(JOINER)),
                *("--bootstrap", *self.bootstrap),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        said, _ = done.communicate(timeout=600)
        found: dict = json.loads(said)
        return {**found, "relay_cpu_s": relay_cpu_s(self.lab) - cpu_s}

    def plain(self, total_bytes: int) -> dict:
        """Plain TCP: seconds from connecting to the last byte, and bytes/s of the second half."""
        address = self.lab.address(JOINER)
        server = self.lab.inside(JOINER, lambda: socket.create_server((address, PORT)))
        share = total_bytes // DONORS
        marks: list[tuple[float, int]] = []
        begun_s = time.monotonic()
        with server:
            pairs = []
            for name in NAMES:
                near = self.lab.inside(name, lambda: socket.create_connection((address, PORT)))
                pairs.append((near, server.accept()[0]))
            threads = [threading.Thread(target=send, args=(near, share)) for near, _ in pairs]
            threads += [threading.Thread(target=take, args=(far, marks)) for _, far in pairs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        marks.sort()
        half_s, so_far = begun_s, 0
        for at_s, count in marks:
            so_far += count
            if so_far <= total_bytes // 2:
                half_s, half_bytes = at_s, so_far
        rate = (so_far - half_bytes) / (marks[-1][0] - half_s)
        return {"seconds": marks[-1][0] - begun_s, "rate": rate}


def send(near: socket.socket, count: int) -> None:
    with near:
        piece = bytes(PIECE_BYTES)
        while count > 0:
            near.sendall(piece[:count])
            count -= len(piece[:count])


def take(far: socket.socket, marks: list[tuple[float, int]]) -> None:
    with far:
        while part := far.recv(PIECE_BYTES):
            marks.append((time.monotonic(), len(part)))


def relay_cpu_s(lab: Lab) -> float:
    fields = Path(f"/proc/{lab.relay_pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(chosen: argparse.Namespace, home: Path) -> list[dict]:
    latency_s = chosen.rtt_ms / 2e3
    line = Link(latency_s=latency_s, rate_bytes_per_s=chosen.mbps * 1e6 / 8)
    results = []
    with Lab((SEED, JOINER, *NAMES), link=Link(latency_s=latency_s), seed=1) as lab:
        for name in NAMES:
            lab.shape_one_way(name, JOINER, line)
        bench = Bench(lab, home, chosen)
        bench.open()
        for number in range(chosen.times):
            for size in chosen.sizes:
                plain = bench.plain(bytes_of(size))
                found = bench.download(size)
                result = {
                    "megabytes": size,
                    **found,
                    "plain": plain,
                    "of_rate": bytes_of(size) / plain["rate"] / found["seconds"],
                    "of_plain": plain["seconds"] / found["seconds"],
                }
                results.append(result)
                print(
                    f"{number} {size} MB: {found['seconds']:.2f} s; plain TCP "
                    f"{plain['seconds']:.2f} s, at the end {plain['rate'] * 8e-6:.0f} Mbit/s; "
                    f"{result['of_rate']:.2f} of its rate, {len(found['sources'])} sources, "
                    f"relay {found['relay_cpu_s']:.1f} s of CPU, joiner {found['cpu_s']:.1f} s",
                    flush=True,
                )
    return results


def options(about: str | None) -> argparse.ArgumentParser:
    """What any measurement of a joiner behind emulated lines may be told."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(one) for one in text.split(",") if one],
        default=[10, 100, 500],
        help="megabytes",
    )
    parser.add_argument("--mbps", type=float, default=100.0, help="of each donor's line")
    parser.add_argument("--rtt-ms", type=float, default=50.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser


def main() -> int:
    """Prints the median shares of each size and writes everything as JSON."""
    parser = options(__doc__)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--donor", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--listen", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", nargs="*", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.donor:
        uvloop.run(donate(chosen))
        return 0
    if chosen.home:
        uvloop.run(join(chosen))
        return 0
    if (lacking := missing()) is not None:
        print(lacking)
        return 1
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        results = measure(chosen, Path(home))
    summary = []
    for size in chosen.sizes:
        mine = [result for result in results if result["megabytes"] == size]
        middle = {
            key: statistics.median(one[key] for one in mine)
            for key in ("seconds", "of_rate", "of_plain")
        }
        summary.append({"megabytes": size, **middle})
        print(
            f"{size} MB, {DONORS} donors, {chosen.mbps:g} Mbit/s and {chosen.rtt_ms:g} ms each: "
            f"median {middle['seconds']:.2f} s, {middle['of_rate']:.2f} of the rate of plain TCP, "
            f"{middle['of_plain']:.2f} of its speed for as many bytes"
        )
    if chosen.out:
        given = {"mbps": chosen.mbps, "rtt_ms": chosen.rtt_ms, "donors": DONORS}
        chosen.out.write_text(json.dumps({**given, "summary": summary, "runs": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
