"""Pause, resume and kill, again and again: what a pause frees, how fast, and what grows.

.venv/bin/python benchmarks/pausing.py [--minutes 10] [--hidden 256] [--out FILE]

A syncer and one learner of real processes train a small Llama on the processor. The owner pauses
the learner, waits, resumes it, lets it train on, kills its trainer now and then, and looks with the
system's own counters: seconds from asking to the end of the trainer's process, memory of all the
learner's processes before and during the pause (what they share counted once), the daemon's own
memory, descriptors and threads, and the counter of local steps, which must go on where it stood.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.small_swarm import SmallSwarm, is_gone, small_swarm, until  # noqa: E402

KILL_EVERY = 3
"""Every so many cycles the trainer is killed while it trains."""


@dataclass
class Cycle:
    """One pause and its end."""

    ended_s: float
    """From asking to the end of the trainer's process."""
    trained_s: float
    """From asking to go on to the next local step."""
    taken_bytes: int
    paused_bytes: int
    daemon_bytes: int
    descriptors: int
    threads: int
    step_paused: int
    step_after: int
    lost_steps: int
    restarts: int


def resident(process: psutil.Process) -> int:
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total


def kill_trainer(swarm: SmallSwarm) -> None:
    """kill -9, and until another one trains."""
    before = swarm.learner(lambda now: now.state == "training" and now.trainer_pid is not None)
    assert before.trainer_pid is not None
    os.kill(before.trainer_pid, signal.SIGKILL)
    swarm.learner(lambda now: now.trainer_restarts > before.trainer_restarts)


def cycle(swarm: SmallSwarm, daemon: psutil.Process, train_s: float, rest_s: float) -> Cycle:
    first = swarm.learner(lambda now: now.state == "training" and now.local_step > 0)
    time.sleep(train_s)
    before = swarm.learner(lambda now: now.local_step > first.local_step)
    taken = resident(daemon)
    asked_s = time.monotonic()
    swarm.tell("pause")
    pid = before.trainer_pid
    until(lambda: True if pid is None or is_gone(pid) else None, 30.0)
    ended_s = time.monotonic() - asked_s
    paused = swarm.learner(lambda now: now.guest is not None and now.guest.is_suspended)
    time.sleep(rest_s)
    at_rest = resident(daemon)
    still = swarm.learner(lambda now: True)
    assert still.local_step == paused.local_step, "a paused learner took a local step"
    own = daemon.memory_full_info().pss
    counts = daemon.num_fds(), daemon.num_threads()
    asked_s = time.monotonic()
    swarm.tell("resume")
    after = swarm.learner(lambda now: now.local_step > paused.local_step)
    return Cycle(
        ended_s=ended_s,
        trained_s=time.monotonic() - asked_s,
        taken_bytes=taken,
        paused_bytes=at_rest,
        daemon_bytes=own,
        descriptors=counts[0],
        threads=counts[1],
        step_paused=paused.local_step,
        step_after=after.local_step,
        lost_steps=after.lost_steps,
        restarts=after.trainer_restarts,
    )


def run(minutes: float, hidden: int, train_s: float, rest_s: float) -> list[Cycle]:
    found: list[Cycle] = []
    with small_swarm(hidden=hidden) as swarm:
        swarm.start_syncer()
        daemon = swarm.start_learner()
        ends_s = time.monotonic() + 60 * minutes
        while time.monotonic() < ends_s:
            found.append(cycle(swarm, daemon, train_s, rest_s))
            print(json.dumps(asdict(found[-1])), flush=True)
            if len(found) % KILL_EVERY == 0:
                kill_trainer(swarm)
    return found


def told(cycles: list[Cycle]) -> dict[str, object]:
    """Medians and extremes; growth from the first third to the last."""
    third = max(1, len(cycles) // 3)

    def growth(name: str) -> float:
        early = statistics.median(getattr(one, name) for one in cycles[1 : 1 + third])
        late = statistics.median(getattr(one, name) for one in cycles[-third:])
        return float(late - early)

    return {
        "cycles": len(cycles),
        "trainer_ended_s": [
            statistics.median(one.ended_s for one in cycles),
            max(one.ended_s for one in cycles),
        ],
        "next_step_s": statistics.median(one.trained_s for one in cycles),
        "memory_training_mib": statistics.median(one.taken_bytes for one in cycles) / 2**20,
        "memory_paused_mib": statistics.median(one.paused_bytes for one in cycles) / 2**20,
        "daemon_growth_mib": growth("daemon_bytes") / 2**20,
        "descriptor_growth": growth("descriptors"),
        "thread_growth": growth("threads"),
        "local_steps": cycles[-1].step_after,
        "lost_steps": cycles[-1].lost_steps,
        "trainer_restarts": cycles[-1].restarts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--train-s", type=float, default=3.0)
    parser.add_argument("--rest-s", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    cycles = run(chosen.minutes, chosen.hidden, chosen.train_s, chosen.rest_s)
    result = told(cycles)
    print(json.dumps(result, indent=1))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
