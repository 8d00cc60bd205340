"""Memory that the daemon and its trainer both see, by a descriptor that is sent over the link."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from host.runtime.memory_files import memory_file, take_room
from protocol.errors import InternalError

Floats = NDArray[np.float32]


class Slot:
    """A buffer of f32 elements that two processes see; `values` is the view on it."""

    def __init__(self, identity: int, numel: int, descriptor: int) -> None:
        """Takes over `descriptor`, a memory file of at least 4 * numel bytes."""
        self.identity = identity
        self.numel = numel
        self.descriptor = descriptor
        # The kernel refuses to map zero bytes, and a fragment may be empty.
        self._map = mmap.mmap(descriptor, max(4 * numel, 1))
        self.values: Floats = np.frombuffer(self._map, dtype=np.float32, count=numel)

    @classmethod
    def create(cls, identity: int, numel: int) -> Self:
        """A new slot of zeros. MemoryError if the machine has no room for it."""
        descriptor = -1
        try:
            descriptor = memory_file("shoal-slot", max(4 * numel, 1))
            return cls(identity, numel, descriptor)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise MemoryError(f"no memory for a slot of {4 * numel} bytes: {error}") from error

    @classmethod
    def in_file(cls, identity: int, numel: int, path: Path) -> Self:
        """A new slot of zeros whose memory is a file on disk, which has no name any more.

        The kernel moves it out of memory when it likes, and frees the room when nobody has the
        slot open, however they end. MemoryError if the disk has no room for it.
        """
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            path.unlink()
            take_room(descriptor, max(4 * numel, 1))
            return cls(identity, numel, descriptor)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise MemoryError(f"no room for {4 * numel} bytes at {path}: {error}") from error

    def relax(self) -> None:
        """Gives the pages of a slot in a file back; its content stays."""
        self._map.madvise(mmap.MADV_DONTNEED)

    @classmethod
    def attach(cls, identity: int, numel: int, descriptor: int) -> Self:
        """The other process' slot. Closes `descriptor`; InternalError if it is too short."""
        try:
            size = os.fstat(descriptor).st_size
            if size < 4 * numel:
                raise InternalError(f"slot {identity} has {size} bytes for {numel} elements")
            slot = cls(identity, numel, descriptor)
        finally:
            os.close(descriptor)  # The map keeps the memory.
        slot.descriptor = -1
        return slot

    def close(self) -> None:
        """Closes the descriptor; the memory goes when the last view of it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
