"""Arrays that lie in files rather than in memory, so that a large model does not fill a laptop's.

The files have no names: they vanish with the process, however it ends. They are written, not mapped
for writing, so a full disk is an error that is noticed and no signal that ends the process. Reads
go through a private map, whose pages the kernel drops whenever it likes.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

Keep = Callable[[F32], F32]
"""Gives an array the place where it stays, with the same values."""

log = logging.getLogger("shoal.weights")

SMALL_BYTES: Final = 1 << 20
"""Below this an array stays in memory: a file would cost more than it saves."""

COPIED_NUMEL: Final = 1 << 18


def mapped_file(values: F32) -> mmap.mmap | None:
    """The map of a whole file that these values are; None if they are something else."""
    base: object = values.base
    under: object = base.obj if isinstance(base, memoryview) else None
    return under if isinstance(under, mmap.mmap) and len(under) == values.nbytes else None


def in_memory(values: F32) -> F32:
    """The same values in memory: a copy if they lie in a file, without pages for what is zero."""
    file = mapped_file(values)
    if file is None:
        return values
    copy = np.zeros(values.shape, np.float32)
    for start in range(0, values.size, COPIED_NUMEL):
        part = values[start : start + COPIED_NUMEL]
        if part.view(np.uint32).any():
            copy[start : start + COPIED_NUMEL] = part
    file.madvise(mmap.MADV_DONTNEED)
    return copy


class MappedArrays:
    """Keeps arrays in files of one folder. May be used from any thread."""

    def __init__(
        self,
        folder: Path,
        room: Callable[[], int | None] = lambda: None,
        *,
        least_bytes: int = SMALL_BYTES,
    ) -> None:
        """room: bytes that may be written now; None for whatever the disk has. least_bytes: smaller
        arrays stay in memory."""
        self.folder, self._room, self._least_bytes = folder, room, least_bytes
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._is_told = False

    @property
    def bytes(self) -> int:
        """In files now."""
        return sum(map(len, list(self._maps)))

    def keep(self, values: F32) -> F32:
        """The same values, in a file; `values` itself where they are few, lie in a file already, or
        the disk has no room.

        values: f32, contiguous. The array is not to be changed. The first refusal of the disk is
        told in the log.
        """
        if values.nbytes < self._least_bytes:
            return values
        if (downloaded := mapped_file(values)) is not None:
            self._maps.add(downloaded)
            return values
        room = self._room()
        if room is not None and values.nbytes > room:
            return self._refused(values, f"limits.disk_bytes_max leaves {room:,} bytes")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                rest = values.data.cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
                # Private and never written to: it takes no memory of its own.
                kept = mmap.mmap(file.fileno(), values.nbytes, access=mmap.ACCESS_COPY)
        except OSError as error:
            return self._refused(values, str(error))
        self._maps.add(kept)
        return np.frombuffer(kept, np.float32).reshape(values.shape)

    def _refused(self, values: F32, reason: str) -> F32:
        if not self._is_told:
            self._is_told = True
            log.warning("weights stay in memory, not in files of %s: %s", self.folder, reason)
        return values

    def relax(self) -> None:
        """Gives back the memory of what was read; the values stay."""
        for one in list(self._maps):
            one.madvise(mmap.MADV_DONTNEED)
