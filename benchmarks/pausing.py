"""Pause and resume, again and again: what a pause frees, how fast, and whether anything grows.

.venv/bin/python benchmarks/pausing.py [--minutes 10] [--hidden 256] [--out FILE]

A syncer and one learner of real processes train a small Llama on the processor. The owner pauses
the learner, waits, resumes it, lets it train on, and looks with the system's own counters: seconds
from asking to the end of the trainer's process, memory of all the learner's processes before and
during the pause (what they share counted once), the daemon's own memory, descriptors and threads,
and the counter of local steps, which must go on where it stood.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from node.host import control_client  # noqa: E402
from node.host.home import Daemon, Home  # noqa: E402
from protocol.errors import TransientError  # noqa: E402
from protocol.status import DaemonStatus, NodeStatus, SyncerStatus  # noqa: E402
from shoal import daemons, projects  # noqa: E402
from shoal.project_text import create_text  # noqa: E402

POLL_S = 0.02
START_S = 120.0
T = TypeVar("T")


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


def ask(home: Home, role: str) -> DaemonStatus | None:
    for one in home.daemons():
        if one.role == role:
            with contextlib.suppress(TransientError):
                return daemons.ask_status(Daemon(one.role, one.instance, one.socket))
    return None


def until(look: Callable[[], T | None], timeout_s: float = START_S) -> T:
    """The first answer that is one; RuntimeError after the time."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_S)
    raise RuntimeError(f"nothing within {timeout_s} s")


def learner(home: Home, is_so: Callable[[NodeStatus], bool]) -> NodeStatus:
    def look() -> NodeStatus | None:
        now = ask(home, "learner")
        return now if isinstance(now, NodeStatus) and is_so(now) else None

    return until(look)


def resident(process: psutil.Process) -> int:
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total


def is_gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def cycle(home: Home, daemon: psutil.Process, train_s: float, rest_s: float) -> Cycle:
    first = learner(home, lambda now: now.state == "training" and now.local_step > 0)
    time.sleep(train_s)
    before = learner(home, lambda now: now.local_step > first.local_step)
    taken, socket = resident(daemon), home.socket("learner")
    asked_s = time.monotonic()
    control_client.call(socket, "pause")
    pid = before.trainer_pid
    until(lambda: True if pid is None or is_gone(pid) else None, 30.0)
    ended_s = time.monotonic() - asked_s
    paused = learner(home, lambda now: now.guest is not None and now.guest.is_parked)
    time.sleep(rest_s)
    at_rest = resident(daemon)
    still = learner(home, lambda now: True)
    assert still.local_step == paused.local_step, "a paused learner took a local step"
    own = daemon.memory_full_info().pss
    counts = daemon.num_fds(), daemon.num_threads()
    asked_s = time.monotonic()
    control_client.call(socket, "resume")
    after = learner(home, lambda now: now.local_step > paused.local_step)
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


def project(folder: Path, home: Home, hidden: int) -> Path:
    text = folder / "text.txt"
    text.write_text("".join(p.read_text() for p in sorted(ROOT.glob("*/*.py"))))
    changes = {
        "model.fragments": 4,
        "model.config.hidden_size": hidden,
        "model.config.intermediate_size": 4 * hidden,
        "model.config.num_hidden_layers": 4,
        "model.config.num_attention_heads": 4,
        "model.config.num_key_value_heads": 4,
        "model.config.max_position_embeddings": 64,
        "data.source": "file",
        "data.location": str(text),
        "data.sequence_tokens": 64,
        "data.block_sequences": 16,
        "training.batch_sequences": 8,
        "rounds.quorum": 1,
        "rounds.local_steps": 24,
        "limits.tokens": 10**10,
    }
    path = folder / "pausing.toml"
    path.write_text(create_text("pausing", changes=changes))
    projects.sign(path, home, instance="default")
    return path


@contextlib.contextmanager
def swarm(home: Home, path: Path, *options: str) -> Iterator[psutil.Process]:
    """A syncer and one learner on the processor, of this project; the learner's daemon."""
    environ = {**os.environ, "SHOAL_CONFIG": os.devnull, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "shoal", "--home", str(home.root)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    listen = ["--listen", "127.0.0.1", "--port", "0"]
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([*command, *words, *listen], env=environ, **quiet)  # type: ignore[call-overload]
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start("syncer", "run", str(path))

        def link() -> str | None:
            now = ask(home, "syncer")
            return now.join_link or None if isinstance(now, SyncerStatus) else None

        joined = start("join", until(link), "--device", "cpu", *options)
        yield psutil.Process(joined.pid)


def run(folder: Path, minutes: float, hidden: int, train_s: float, rest_s: float) -> list[Cycle]:
    home = Home(folder / "home")
    found: list[Cycle] = []
    with swarm(home, project(folder, home, hidden)) as daemon:
        ends_s = time.monotonic() + 60 * minutes
        while time.monotonic() < ends_s:
            found.append(cycle(home, daemon, train_s, rest_s))
            print(json.dumps(asdict(found[-1])), flush=True)
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
    with tempfile.TemporaryDirectory(prefix="shoal-pausing-") as folder:
        cycles = run(Path(folder), chosen.minutes, chosen.hidden, chosen.train_s, chosen.rest_s)
    result = told(cycles)
    print(json.dumps(result, indent=1))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
