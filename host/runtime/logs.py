"""What a daemon writes: lines for people on the terminal, everything as JSON in a rotated file."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from host.runtime.log_lines import (
    FILE_BYTES_MAX,
    FILES_KEPT,
    LEVELS,
    LogLine,
    harmless,
    harmless_lines,
)
from protocol import trace
from protocol.trace import Fact

LOUD = (
    trace.SessionOpened,
    trace.SessionClosed,
    trace.SessionRefused,
    trace.LinkChanged,
    trace.BookmarkRead,
    trace.WeightsReady,
    trace.TrainerChanged,
    trace.MomentsTaken,
    trace.CheckpointScored,
    trace.LossesDiffer,
    trace.LearnerSuspended,
    trace.GuardWentBack,
    trace.RestoreGivenUp,
    trace.ProgressTakenBack,
    trace.ProgressGivenBack,
    trace.PushMeasured,
    trace.PhaseChanged,
)
"""Facts that belong on a terminal; all others only go to the file."""

STANDS: Final = "following the log"
"""What a learner's link says once it stands (`node.machine.syncer_link.Link`)."""

TAIL_BYTES: Final = 8 << 10
TAIL_LINES: Final = 20

facts = logging.getLogger("shoal.facts")


class _Lines(logging.Formatter):
    """A record as JSON, one object a line, or for people."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        # By number: the network library gives some levels names of its own.
        loudness = min(max(record.levelno // 10, 1), len(LEVELS))
        line = LogLine(
            at=round(record.created, 3),
            level=LEVELS[loudness - 1],
            source=record.name.removeprefix("shoal."),
            text=harmless(record.getMessage()),
            fact=getattr(record, "fact", ""),
            trace=harmless_lines(self.formatException(record.exc_info)) if record.exc_info else "",
        )
        return msgspec.json.encode(line).decode() if self._is_json else line.human()


class _KeptFile(logging.handlers.RotatingFileHandler):
    """The rotated file. Made again if somebody removes it; a disk that is full only costs lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._follow()
        except OSError:
            self.handleError(record)
        else:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that could not be written is gone; what else fails over a line is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _follow(self) -> None:
        """Leave a file that has lost its name: nobody would ever read what is written there."""
        path = Path(self.baseFilename)
        try:
            is_ours = self.stream is not None and os.path.samestat(
                path.stat(), os.fstat(self.stream.fileno())
            )
        except OSError:
            is_ours = False
        if not is_ours:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            former, self.stream = self.stream, self._open()
            if former is not None:
                with contextlib.suppress(OSError):  # Lines that a full disk did not take.
                    former.close()


class _NewsOfTheLink(logging.Filter):
    """Lets each thing that the link to the syncer says through once, until it stands again.

    A learner tries every few seconds for as long as the syncer is away, hours at times.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "fact", "") != trace.LinkChanged.__name__:
            return True
        text = record.getMessage()
        if text == STANDS:
            self._said.clear()
            return True
        is_new = text not in self._said
        self._said.add(text)
        return is_new


def set_up(path: Path, *, is_json: bool | None) -> None:
    """Send Shoal's log to the terminal and to a rotated file; silence foreign chatter.

    is_json: what stderr gets; None: JSON unless it is a terminal. The file is always JSON.
    """
    shoal = logging.getLogger("shoal")
    shoal.setLevel(logging.DEBUG)
    shoal.propagate = False
    for old in list(shoal.handlers):
        shoal.removeHandler(old)
        old.close()
    kept = _KeptFile(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8")
    kept.setFormatter(_Lines(is_json=True))
    shoal.addHandler(kept)
    screen = logging.StreamHandler(sys.stderr)
    screen.setLevel(logging.INFO)
    screen.addFilter(lambda record: not getattr(record, "is_only_for_file", False))
    screen.addFilter(_NewsOfTheLink())
    screen.setFormatter(_Lines(is_json=not sys.stderr.isatty() if is_json is None else is_json))
    shoal.addHandler(screen)
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)


def tell(fact: Fact) -> None:
    """Log a fact at the level it deserves."""
    if isinstance(fact, trace.PeerMisbehaved | trace.TapeStopped):
        level = logging.WARNING
    else:
        level = logging.INFO if isinstance(fact, LOUD) else logging.DEBUG
    if facts.isEnabledFor(level):
        facts.log(level, "%s", fact.text, extra={"fact": type(fact).__name__})


def log_tail(path: Path) -> tuple[str, ...]:
    """The last lines of a log; none if there is no log."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
            lines = log.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-TAIL_LINES:])
