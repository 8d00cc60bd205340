"""What a daemon without a trainer takes: memory beyond its imports, and processor time when idle.

.venv/bin/python benchmarks/footprint.py [--seconds 60] [--hidden 128] [--out FILE]

Real daemons on loopback: a learner whose trainer is parked because its owner paused it, with its
syncer, and then the syncer alone. Beside each daemon a bare interpreter imports the same modules
and waits; the difference is what the daemon takes. Processor time is what the system counted over
the seconds, for the daemon and for its network engine (p2pd, a program of its own).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.small_swarm import small_swarm

SETTLE_S = 20.0
MODULES = {"syncer": "syncer_node.daemon.syncer_daemon", "learner": "node.daemon.learner_daemon"}
BARE = "import sys, importlib; importlib.import_module(sys.argv[1]); print(flush=True); input()"


@dataclass
class Taken:
    """What one process takes."""

    rss_mb: float
    pss_mb: float
    own_mb: float
    """Pages that nobody else has (uss)."""
    threads: int
    descriptors: int
    core_frac: float = 0.0
    """Of one core, over the seconds that were measured."""


@dataclass
class Row:
    """One daemon at rest."""

    what: str
    daemon: Taken
    engine: Taken
    bare: Taken
    seconds: float

    @property
    def beyond_mb(self) -> float:
        """Resident memory beyond that of its imports."""
        return self.daemon.rss_mb - self.bare.rss_mb


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def taken(process: psutil.Process) -> Taken:
    memory = process.memory_full_info()
    return Taken(
        memory.rss / 1e6,
        memory.pss / 1e6,
        memory.uss / 1e6,
        process.num_threads(),
        process.num_fds(),
    )


@contextlib.contextmanager
def bare(module: str) -> Iterator[psutil.Process]:
    """An interpreter that imported what a daemon imports, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", BARE, module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.communicate(b"\n")


@dataclass
class Daemon:
    """A daemon under its role, and its network engine."""

    what: str
    role: str
    process: psutil.Process

    @property
    def engine(self) -> psutil.Process:
        (found,) = [one for one in self.process.children() if "p2pd" in one.name()]
        return found


def measured(idle: list[Daemon], seconds: float) -> Iterator[Row]:
    """All of them over the same seconds, each beside an interpreter with its imports."""
    with contextlib.ExitStack() as stack:
        beside = [stack.enter_context(bare(MODULES[one.role])) for one in idle]
        pairs = [(one.process, one.engine) for one in idle]
        before = [[cpu_s(process) for process in pair] for pair in pairs]
        began_s = time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        for one, pair, was, imports in zip(idle, pairs, before, beside, strict=True):
            row = Row(one.what, taken(pair[0]), taken(pair[1]), taken(imports), took_s)
            row.daemon.core_frac = (cpu_s(pair[0]) - was[0]) / took_s
            row.engine.core_frac = (cpu_s(pair[1]) - was[1]) / took_s
            yield row


def run(seconds: float, hidden: int) -> Iterator[Row]:
    with small_swarm(hidden=hidden) as swarm:
        swarm.start_first()
        swarm.start_learner(threads=None)
        syncer, learner = (psutil.Process(one.pid) for one in swarm.running.values())
        swarm.await_learner(lambda now: now.merged > 4)
        swarm.tell("learner", "pause")
        swarm.await_learner(lambda now: now.guest is not None and now.guest.is_suspended)
        time.sleep(SETTLE_S)
        parked = Daemon("learner, trainer parked", "learner", learner)
        yield from measured([parked, Daemon("its syncer", "syncer", syncer)], seconds)
        swarm.tell("learner", "stop")
        time.sleep(SETTLE_S)
        yield from measured([Daemon("syncer that nobody uses", "syncer", syncer)], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    rows = []
    for row in run(chosen.seconds, chosen.hidden):
        rows.append(asdict(row))
        print(
            f"{row.what}: {row.daemon.rss_mb:.0f} MB resident ({row.daemon.own_mb:.0f} its own), "
            f"{row.beyond_mb:.0f} beyond its imports ({row.bare.rss_mb:.0f}); "
            f"{row.daemon.core_frac:.2%} of a core; engine {row.engine.rss_mb:.0f} MB, "
            f"{row.engine.core_frac:.2%}; {row.daemon.threads} threads, "
            f"{row.daemon.descriptors} descriptors; over {row.seconds:.0f} s",
            flush=True,
        )
    if chosen.out:
        chosen.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
