"""Folders of what was made of data once: filled under another name first, by one process."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import UserError


def filled(folder: Path, is_intact: Callable[[Path], bool], fill: Callable[[Path], None]) -> None:
    """Returns when `folder` is filled: by `fill`, which gets an empty one, unless it is intact.

    Several processes may call this at once; one fills, the others wait. UserError if it cannot be
    written; what `fill` raises passes through.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not (folder.is_dir() and is_intact(folder)):
                _refill(folder, fill)
    except OSError as error:
        raise UserError(
            f"The data cache {folder} cannot be written ({error}). Free some disk space, or name"
            " another cache directory."
        ) from error


def _refill(folder: Path, fill: Callable[[Path], None]) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # Left by a process that was killed.
    partial.mkdir()
    fill(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock that the kernel drops when the process ends, however it ends."""
    with path.open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
