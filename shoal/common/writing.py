"""Writing a file that somebody asked for, and saying so plainly where that is impossible."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from protocol.errors import UserError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, an error of the system is a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from error


def write_json(path: Path, content: object) -> None:
    """The content as JSON for people and programs. UserError if it cannot be written."""
    with writing(path):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def check_folder(path: Path | None) -> None:
    """UserError now, and not after minutes of work, if a report has no place to go."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"There is no directory {path.absolute().parent} for the report.")
