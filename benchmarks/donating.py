"""What giving weights to a joiner costs the donor's inner loop.

.venv/bin/python benchmarks/donating.py [--mbps 50] [--times 60] [--out FILE]

A small torch loop runs on one core, as the trainer does that leaves one core free. A donor process
and its network engine run wherever the system puts them; a joiner on the other cores fetches from
it without pause, or rests. Short times of rest and of work alternate. Told are three ratios of
local steps per second while donating to those at rest: the median over pairs; that of the 90th
percentiles, which is what a machine without other work would show; and the median per second of
the trainer's own CPU time, which leaves out whoever else ran, and shows what caches and memory
cost. The joiner, which in life is another machine, is part of all three.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bootstrap_lab import host, states  # noqa: E402
from host.addresses import parse_peer  # noqa: E402
from host.options import DONATE_MBPS  # noqa: E402
from protocol.errors import ShoalError  # noqa: E402
from protocol.ids import short  # noqa: E402
from protocol.numerics import chunks  # noqa: E402

MEGABYTES = 32
STREAMS = 3
SETTLE_S = 0.2


async def join(home: Path) -> None:
    """Fetch one donor's weights again and again, from each `go` to the next line; say how much."""
    transport = host(home, [], "127.0.0.1")
    await transport.start_with_retry(lambda *_: None)
    print(json.dumps(transport.addresses()), flush=True)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    donor = bytes.fromhex((await reader.readline()).decode())
    wanted = [
        (name, len(blob))
        for theta, _ in states(MEGABYTES)
        for name, blob in list(chunks.blobs(chunks.manifest(theta), theta))[1:]
    ]
    count = 0

    async def fetch(name: bytes, length: int) -> None:
        former = 0

        def came(held: int) -> None:
            nonlocal count, former
            count, former = count + held - former, held

        await transport.fetch(donor, name, length, on_progress=came)

    async def keep_fetching(at: int) -> None:
        while True:
            try:
                await fetch(*wanted[at % len(wanted)])
            except ShoalError as error:
                print(f"fetching from {short(donor)}: {error}", file=sys.stderr)
            at += STREAMS

    while await reader.readline():
        count = 0
        tasks = [asyncio.create_task(keep_fetching(at)) for at in range(STREAMS)]
        await reader.readline()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print(count, flush=True)
    await transport.close()


def train(core: int) -> None:
    """Local steps for ever; answers each line with steps and seconds since the last."""
    os.sched_setaffinity(0, {core})
    import select

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(32, 256)
    steps, begun_s, cpu_s = 0, time.monotonic(), time.process_time()
    print("ready", flush=True)
    while True:
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            print(steps, time.monotonic() - begun_s, time.process_time() - cpu_s, flush=True)
            steps, begun_s, cpu_s = 0, time.monotonic(), time.process_time()


class Child:
    """A process that answers lines."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def cpu_s(self) -> float:
        whole = psutil.Process(self.process.pid)
        times = [one.cpu_times() for one in [whole, *whole.children(recursive=True)]]
        return sum(each.user + each.system for each in times)


def speeds(trainer: Child, window_s: float) -> tuple[float, float]:
    """Local steps per second, and per second that the trainer had its core."""
    time.sleep(SETTLE_S)
    trainer.tell("")
    trainer.hear()
    time.sleep(window_s)
    trainer.tell("")
    steps, seconds, cpu_s = map(float, trainer.hear().split())
    return steps / seconds, steps / cpu_s


def best(speeds_seen: list[float]) -> float:
    """The 90th percentile: how fast it is while nobody else is in the way."""
    return statistics.quantiles(speeds_seen, n=10)[-1]


def measure(chosen: argparse.Namespace, home: Path) -> dict:
    """Pairs of windows, one at rest and one donating, in changing order."""
    core = max(os.sched_getaffinity(0))
    others = sorted(os.sched_getaffinity(0) - {core}) or [core]
    trainer = Child(__file__, "--role", "trainer", "--core", str(core))
    joiner = Child(__file__, "--role", "joiner", "--home", str(home / "joiner"))
    bootstrap = json.loads(joiner.hear())
    whole = psutil.Process(joiner.process.pid)
    for process in [whole, *whole.children(recursive=True)]:
        process.cpu_affinity(others)
    donor = Child(
        str(ROOT / "benchmarks" / "bootstrap_lab.py"),
        *("--donor", str(home / "donor"), "--listen", "127.0.0.1", "--bootstrap", *bootstrap),
        *("--sizes", str(MEGABYTES), "--mbps", str(chosen.mbps)),
    )
    address = json.loads(donor.hear())[0]
    joiner.tell(parse_peer(address).key.hex())
    trainer.hear()
    pairs, given_bytes, donor_s, joiner_s, given_s = [], 0, 0.0, 0.0, 0.0
    for number in range(chosen.times + 1):
        rates: dict[bool, tuple[float, float]] = {}
        for is_giving in (False, True) if number % 2 else (True, False):
            before = donor.cpu_s(), joiner.cpu_s(), time.monotonic()
            if is_giving:
                joiner.tell("go")
            rates[is_giving] = speeds(trainer, chosen.window_s)
            if is_giving:
                joiner.tell("stop")
                given_bytes += int(joiner.hear())
                donor_s += donor.cpu_s() - before[0]
                joiner_s += joiner.cpu_s() - before[1]
                given_s += time.monotonic() - before[2]
        if number:  # The first pair warms everything up.
            pairs.append((rates[False], rates[True]))
    for child in (donor, joiner, trainer):
        child.process.communicate()
    ratios = [giving[0] / resting[0] for resting, giving in pairs]
    on_cpu = [giving[1] / resting[1] for resting, giving in pairs]
    return {
        "mbps": chosen.mbps,
        "cores": os.cpu_count(),
        "ratio": statistics.median(ratios),
        "ratio_quiet": best([one[0] for _, one in pairs]) / best([one[0] for one, _ in pairs]),
        "ratio_on_cpu": statistics.median(on_cpu),
        "quartiles": statistics.quantiles(ratios, n=4),
        "given_mbps": given_bytes * 8e-6 / given_s,
        "donor_cores": donor_s / given_s,
        "joiner_cores": joiner_s / given_s,
        "pairs": pairs,
    }


def main() -> int:
    """Prints the ratio and writes everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbps", type=float, default=DONATE_MBPS)
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--window-s", type=float, default=0.5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--role", choices=("trainer", "joiner"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role == "trainer":
        train(chosen.core)
        return 0
    if chosen.role == "joiner":
        uvloop.run(join(chosen.home))
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        found = measure(chosen, Path(home))
    low, _, high = found["quartiles"]
    print(
        f"limit {found['mbps']:g} Mbit/s: gave {found['given_mbps']:.0f} Mbit/s with "
        f"{found['donor_cores']:.2f} cores (the joiner used {found['joiner_cores']:.2f}); "
        f"inner loop at {found['ratio']:.3f} of its speed at "
        f"rest (quartiles {low:.3f} to {high:.3f}, {len(found['pairs'])} pairs), "
        f"{found['ratio_quiet']:.3f} where nobody else is in the way, "
        f"{found['ratio_on_cpu']:.3f} while it has its core"
    )
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
