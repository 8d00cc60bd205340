"""One contender at work: its processes, in a network of their own where the machine allows it.

With root the processes of a contender share a network namespace that has nothing but loopback, so
that the interface's counters and the list of processes are theirs alone, daemons included. Without
it, traffic is not counted, and processes are those that descend from the ones started here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import queue
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.peers.contenders import Contender
from tests.netlab import namespaces

HERE = Path(__file__).parent
ANSWER_S = 90.0
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
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


def network() -> int | None:
    """A descriptor of a new network namespace with loopback only; None where refused."""
    libc = ctypes.CDLL(None, use_errno=True)

    def make() -> int:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            up = struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING)
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    try:
        return namespaces.in_thread(make)
    except OSError:
        return None


class Contestant:
    """A contender that runs, from `start` until the block ends."""

    def __init__(self, contender: Contender, task: dict[str, Any], folder: Path) -> None:
        self.contender = contender
        self.folder = folder
        self._task = {**task, "variant": contender.variant, "folder": str(folder)}
        self._network = network()
        self.members: list[Member] = []

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.role == "worker"]

    def start(self) -> None:
        """Late, with the end of its log, where a process does not come up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        roles = [(role, -1) for role in self.contender.services]
        roles += [("worker", rank) for rank in range(self._task["workers"])]
        for role, rank in roles:
            self.members.append(Member(self._launch(role, rank), role))
        until_s = time.monotonic() + ANSWER_S
        places = [member.hear(until_s)["place"] for member in self.members]
        self.all(do="connect", places=places)

    def _launch(self, role: str, rank: int) -> subprocess.Popen[str]:
        parent, inside = os.getpid(), self._network

        def before() -> None:
            if inside is not None:
                namespaces.enter(inside)
            namespaces.die_with(parent)

        task = {**self._task, "role": role, "rank": rank}
        with (self.folder / f"{role}{max(rank, 0)}.log").open("w") as log:
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
        until_s = time.monotonic() + ANSWER_S
        found = [member.hear(until_s) for member in self.members]
        for member, one in zip(self.members, found, strict=True):
            if "failed" in one and not is_failure_told:
                raise RuntimeError(f"{self.contender.name}, {member.role}: {one['failed']}")
        return found

    def pids(self) -> list[int]:
        """Of all its processes, what they started included."""
        if self._network is not None:
            inode = os.fstat(self._network).st_ino
            return [pid for pid in namespaces.processes_in({inode}) if pid != os.getpid()]
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
        """Received so far on its loopback interface, headers included."""
        if self._network is None:
            return None
        text = Path(f"/proc/{self.members[0].popen.pid}/net/dev").read_text()
        line = next(line for line in text.splitlines() if line.strip().startswith("lo:"))
        return int(line.partition(":")[2].split()[0])

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
        if self._network is not None:
            os.close(self._network)
            self._network = None
