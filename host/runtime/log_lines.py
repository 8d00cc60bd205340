"""The line of a daemon's log, as it is written to its file and as people read it."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import Struct

FILE_BYTES_MAX = 8 << 20
FILES_KEPT = 3
"""Older files of one log: `NAME.1` is the newest of them."""

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error", "critical")


class LogLine(Struct, kw_only=True, omit_defaults=True):
    """One JSON object of a log file."""

    at: float
    """Wall clock, Unix seconds."""
    level: Level
    source: str = msgspec.field(name="from")
    """Which part of the daemon."""
    text: str
    fact: str = ""
    """Name of the fact that was told, if it was one."""
    trace: str = ""

    def human(self, *, with_date: bool = False) -> str:
        """`12:34:56  text`, with the level in front only when it is not ordinary."""
        form = "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S"
        level = "" if self.level in ("debug", "info") else f"{self.level}: "
        text = f"{time.strftime(form, time.localtime(self.at))}  {level}{self.text}"
        return f"{text}\n{self.trace}" if self.trace else text


def parse(line: bytes) -> LogLine | None:
    """The line, or None for what no daemon of ours wrote, such as a line cut off by a full disk."""
    try:
        return msgspec.json.decode(line, type=LogLine)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
