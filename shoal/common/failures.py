"""How a failure looks on the terminal: one line on stderr, the trace in a file, an exit code."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from host.files.home import Home
from protocol import errors
from shoal.common.exit_codes import ExitCode

_home: Home | None = None


def use_home(home: Home) -> None:
    """From now on crash reports go below `home`."""
    global _home
    _home = home


def complain(text: str) -> None:
    """Prints one line of complaint."""
    print(f"error: {' '.join(text.split())}", file=sys.stderr)


def interrupted() -> int:
    """The answer to Ctrl-C in a verb that does not take it as a wish to stop cleanly."""
    print("interrupted", file=sys.stderr)
    return ExitCode.INTERRUPTED


def report(error: Exception, what_next: str = "") -> int:
    """Says what went wrong, and after a bug what comes next; returns the exit code for it."""
    from shoal.common import causes  # Nothing here is wanted while all is well.

    error = errors.sole(error)
    match error:
        case errors.UserError():
            complain(str(error))
            return ExitCode.WRONG_INPUT
        case errors.TransientError():
            complain(str(error))
            return ExitCode.NOT_REACHABLE
        case errors.ShoalError() if not isinstance(error, errors.InternalError):
            complain(str(error))
            return ExitCode.FAILED
    cause = causes.of_this_machine(error)
    what = cause or f"{_what_happened(error)} This is a bug in Shoal."
    try:
        where = f"The report is in {_store(what, error)}"
    except (OSError, errors.ShoalError):
        print(_trace(error), file=sys.stderr)
        where = "Its trace is above"
    complain(f"{what} {where}. {what_next}" if what_next else f"{what} {where}")
    return ExitCode.BUG if cause is None else ExitCode.FAILED


def _what_happened(error: Exception) -> str:
    if isinstance(error, errors.RoleFailed) and isinstance(error.__cause__, Exception):
        return f"The {error.role} stopped. {_what_happened(errors.sole(error.__cause__))}"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:200].rstrip(".")
    if isinstance(error, errors.InternalError) and text:
        return f"{text}."
    return f"{type(error).__name__}: {text}." if text else f"{type(error).__name__}."


def _trace(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _store(what: str, error: Exception) -> Path:
    """Writes what somebody needs who was not there: cause, versions, command, trace."""
    from shoal.common import versions

    directory = (_home or Home()).logs()
    path = directory / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6}.txt"
    facts = [
        ("cause", what),
        ("at", time.strftime("%Y-%m-%d %H:%M:%S %z")),
        ("command", " ".join(map(shlex.quote, sys.argv))),
        ("home", str(directory.parent)),
        *versions.table(),
    ]
    head = "\n".join(f"{name:<{versions.COLUMN}}{text}" for name, text in facts)
    path.write_text(f"{head}\n\n{_trace(error)}")
    return path
