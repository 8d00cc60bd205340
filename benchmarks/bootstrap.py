"""How fast a joiner gets its weights from three learners whose uplinks are shaped.

.venv/bin/python benchmarks/bootstrap.py [--sizes 10,100] [--mbps 40] [--times 5] [--out FILE]

Four hosts on loopback, each a process with a network engine of its own. The donors serve through
the token bucket that `shoal join --donate-mbps` sets. Told is the share of the three uplinks
together that the joiner used, from asking to the last verified byte. Sizes are interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import uvloop

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from host.bulk.blob_store import BlobStore  # noqa: E402
from host.files import keystore  # noqa: E402
from host.network.leader_discovery import LearnerNotice, learners_topic  # noqa: E402
from host.network.token_bucket import BURST_S, TokenBucket  # noqa: E402
from host.runtime.lifecycle import background  # noqa: E402
from host.transport import Transport  # noqa: E402
from node.download.fetcher import StateFetcher  # noqa: E402
from node.download.locator import Locator  # noqa: E402
from node.machine.jobs import FetchState  # noqa: E402
from protocol import wire  # noqa: E402
from protocol.numerics.versions import StateManifests, state_manifests  # noqa: E402

PROJECT = bytes(32)
FRAGMENTS = 8
DONORS = 3
BLOCK = 128
LOOPBACK = "127.0.0.1"


def states(megabytes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Value and momentum of each fragment, the same in every process."""
    rng = np.random.default_rng(megabytes)
    numel = round(megabytes * 1e6 / (8 * FRAGMENTS * BLOCK)) * BLOCK
    return [
        (rng.random(numel, dtype=np.float32), rng.random(numel, dtype=np.float32))
        for _ in range(FRAGMENTS)
    ]


def host(home: Path, bootstrap: list[str], listen: str = LOOPBACK) -> Transport:
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


def start_donor(
    home: Path, bootstrap: list[str], chosen: argparse.Namespace
) -> subprocess.Popen[bytes]:
    sizes = ",".join(map(str, chosen.sizes))
    return subprocess.Popen(
        [
            *(sys.executable, __file__, "--donor", str(home), "--bootstrap", *bootstrap),
            *("--sizes", sizes, "--mbps", str(chosen.mbps)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


async def measure(chosen: argparse.Namespace, home: Path) -> list[dict]:
    sizes = chosen.sizes
    models = {}
    for size in sizes:
        model = states(size)
        models[size] = ([state_manifests(*state) for state in model], model[0][0].size)
    del model
    transport = host(home / "joiner", [])
    await transport.start_with_retry(lambda *_: None)
    places = [home / f"donor{at}" for at in range(DONORS)]
    donors = [start_donor(place, transport.addresses(), chosen) for place in places]
    results = []
    try:
        for donor in donors:
            assert donor.stdout is not None
            await asyncio.get_running_loop().run_in_executor(None, donor.stdout.readline)
        for time_number in range(chosen.times):
            for size in sizes:
                await asyncio.sleep(0.5)
                found = await fetch(transport, *models[size])
                # A donor that rested may send a little at once: that is not the planner's merit.
                size_bytes = models[size][1] * 8 * FRAGMENTS
                best_s = size_bytes / (DONORS * chosen.mbps * 1e6 / 8) - BURST_S
                results.append({"megabytes": size, **found, "ratio": best_s / found["seconds"]})
                print(f"{time_number} {size} MB: {found['seconds']:.2f} s, at best {best_s:.2f} s")
    finally:
        for donor in donors:
            donor.communicate()
        await transport.close()
    return results


def main() -> int:
    """Prints the median ratio of each size and writes everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(part) for part in text.split(",") if part],
        default=[10, 100],
    )
    parser.add_argument("--mbps", type=float, default=40.0, help="uplink of each donor")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--donor", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--listen", default=LOOPBACK, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.donor:
        uvloop.run(donate(chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        results = uvloop.run(measure(chosen, Path(home)))
    summary = []
    for size in chosen.sizes:
        mine = [result for result in results if result["megabytes"] == size]
        ratio = statistics.median(result["ratio"] for result in mine)
        seconds = statistics.median(result["seconds"] for result in mine)
        sources = min(len(result["sources"]) for result in mine)
        summary.append(
            {"megabytes": size, "seconds": seconds, "ratio": ratio, "sources_min": sources}
        )
        print(
            f"{size} MB from {DONORS} donors of {chosen.mbps:g} Mbit/s: median {seconds:.2f} s, "
            f"{ratio:.2f} of the links' rate, at least {sources} sources"
        )
    if chosen.out:
        given = {"mbps": chosen.mbps, "donors": DONORS, "cores": os.cpu_count()}
        chosen.out.write_text(json.dumps({**given, "summary": summary, "runs": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
