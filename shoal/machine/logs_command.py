"""The `logs` verb: what daemons wrote to their rotated files, together and in order of time."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter, validators

from host.files.home import DaemonRole, Home, LogFile
from host.runtime.log_lines import FILES_KEPT, LEVELS, Level, LogLine, parse
from protocol.errors import TransientError
from shoal.common.choices import HomeHere, OnlyInstance, OnlyRole, option, switch
from shoal.common.exit_codes import ExitCode

LOOK_EVERY_S = 0.25
"""How often a followed file is looked at."""

LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A line of a daemon's log."""

    line: LogLine
    raw: bytes
    daemon: str
    """Role and instance."""


@dataclass(slots=True)
class LogTail:
    """One log file, read to its end again and again, across its rotation."""

    daemon: str
    path: Path
    _file: BinaryIO | None = None
    _rest: bytes = b""
    """The beginning of a line whose end is not written yet."""

    def read(self) -> Iterator[Found]:
        """What was written since the last call; everything at the first."""
        while self._opened() is not None:
            yield from self._lines()
            if not self._is_replaced():
                return
            self.close()

    def close(self) -> None:
        """Let the file go; the next read begins with whatever lies at its place then."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _opened(self) -> BinaryIO | None:
        if self._file is None:
            try:
                self._file = self.path.open("rb")
            except FileNotFoundError:
                return None
        return self._file

    def _is_replaced(self) -> bool:
        """Whether another file lies there now: the daemon began a new one."""
        assert self._file is not None
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # Between two steps of the rotation.
        return now.st_ino != os.fstat(self._file.fileno()).st_ino

    def _lines(self) -> Iterator[Found]:
        assert self._file is not None
        for piece in self._file:
            self._rest += piece
            if self._rest.endswith(b"\n") or len(self._rest) > LINE_BYTES_MAX:
                whole, self._rest = self._rest, b""
                if (line := parse(whole)) is not None:
                    yield Found(line, whole.rstrip(), self.daemon)


@dataclass(slots=True)
class LogView:
    """Which lines are shown, and how."""

    level: Level = "info"
    lines: int = 50
    """How many of the past; 0 shows none."""
    is_json: bool = False
    names_daemons: bool = False
    _day: str = field(default="", init=False)

    def wants(self, found: Found) -> bool:
        """Whether the line is loud enough."""
        return LEVELS.index(found.line.level) >= LEVELS.index(self.level)

    def show(self, found: Iterable[Found]) -> None:
        """Prints the lines, oldest first, and a line for each new day."""
        for one in sorted(found, key=lambda one: one.line.at):
            print(self._text(one))
        sys.stdout.flush()

    def _text(self, found: Found) -> str:
        if self.is_json:
            return found.raw.decode(errors="replace")
        day = time.strftime("%Y-%m-%d", time.localtime(found.line.at))
        head = f"-- {day}\n" if day != self._day else ""
        self._day = day
        who = f"{found.daemon}  " if self.names_daemons else ""
        clock, _, text = found.line.human().partition("  ")
        return f"{head}{clock}  {who}{text}"


def show(
    *,
    follow: Annotated[bool, switch("Keep printing new lines.", name=["--follow", "-f"])] = False,
    lines: Annotated[
        int,
        Parameter(
            name=["--lines", "-n"],
            help="How many of the newest lines.",
            validator=validators.Number(gte=0),
        ),
    ] = 50,
    level: Annotated[Level, option("Skip less important lines.")] = "info",
    role: OnlyRole = None,
    instance: OnlyInstance = None,
    json: Annotated[
        bool | None,
        Parameter(
            help="Print JSON lines, or text; text on a terminal, JSON otherwise.",
            negative="--text",
        ),
    ] = None,
    home: HomeHere,
) -> int:
    """Prints the newest lines of the logs of this home, and with `follow` what comes.

    TransientError where no daemon that fits has written one.
    """
    kept = logs_of(home, role=role, instance=instance)
    if not kept:
        wanted = " ".join(word for word in (role or "daemon", instance or "") if word)
        raise TransientError(
            f"No {wanted} has written a log in {home.root}. Name another place with --home, or "
            "start one: `shoal join LINK` or `shoal syncer run PROJECT`."
        )
    view = LogView(
        level=level,
        lines=lines,
        is_json=not sys.stdout.isatty() if json is None else json,
        names_daemons=len(kept) > 1,
    )
    tails = {log.path: LogTail(_called(log), log.path) for log in kept}
    view.show(_past(tails.values(), view))
    if follow:
        _follow(home, role, instance, tails, view)
    return ExitCode.DONE


def logs_of(home: Home, *, role: DaemonRole | None, instance: str | None) -> list[LogFile]:
    """The logs of the daemons that fit."""
    return [
        log
        for log in home.written_logs()
        if role in (None, log.role) and instance in (None, log.instance)
    ]


def _called(log: LogFile) -> str:
    return f"{log.role} {log.instance}"


def _past(tails: Iterable[LogTail], view: LogView) -> list[Found]:
    """The newest lines, from older files too where the newest one does not have so many."""
    newest: list[Found] = []
    for tail in tails:
        kept: deque[Found] = deque((one for one in tail.read() if view.wants(one)), view.lines)
        for number in range(1, FILES_KEPT + 1):
            older = LogTail(tail.daemon, tail.path.with_name(f"{tail.path.name}.{number}"))
            if len(kept) >= view.lines or not older.path.exists():
                break
            room = view.lines - len(kept)
            before = deque((one for one in older.read() if view.wants(one)), room)
            older.close()
            kept.extendleft(reversed(before))
        newest.extend(kept)
    newest.sort(key=lambda one: one.line.at)
    return newest[max(0, len(newest) - view.lines) :]


def _follow(
    home: Home,
    role: DaemonRole | None,
    instance: str | None,
    tails: dict[Path, LogTail],
    view: LogView,
) -> None:
    """Prints what is written, also by daemons that begin later, until Ctrl-C."""
    try:
        while True:
            time.sleep(LOOK_EVERY_S)
            for log in logs_of(home, role=role, instance=instance):
                tails.setdefault(log.path, LogTail(_called(log), log.path))
            view.names_daemons = len(tails) > 1
            view.show(one for tail in tails.values() for one in tail.read() if view.wants(one))
    except KeyboardInterrupt:
        pass  # the way to end following
