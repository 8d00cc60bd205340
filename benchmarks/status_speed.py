"""How long `shoal status` takes, on a quiet machine and beside a swarm that trains on all cores.

.venv/bin/python benchmarks/status_speed.py [--times 21] [--learners 2] [--out FILE]

A syncer and learners of real processes on loopback. First all learners are paused, then all train.
Timed from outside: the whole command, from the start of its interpreter to its end; and apart from
that the question alone, as a program asks it that already runs. Beside each, in the same seconds,
an interpreter that does nothing, which is the least that any command can take here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.small_swarm import SmallSwarm, small_swarm  # noqa: E402
from host.control import client  # noqa: E402

SETTLE_S = 5.0


@dataclass
class Times:
    """Seconds, medians and the longest of each."""

    what: str
    daemons: int
    command_s: tuple[float, float]
    nothing_s: tuple[float, float]
    """An interpreter without a program."""
    question_s: tuple[float, float]
    """Of one daemon, the slowest to answer."""


def timed(command: list[str], swarm: SmallSwarm) -> float:
    began_s = time.monotonic()
    subprocess.run(command, env=swarm.environment, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began_s


def asked(swarm: SmallSwarm) -> float:
    longest_s = 0.0
    for daemon in swarm.home.daemons():
        began_s = time.monotonic()
        client.call(daemon.socket, "status")
        longest_s = max(longest_s, time.monotonic() - began_s)
    return longest_s


def measured(what: str, swarm: SmallSwarm, times: int) -> Times:
    found: list[list[float]] = [[], [], []]
    for _ in range(times):
        found[0].append(timed(swarm.command("status"), swarm))
        found[1].append(timed([sys.executable, "-c", "pass"], swarm))
        found[2].append(asked(swarm))
    summed = [(statistics.median(one), max(one)) for one in found]
    return Times(what, len(swarm.home.daemons()), *summed)


def run(times: int, learners: int) -> list[Times]:
    names = [f"learner{number}" for number in range(1, learners + 1)]
    with small_swarm() as swarm:
        swarm.start_syncer()
        for name in names:
            swarm.start_learner(name, "--threads", "1")
        for name in names:
            swarm.learner(lambda now: now.merged > 2, name)
        time.sleep(SETTLE_S)
        found = [measured("beside training", swarm, times)]
        for name in names:
            swarm.tell("pause", name)
            swarm.learner(lambda now: now.guest is not None and now.guest.is_suspended, name)
        time.sleep(SETTLE_S)
        found.append(measured("quiet", swarm, times))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=21)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = run(chosen.times, chosen.learners)
    for one in found:
        said = (
            f"{median:.3f} s (longest {longest:.3f})"
            for median, longest in (one.command_s, one.nothing_s, one.question_s)
        )
        command, nothing, question = said
        print(
            f"{one.what}, {one.daemons} daemons: shoal status {command}; "
            f"an empty interpreter {nothing}; the question alone {question}"
        )
    if chosen.out:
        chosen.out.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()
