"""The demo's child processes: started, watched, and gone at the end whatever happens.

Every child has its own session, so that Ctrl-C in the terminal reaches the demo only and the demo
decides how its children end. Processes below the children are remembered while they live: one whose
parent was killed is still found and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from host.files.home import HOME_VARIABLE
from host.runtime.python_path import python_path
from protocol.errors import ShoalError
from shoal.common import settings_file

POLL_S: Final = 0.1
LOOK_EVERY_S: Final = 1.0
"""Looking for grandchildren and their memory costs some milliseconds."""

ENDINGS: Final = ((signal.SIGINT, 8.0), (signal.SIGTERM, 4.0), (signal.SIGKILL, 4.0))
"""How a child is asked to end, and how long it may take before it is asked less politely."""

TAIL_LINES: Final = 15
PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""

_libc = ctypes.CDLL(None)


class DemoFailed(ShoalError):
    """The demo cannot go on. The message is one sentence; `lines` are the end of a child's log."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = list(lines)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which the demo gives up."""

    ends_s: float
    after_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds, seconds)

    def check(self, doing: str) -> None:
        """DemoFailed once it has passed."""
        if time.monotonic() > self.ends_s:
            raise DemoFailed(f"The demo was still {doing} after {self.after_s / 60:.3g} minutes.")


class Child:
    """One process of ours, and the file that it writes to."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: dict[str, str]
    ) -> None:
        """Starts it. DemoFailed if the system refuses."""
        self.name = name
        self.log = log
        self.is_stray = False
        """Whether it was ended on purpose, so that its exit code means nothing."""
        self._from = log.stat().st_size if log.exists() else 0
        try:
            with log.open("ab") as out:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=log.parent,
                    start_new_session=True,
                    preexec_fn=_end_with_the_demo,
                )
        except OSError as error:
            raise DemoFailed(f"{name} cannot be started ({error}).") from error

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        """Everything that this process has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")

    def failure(self) -> DemoFailed:
        """What to raise when it has ended and should not have."""
        code = self.process.poll()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return DemoFailed(
            f"{self.name} ended unexpectedly with {how}.", self.said().splitlines()[-TAIL_LINES:]
        )


def _end_with_the_demo() -> None:
    """Runs in the child before its program: if the demo is killed, its children end too."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Children:
    """All processes of one demo."""

    def __init__(self, folder: Path, deadline: Deadline) -> None:
        self.folder = folder
        self.deadline = deadline
        self.memory_peak_bytes = 0
        """Of the demo and everything below it at one moment; shared pages are counted once."""
        self._children: list[Child] = []
        self._below: dict[int, psutil.Process] = {}
        self._looked_s = -LOOK_EVERY_S
        temporary = folder / "tmp"
        temporary.mkdir()
        self._environment = _environment(folder / "home", temporary)

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """Starts `python -m module arguments` in the demo's folder and home."""
        command = [sys.executable, "-P", "-m", module, *arguments]
        child = Child(
            name, command, self.folder / f"{name.replace(' ', '-')}.log", self._environment
        )
        self._children.append(child)
        return child

    def finish(self, name: str, module: str, *arguments: str, tick: Callable[[str], None]) -> str:
        """Runs a command to its end and returns what it printed. DemoFailed if it fails.

        `tick` is called all the while, with the line it printed last.
        """
        child = self.start(name, module, *arguments)
        while child.is_running:
            tick(child.said().rpartition("\n")[0].rpartition("\n")[2])
            self.wait(f"waiting for {name}")
        if child.process.returncode:
            raise child.failure()
        return child.said()

    def wait(self, doing: str) -> None:
        """Lets a moment pass. DemoFailed if the demo has taken too long."""
        self.deadline.check(doing)
        time.sleep(POLL_S)
        self.look()

    def check(self) -> None:
        """DemoFailed if a child has failed, other than one that the demo killed."""
        for child in self._children:
            if child.process.poll() and not child.is_stray:
                raise child.failure()

    def kill(self, child: Child) -> None:
        """SIGKILL, as a part of the show."""
        self.look(is_forced=True)  # What it leaves behind must be known.
        child.is_stray = True
        child.process.kill()
        child.process.wait()

    def left_behind(self) -> list[str]:
        """Command names of processes that outlived their parents, the demo's children excluded."""
        ours = {child.pid for child in self._children} | {os.getpid()}
        living = [one for one in self._below.values() if is_alive(one)]
        known = ours | {one.pid for one in living}
        orphans = []
        for process in living:
            with contextlib.suppress(psutil.Error):
                if process.pid not in ours and process.ppid() not in known:
                    orphans.append(process.name())
        return orphans

    def look(self, *, is_forced: bool = False) -> None:
        """Remembers who lives below the demo, and how much memory all of them hold."""
        if time.monotonic() - self._looked_s < LOOK_EVERY_S and not is_forced:
            return
        me = psutil.Process()
        for process in me.children(recursive=True):
            if self._below.get(process.pid) != process:
                self._below[process.pid] = process
        self._below = {pid: one for pid, one in self._below.items() if is_alive(one)}
        held = sum(_memory_bytes(one) for one in [me, *self._below.values()])
        self.memory_peak_bytes = max(self.memory_peak_bytes, held)
        self._looked_s = time.monotonic()

    def stop(self) -> None:
        """Ends every process, politely first; in bounded time none of them is left."""
        with contextlib.suppress(psutil.Error):
            self.look(is_forced=True)
        for number, patience_s in ENDINGS:
            for child in self._children:
                if child.is_running:
                    child.process.send_signal(number)
            ends_s = time.monotonic() + patience_s
            while any(child.is_running for child in self._children):
                if time.monotonic() > ends_s:
                    break
                time.sleep(POLL_S)
        for process in self._below.values():
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil compares start times, so a reused pid is safe.


def is_alive(process: psutil.Process) -> bool:
    """Whether this very process still runs; one that only waits to be collected does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _memory_bytes(process: psutil.Process) -> int:
    """Its proportional share of memory; 0 where the system does not say."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, OSError):
        return 0


def _environment(home: Path, temporary: Path) -> dict[str, str]:
    """Ours, with a home of its own and our own packages first, wherever the demo was started.

    Who starts a demo wants to see it now: their settings of this machine are left out, and training
    on battery is no reason to pause.
    """
    return settings_file.without_settings(os.environ) | {
        HOME_VARIABLE: str(home),
        settings_file.known("when.on_battery").variable: "train",
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
        # Threads that spin while they wait made training five times slower on a busy machine.
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def shown(*arguments: str) -> str:
    """A command line as people type it, with a join link shortened."""
    words = (f"{one[:14]}…" if one.startswith("shoal:") else one for one in arguments)
    return " ".join(shlex.quote(one) if "…" not in one else f"'{one}'" for one in words)
