"""Files without a name for processes of one machine: memory that they share, a place to meet."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from host.runtime import stand_ins

ZEROS: Final = bytes(1 << 20)


def memory_file(name: str, size_bytes: int) -> int:
    """The descriptor of a new file of zeros, which the kernel frees when nobody has it any more.

    On Linux it lies in memory and its size is fixed, so that nobody can pull memory from under the
    map of another. Elsewhere it is a temporary file whose name is gone. The room is taken now: if
    there is none, OSError, rather than SIGBUS at the first touch.
    """
    is_native = stand_ins.uses("memfd")
    if is_native:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
        os.unlink(path)
    try:
        take_room(descriptor, size_bytes)
        if is_native:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def take_room(descriptor: int, size_bytes: int) -> None:
    """The file has at least this size, and its room on the disk or in memory.

    What is in it stays, and zeros follow. OSError if there is no room.
    """
    if stand_ins.uses("fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    at = os.fstat(descriptor).st_size
    while at < size_bytes:
        at += os.pwrite(descriptor, ZEROS[: size_bytes - at], at)


class MeetingFile:
    """An empty file that this process and its children open by `path`."""

    def __init__(self, name: str) -> None:
        """OSError if none can be made.

        On Linux it has no name, and the path goes through a descriptor. Elsewhere it lies in a
        temporary folder of its own, which stays if this process is killed.
        """
        self._folder = ""
        self.keep: tuple[int, ...] = ()
        """Descriptors that children must have under the same numbers."""
        if stand_ins.uses("memfd") and stand_ins.uses("descriptor-paths"):
            self.keep = (os.memfd_create(name, os.MFD_CLOEXEC),)
            self.path = f"/proc/self/fd/{self.keep[0]}"
        else:
            self._folder = tempfile.mkdtemp(prefix=f"{name}-")
            self.path = str(Path(self._folder) / "meeting")

    def close(self) -> None:
        """Nobody meets there any more."""
        for descriptor in self.keep:
            os.close(descriptor)
        self.keep = ()
        if self._folder:
            with contextlib.suppress(OSError):  # Somebody cleared the temporary folder.
                shutil.rmtree(self._folder)
