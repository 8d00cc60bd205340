"""A small swarm of real daemons on this machine, for benchmarks: started, asked, and ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from host.control import client  # noqa: E402
from host.files.home import Home  # noqa: E402
from protocol.errors import TransientError  # noqa: E402
from protocol.status import DaemonStatus, NodeStatus, SyncerStatus  # noqa: E402
from shoal.common import daemons  # noqa: E402
from shoal.project import file_commands  # noqa: E402
from shoal.project.template import create_text  # noqa: E402

POLL_S = 0.02
START_S = 240.0
STOP_S = 20.0
T = TypeVar("T")


def until(look: Callable[[], T | None], timeout_s: float = START_S) -> T:
    """The first answer that is one; RuntimeError after the time."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_S)
    raise RuntimeError(f"nothing within {timeout_s} s")


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


class SmallSwarm:
    """A home, a project in it, and the daemons that were started there."""

    def __init__(self, folder: Path, *, hidden: int = 128, local_steps: int = 24) -> None:
        self.home = Home(folder / "home")
        self.project = self._project(folder, hidden, local_steps)
        self.processes: list[subprocess.Popen[bytes]] = []

    def _project(self, folder: Path, hidden: int, local_steps: int) -> Path:
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
            "rounds.local_steps": local_steps,
            "limits.tokens": 10**10,
        }
        path = folder / "small.toml"
        path.write_text(create_text("small", changes=changes))
        file_commands.sign(path, self.home, instance="default")
        return path

    @property
    def environment(self) -> dict[str, str]:
        """Ours, with the code beside this file and no owner's settings."""
        return {**os.environ, "SHOAL_CONFIG": os.devnull, "PYTHONPATH": str(ROOT)}

    def command(self, *words: str) -> list[str]:
        """A shoal command in this home."""
        return [sys.executable, "-m", "shoal", "--home", str(self.home.root), *words]

    def start(self, *words: str) -> psutil.Process:
        """Starts a daemon; it ends with the swarm."""
        process = subprocess.Popen(
            self.command(*words, "--listen", "127.0.0.1", "--port", "0"),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return psutil.Process(process.pid)

    def start_syncer(self) -> psutil.Process:
        return self.start("syncer", "run", str(self.project))

    def start_learner(self, name: str = "default", *words: str) -> psutil.Process:
        """Joins with the syncer's link, once there is one."""
        return self.start("join", until(self._link), "--instance", name, "--device", "cpu", *words)

    def _link(self) -> str | None:
        now = self.ask("syncer")
        return now.join_link or None if isinstance(now, SyncerStatus) else None

    def ask(self, role: str, name: str = "default") -> DaemonStatus | None:
        """What a daemon says of itself; None while it does not answer."""
        for one in self.home.daemons():
            if (one.role, one.instance) == (role, name):
                with contextlib.suppress(TransientError):
                    return daemons.ask_status(one)
        return None

    def learner(self, is_so: Callable[[NodeStatus], bool], name: str = "default") -> NodeStatus:
        """The learner's first status that is so."""

        def look() -> NodeStatus | None:
            now = self.ask("learner", name)
            return now if isinstance(now, NodeStatus) and is_so(now) else None

        return until(look)

    def tell(self, verb: str, name: str = "default", role: str = "learner") -> None:
        """Asks a daemon for something, such as a pause."""
        (daemon,) = [d for d in self.home.daemons() if (d.role, d.instance) == (role, name)]
        client.call(daemon.socket, verb)

    def stop(self) -> None:
        """Ends all daemons, in the reverse order of their start."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def small_swarm(*, hidden: int = 128, local_steps: int = 24) -> Iterator[SmallSwarm]:
    """A swarm without daemons yet, in a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        swarm = SmallSwarm(Path(folder), hidden=hidden, local_steps=local_steps)
        try:
            yield swarm
        finally:
            swarm.stop()
