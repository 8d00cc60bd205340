"""Merges a second while strangers attack, over those while as much processor is merely burnt.

    python benchmarks/hostile.py [--seconds 40] [--only racers,announcers]

One syncer and three honest learners as real processes on loopback; then keys of strangers that
speak the real protocol (`tests/net/hostile_keys.py`). They run on the machine of the syncer and
take what it needs of the processor, which attackers elsewhere would not. So each attack is compared
with two times: a quiet one before it, and one after it in which idle loops, as many as the
attackers' processes, burn what each of these took. What an attack costs beyond that is what it
makes the syncer and the learners do.

The ratios are of the worst window of 20 seconds to the mean of the other time. Beside them: the
share of a core that the syncer took with its engine, and how late its event loop was at most, which
is what a message waits for. Other work on the machine makes it late as well: compare columns.

Loopback only, and every process is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from host.control import client
from host.runtime.loop_lag import KEPT_S
from shoal.local_swarm.swarm import ANSWER_S
from tests.net.hostile_swarm import HostileSwarm

HONEST = ("ada", "bob", "eve")
ATTACKS = {"racers": 3, "announcers": 12, "returners": 6, "flooders": 2}
WINDOW_S = 20.0
LOOK_S = 0.5
TURN_S = 0.01
"""Of an idle loop: it burns its share of each turn at once, and sleeps for the rest."""
SHARE_MIN = 0.002
"""Of a core; processes below that are no loop of their own."""


@dataclass(frozen=True)
class Watched:
    """What was seen in one stretch of time."""

    rates: list[float]
    """Merges a second in each window of `WINDOW_S`."""
    syncer: float
    """Share of a core that the syncer and its engine took."""
    late_s: float
    """How late the syncer's event loop was at most."""

    @property
    def mean(self) -> float:
        return fmean(self.rates)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    whole = psutil.Process(pid)
    return [whole, *whole.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds so far; none of one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def watch(swarm: HostileSwarm, seconds: float) -> Watched:
    """So many seconds from now on."""
    syncer = tree(swarm.running["syncer"].pid)
    seen: list[tuple[float, int]] = []
    begun_s, before_s = time.monotonic(), sum(map(cpu_s, syncer))
    while time.monotonic() < begun_s + seconds:
        now = swarm.syncer()
        if now is not None:
            seen.append((time.monotonic(), now.swarm.global_step))
        time.sleep(LOOK_S)
    took_s = time.monotonic() - begun_s
    taken_s = sum(map(cpu_s, syncer)) - before_s
    place = swarm.daemon("syncer").socket
    late = client.call(place, "loop_lag", ANSWER_S, over_s=min(KEPT_S, took_s))
    rates = []
    for at, (first_s, first) in enumerate(seen):
        later = [one for one in seen[at:] if one[0] >= first_s + WINDOW_S]
        if later:
            rates.append((later[0][1] - first) / (later[0][0] - first_s))
    # A syncer that answered nobody for so long merged nothing that anybody could have seen.
    return Watched(rates or [0.0], taken_s / took_s, float(late["max_s"]))


def burn(share: float) -> None:
    """Takes that share of a core, until it is killed or nobody waits for it."""
    parent = os.getppid()
    while os.getppid() == parent:
        until_s = time.thread_time() + share * TURN_S
        begun_s = time.monotonic()
        while time.thread_time() < until_s:
            pass
        time.sleep(max(0.0, TURN_S - (time.monotonic() - begun_s)))


@contextlib.contextmanager
def burning(shares: list[float]) -> Iterator[None]:
    """Idle loops that take these shares of a core."""
    start = multiprocessing.get_context("fork").Process  # Which has nothing to import.
    loops = [start(target=burn, args=(share,), daemon=True) for share in shares]
    try:
        for loop in loops:
            loop.start()
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.join()


def attack(swarm: HostileSwarm, kind: str, seconds: float) -> tuple[Watched, list[float]]:
    """What was seen under an attack, and the share of a core that each of its processes took."""
    with swarm.attacked_by(kind, ATTACKS[kind]) as strangers:
        theirs = tree(strangers.pid)
        begun_s, before = time.monotonic(), [cpu_s(one) for one in theirs]
        seen = watch(swarm, seconds)
        took_s = time.monotonic() - begun_s
        shares = [(cpu_s(one) - was) / took_s for one, was in zip(theirs, before, strict=True)]
    return seen, [share for share in shares if share >= SHARE_MIN]


def row(kind: str, quiet: Watched, attacked: Watched, burnt: Watched, shares: list[float]) -> str:
    """One line of the table."""
    worst = min(attacked.rates)
    three = (quiet, attacked, burnt)
    cells = [
        kind,
        str(ATTACKS[kind]),
        f"{sum(shares):.2f}",
        ", ".join(f"{one.mean:.2f}" for one in three),
        f"{worst / quiet.mean:.2f}",
        f"{worst / burnt.mean:.2f}",
        ", ".join(f"{one.syncer:.3f}" for one in three),
        ", ".join(f"{one.late_s * 1e3:.0f}" for one in three),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """\
Three figures in a cell: quiet, attacked, and while loops burn what the attackers took.

| attack | keys | cores they took | merges/s | worst 20 s to quiet | to burnt | syncer, cores \
| loop late at most, ms |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each stretch of time")
    parser.add_argument("--only", default=",".join(ATTACKS), help="attacks, with commas")
    options = parser.parse_args()
    if not WINDOW_S < options.seconds <= KEPT_S:
        parser.error(f"--seconds is more than {WINDOW_S:g}, and at most {KEPT_S:g}")
    with (
        tempfile.TemporaryDirectory(prefix="shoal-hostile-") as folder,
        HostileSwarm(Path(folder)) as swarm,
    ):
        swarm.prepare(rounds__quorum=1, rounds__local_steps=12, limits__evaluate_every=1_000_000)
        swarm.begin()
        for name in HONEST:
            swarm.start_learner(name, "--duty", "0.3", "--no-evaluate")
        swarm.all_merge(*HONEST)
        watch(swarm, WINDOW_S)
        print(HEAD, flush=True)
        for kind in options.only.split(","):
            quiet = watch(swarm, options.seconds)
            attacked, shares = attack(swarm, kind, options.seconds)
            with burning(shares):
                burnt = watch(swarm, options.seconds)
            print(row(kind, quiet, attacked, burnt, shares), flush=True)


if __name__ == "__main__":
    main()
