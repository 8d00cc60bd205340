"""Files replaced as a whole: written beside their place, fsynced and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import TransientError

DISK_FREE_BYTES_MIN = 256 << 20
"""Merging pauses before the disk is so full that other programs suffer."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, a quota is used up, or this process may not make so long a file."""


class DiskFull(TransientError):
    """There is no room; merging pauses and resumes by itself."""


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn the operating system's complaints into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"the disk is full: {what} was not written; free some space") from error
        raise TransientError(f"{what} was not written: {error.strerror}") from error


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    with writing(path.name):
        replace_file(path, content)
        sync(path.parent)


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """The file has this content, or on an OSError what it had before."""
    with replacing(path) as partial:
        partial.write_bytes(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then replaces `path` on disk; where writing fails nothing does.

    What is no file, such as /dev/null or a pipe, is written to as it is: nobody wants it replaced.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_space(root: Path, size_bytes: int = 0, what: str = "merging") -> None:
    """Raise DiskFull unless the disk of this directory has so many bytes and the reserve free."""
    free, needed = shutil.disk_usage(root).free, DISK_FREE_BYTES_MIN + size_bytes
    if free < needed:
        raise DiskFull(
            f"the disk of {root} has {free >> 20} MB left of the "
            f"{needed >> 20} MB that {what} needs; free some space"
        )
