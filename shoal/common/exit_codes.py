"""What the exit codes of `shoal` mean; scripts may rely on them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """How a verb ended."""

    DONE = 0
    FAILED = 1
    WRONG_INPUT = 2
    NOT_REACHABLE = 3
    REFUSED = 4
    BUG = 70
    INTERRUPTED = 130


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.DONE: "done, or stopped as asked",
    ExitCode.FAILED: "failed",
    ExitCode.WRONG_INPUT: "wrong input: the message says what to change",
    ExitCode.NOT_REACHABLE: "no answer, or not now: try again later",
    ExitCode.REFUSED: "refused by the project",
    ExitCode.BUG: "a bug in Shoal",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


def epilogue() -> str:
    """The table of exit codes for the end of `shoal --help`."""
    lines = (f"{int(code):>5}  {text}" for code, text in MEANINGS.items())
    return "\n".join(["Exit codes", *lines])
