"""Child processes: started, watched, and gone at the end whatever happens.

Every child has its own session, so that Ctrl-C in the terminal reaches its starter only, which
decides how its children end. Processes below the children are remembered while they live: one whose
parent was killed is still found and ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import psutil

from host.files.home import HOME_VARIABLE
from host.runtime import fork_server, parent_death
from host.runtime.fork_server import ForkServer, Started
from host.runtime.python_path import python_path
from protocol.errors import ShoalError
from shoal.common import settings_file

POLL_S: Final = 0.1
LOOK_EVERY_S: Final = 1.0
"""Looking for grandchildren and their memory costs some milliseconds."""

ENDINGS: Final = ((signal.SIGINT, 8.0), (signal.SIGTERM, 4.0), (signal.SIGKILL, 4.0))
"""How a child is asked to end, and how long it may take before it is asked less politely."""

ORPHANS_END_S: Final = 5.0
"""A trainer and a network engine end with their daemon, but only the next time they look."""

TAIL_LINES: Final = 15

TRAINERS_IMPORTS: Final = "node.trainer.tools.slow_imports"
"""Imports what takes a trainer seconds to import."""


class SwarmFailed(ShoalError):
    """The swarm cannot go on. The message is one sentence; `lines` are the end of a child's log."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = list(lines)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which everything is given up."""

    ends_s: float
    after_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds, seconds)

    def check(self, what: str) -> None:
        """SwarmFailed once it has passed."""
        if time.monotonic() > self.ends_s:
            raise SwarmFailed(f"Still waiting for {what} after {self.after_s / 60:.3g} minutes.")


Spawn = Callable[[str, Sequence[str], Mapping[str, str], IO[bytes]], Started]
"""How a program is started: by its name, with this command, environment and output."""


def spawn(
    name: str, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a program that gets SIGTERM when its starter is killed."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**environment, **parent_death.environment_for(signal.SIGTERM)},
        cwd=Path(output.name).parent,
        start_new_session=True,
        preexec_fn=parent_death.before_exec(signal.SIGTERM),
    )


class Child:
    """One process of ours, and the file that it writes to."""

    def __init__(self, name: str, log: Path, start: Callable[[IO[bytes]], Started]) -> None:
        """Starts it. SwarmFailed if the system refuses."""
        self.name = name
        self.log = log
        self.is_stray = False
        """Whether it was ended on purpose, so that its exit code means nothing."""
        self._from = log.stat().st_size if log.exists() else 0
        try:
            with log.open("ab") as output:
                self.process = start(output)
        except OSError as error:
            raise SwarmFailed(f"{name} cannot be started ({error}).") from error

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

    def tail(self) -> list[str]:
        """The last lines that it printed."""
        return self.said().splitlines()[-TAIL_LINES:]

    def failure(self) -> SwarmFailed:
        """What to raise when it has ended and should not have."""
        code = self.process.poll()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return SwarmFailed(f"{self.name} ended unexpectedly with {how}.", self.tail())


class Processes:
    """All processes of one swarm. `spawn` starts each, by its name."""

    def __init__(
        self, folder: Path, deadline: Deadline | None = None, *, spawn: Spawn = spawn
    ) -> None:
        self.folder = folder
        self.deadline = deadline
        self.measures_memory = False
        self.memory_peak_bytes = 0
        """Of us and everything below us at one moment; shared pages are counted once."""
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        self.environment = _environment(folder / "home", temporary)
        """Of children that are started from now on."""
        self._spawn = spawn
        self._fork_server: ForkServer | None = None
        self._children: list[Child] = []
        self._below: dict[int, psutil.Process] = {}
        self._looked_s = -LOOK_EVERY_S

    def import_once(self, module: str = TRAINERS_IMPORTS) -> None:
        """From now on trainers and commands are forked from a process that has imported this.

        Until it has, trainers start as always. Daemons do, whatever happens; and so does everything
        where the system has no fork server.
        """
        if not fork_server.is_available():
            return
        folder = self.folder / "fork"
        folder.mkdir(mode=0o700)
        log = self.folder / "fork-server.log"
        self._fork_server = ForkServer(folder, [module], self.environment, log)
        self.environment[fork_server.VARIABLE] = str(self._fork_server.path)

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """Starts `python -m module arguments` in the swarm's folder and home."""
        command = [sys.executable, "-P", "-m", module, *arguments]
        return self._start(
            name, lambda output: self._spawn(name, command, self.environment, output)
        )

    def _start(self, name: str, starting: Callable[[IO[bytes]], Started]) -> Child:
        child = Child(name, self.folder / f"{name.replace(' ', '-')}.log", starting)
        self._children.append(child)
        return child

    def finish(
        self, name: str, module: str, *arguments: str, tick: Callable[[str], None] = lambda _: None
    ) -> str:
        """Runs a command to its end and returns what it printed. SwarmFailed if it fails.

        `tick` is called all the while, with the line it printed last.
        """
        server = self._fork_server
        while server is not None and server.is_running and not server.is_ready:
            tick("")
            self.wait(name)
        if fork_server.VARIABLE in self.environment and self._spawn is spawn:
            child = self._start(name, lambda output: self._forked(module, arguments, output))
        else:
            child = self.start(name, module, *arguments)
        while child.is_running:
            tick(child.said().rpartition("\n")[0].rpartition("\n")[2])
            self.wait(name)
        if child.process.returncode:
            raise child.failure()
        return child.said()

    def _forked(self, module: str, arguments: Sequence[str], output: IO[bytes]) -> Started:
        return fork_server.start(
            "shoal.__main__" if module == "shoal" else module,
            arguments,
            environment=self.environment,
            output=output.fileno(),
            errors=output.fileno(),
            folder=self.folder,
        )

    def wait(self, what: str, seconds: float = POLL_S) -> None:
        """Lets a moment pass. SwarmFailed once the deadline has."""
        if self.deadline is not None:
            self.deadline.check(what)
        time.sleep(seconds)
        self.look()

    def check(self) -> None:
        """SwarmFailed if a child has failed, other than one that was killed on purpose."""
        for child in self._children:
            if child.process.poll() and not child.is_stray:
                raise child.failure()

    def kill(self, child: Child) -> None:
        """SIGKILL, and until it is gone."""
        self.look(is_forced=True)  # What it leaves behind must be known.
        child.is_stray = True
        child.process.kill()
        child.process.wait()

    def left_behind(self, patience_s: float = ORPHANS_END_S) -> list[str]:
        """Command names of processes that outlive their parents by more than the patience."""
        ends_s = time.monotonic() + patience_s
        while (orphans := self._orphans()) and time.monotonic() < ends_s:
            time.sleep(POLL_S)
        return orphans

    def _orphans(self) -> list[str]:
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
        """Remembers who lives below our children, and how much memory all of us hold."""
        if time.monotonic() - self._looked_s < LOOK_EVERY_S and not is_forced:
            return
        tops = [child.pid for child in self._children if child.is_running]
        if self._fork_server is not None:
            tops.append(self._fork_server.pid)
        for pid in tops:
            with contextlib.suppress(psutil.NoSuchProcess):
                top = psutil.Process(pid)
                for process in (top, *top.children(recursive=True)):
                    self._below[process.pid] = process
        self._below = {pid: one for pid, one in self._below.items() if is_alive(one)}
        if self.measures_memory:
            held = sum(_memory_bytes(one) for one in (psutil.Process(), *self._below.values()))
            self.memory_peak_bytes = max(self.memory_peak_bytes, held)
        self._looked_s = time.monotonic()

    def stop(self) -> list[str]:
        """Ends every process, politely first, and returns the names of those that stayed too long.

        In bounded time none of them is left.
        """
        with contextlib.suppress(psutil.Error):
            self.look(is_forced=True)
        for number, patience_s in ENDINGS:
            for child in self._children:
                if child.is_running:
                    child.is_stray = True
                    child.process.send_signal(number)
            ends_s = time.monotonic() + patience_s
            while any(child.is_running for child in self._children):
                if time.monotonic() > ends_s:
                    break
                time.sleep(POLL_S)
        left = self.left_behind()
        if self._fork_server is not None:
            self._fork_server.close()
        for process in self._below.values():
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil compares start times, so a reused pid is safe.
        return left


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
    """Ours, with a home of its own and our own packages first, wherever we were started.

    Who starts a swarm here wants to see it now: their settings of this machine are left out, and
    training on battery is no reason to pause.
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
