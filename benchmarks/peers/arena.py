"""One contender at work: its processes, in a network of their own where the machine allows it.

With root the interfaces' counters and the list of processes are a contender's alone, daemons
included. Without it, traffic is not counted, and processes are those that descend from the ones
started here.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.peers.contenders import Contender
from benchmarks.peers.networks import Network
from tests.netlab import namespaces

HERE = Path(__file__).parent
ANSWER_S = 90.0
TICKS = os.sysconf("SC_CLK_TCK")


class Late(RuntimeError):
    """A process did not answer in time."""


class Member:
    """A process of a contender, its lines read by a thread."""

    def __init__(
        self, popen: subprocess.Popen[str], role: str, lines: queue.Queue[str | None] | None = None
    ) -> None:
        """lines: where they go, if not into a queue of its own."""
        self.popen = popen
        self.role = role
        self._lines = queue.Queue[str | None]() if lines is None else lines
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def say(self, what: dict[str, Any]) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(what) + "\n")
        self.popen.stdin.flush()

    def hear(self, until_s: float) -> dict[str, Any]:
        """The next answer; Late if there is none until then or the process has ended."""
        try:
            line = self._lines.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            raise Late(f"no answer from {self.role}") from None
        if line is None:
            raise Late(f"{self.role} has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def family(self) -> list[psutil.Process]:
        """The process and what it started; nobody once it has gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self.popen.pid)
            return [whole, *whole.children(recursive=True)]
        return []

    def kill(self) -> None:
        """With what it started, as a power cut would."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()


class Contestant:
    """A contender that runs, from `start` until the block ends."""

    def __init__(
        self,
        contender: Contender,
        task: dict[str, Any],
        folder: Path,
        network: Network,
        answer_s: float = ANSWER_S,
    ) -> None:
        """network: is closed in the end."""
        self.answer_s = answer_s
        self.contender = contender
        self.folder = folder
        self._task = {**task, "variant": contender.variant, "folder": str(folder)}
        self._network = network
        self.members: list[Member] = []

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.role == "worker"]

    @property
    def heard_until_s(self) -> float:
        """When an answer to a question that is asked now is late."""
        return time.monotonic() + self.answer_s

    def start(self) -> None:
        """Late, with the end of its log, where a process does not come up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for role, rank in self.contender.roles(self._task["workers"]):
            self.members.append(Member(self._launch(role, rank), role))
        until_s = self.heard_until_s
        places = [member.hear(until_s)["place"] for member in self.members]
        self.all(do="connect", places=places)

    def _launch(self, role: str, rank: int) -> subprocess.Popen[str]:
        parent, node, network = os.getpid(), node_of(role, rank), self._network

        def before() -> None:
            network.enter(node)
            namespaces.die_with(parent)

        task = {**self._task, "role": role, "rank": rank}
        task |= {"host": network.host(node), "interface": network.interface}
        with (self.folder / f"{node}.log").open("w") as log:
            return subprocess.Popen(
                [self.contender.python, str(HERE / self.contender.script), json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=before,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
            )

    def all(self, *, is_failure_told: bool = False, **what: Any) -> list[dict[str, Any]]:
        """Everybody's answer to the same question; RuntimeError where one failed."""
        for member in self.members:
            member.say(what)
        until_s = self.heard_until_s
        found = [member.hear(until_s) for member in self.members]
        for member, one in zip(self.members, found, strict=True):
            if "failed" in one and not is_failure_told:
                raise RuntimeError(f"{self.contender.name}, {member.role}: {one['failed']}")
        return found

    def pids(self) -> list[int]:
        """Of all its processes, what they started included."""
        if inodes := self._network.inodes():
            return [pid for pid in namespaces.processes_in(inodes) if pid != os.getpid()]
        return [one.pid for member in self.members for one in member.family()]

    def cpu_s(self) -> float:
        """Processor seconds so far of all its processes, those that ended and were reaped too."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(field) for field in fields[11:15])
        return ticks / TICKS

    def wire_bytes(self) -> int | None:
        """Received so far on its interfaces, headers included."""
        return self._network.received_bytes()

    def forget_peaks(self) -> None:
        """Peak memory counts from now on."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peaks(self) -> dict[str, float]:
        """MiB: of the process with most, and of all together."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                line = next(line for line in lines if line.startswith("VmHWM"))
                found.append(int(line.split()[1]) / 1024)
        return {"busiest_mib": max(found, default=0.0), "all_mib": sum(found)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._network.close()


def node_of(role: str, rank: int) -> str:
    """Where the process of that role runs."""
    return f"{role}{max(rank, 0)}"
