"""Writing what somebody asked for, and saying so plainly where that is impossible."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from protocol.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


FILE_CHARS: Final = 100
"""Width of output that goes to a file."""


def console() -> Console:
    """Where tables go: as wide as the terminal, if there is one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else FILE_CHARS)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, an error of the system is a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from error


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """A file that must not be there yet. UserError if it is, or cannot be written."""
    with writing(path):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError as error:
            raise UserError(
                f"{path} exists and is not overwritten. Choose another name."
            ) from error
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def write_json(path: Path, content: object) -> None:
    """The content as JSON for people and programs. UserError if it cannot be written."""
    with writing(path):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def check_folder(path: Path | None) -> None:
    """UserError now, and not after minutes of work, if a report has no place to go."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"There is no directory {path.absolute().parent} for the report.")
