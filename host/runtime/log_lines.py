"""The line of a daemon's log, as it is written to its file and as people read it."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import Struct

from protocol import decoders

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
        """`12:34:56  text`, with the level in front only when it is not ordinary.

        Names and words of strangers are part of it: nothing in it can move a cursor.
        """
        form = "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S"
        level = "" if self.level in ("debug", "info") else f"{self.level}: "
        clock = time.strftime(form, time.localtime(self.at))
        text = f"{clock}  {level}{harmless(self.text)}"
        return f"{text}\n{harmless_lines(self.trace)}" if self.trace else text


def harmless(text: str) -> str:
    """The text with a question mark for each character that is not to be seen."""
    return "".join(char if char.isprintable() else "?" for char in text)


def harmless_lines(text: str) -> str:
    """The same of several lines, which stay lines."""
    return "\n".join(map(harmless, text.split("\n")))


def parse(line: bytes) -> LogLine | None:
    """The line, or None for what no daemon of ours wrote, such as a line cut off by a full disk."""
    try:
        return decoders.json_decoder(LogLine).decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
