"""Weights that are on their way to this machine, in files: what has come outlives the daemon.

Each array gathers in a file that is called after its digest. A daemon that is started again, also
after `kill -9` or a power cut, looks at what is there and fetches the rest; nothing in a file is
believed before it was checked. The files are written, not mapped for writing, so a full disk is an
error that is noticed and no signal that ends the process; an array that the disk has no room for
goes on in memory. Reads go through a map, whose pages the kernel drops whenever it likes.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import numpy as np

from host.files.rooms import MemoryRoom, Room
from host.runtime.atomic_files import DiskFull, require_space
from protocol.ids import Digest
from protocol.numerics.buffers import F32

SMALL_BYTES: Final = 1 << 20
"""Below this an array is fetched anew rather than kept in a file."""

BOOKMARK: Final = "bookmark"
"""File beside them: what kept weights are the weights of."""

PIECE_BYTES: Final = 1 << 20

OLD_S: Final = 14 * 86400.0
"""What nobody touched for so long belongs to downloads that nobody goes on with."""

log = logging.getLogger("shoal.weights")


class FileRoom:
    """Bytes of one array in a file, zeros where nothing was written. May be used from any thread.

    In memory from the first write that the disk refuses.
    """

    def __init__(self, path: Path, size_bytes: int, refused: Callable[[str], None]) -> None:
        """refused: gets the disk's words. OSError if the file cannot be opened."""
        self._refused = refused
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = open(os.open(path, flags, 0o600), "r+b", buffering=0)  # noqa: SIM115 - stays open
        self.is_begun = os.fstat(self._file.fileno()).st_blocks > 0
        os.ftruncate(self._file.fileno(), size_bytes)
        # Shared, so that what is written shows; nobody writes through it.
        self._bytes = memoryview(mmap.mmap(self._file.fileno(), size_bytes))
        self.is_in_file = True

    def write(self, start: int, content: bytes | memoryview) -> None:
        with self._lock:
            if self.is_in_file:
                try:
                    self._write(start, memoryview(content))
                except OSError as error:
                    self._refused(str(error))
                    self._into_memory()
                else:
                    return
            self._bytes[start : start + len(content)] = content

    def _write(self, start: int, rest: memoryview) -> None:
        while rest:
            count = os.pwrite(self._file.fileno(), rest, start)
            start, rest = start + count, rest[count:]

    def _into_memory(self) -> None:
        values = np.zeros(len(self._bytes), np.uint8)
        values[:] = self._bytes
        self._bytes, self.is_in_file = memoryview(values.data), False

    def view(self, start: int, end: int) -> memoryview:
        return self._bytes[start:end]

    def values(self) -> F32:
        return np.frombuffer(self._bytes, np.float32)


class BegunWeights:
    """The files of one daemon."""

    def __init__(
        self, folder: Path, room: Callable[[], int | None], *, least_bytes: int = SMALL_BYTES
    ) -> None:
        """room: bytes that may be written now; None for whatever the disk has."""
        self.folder, self._room, self._least_bytes = folder, room, least_bytes
        self._promised: dict[Digest, int] = {}
        """Bytes of the files that were opened, by the arrays' digests."""
        self._is_told = False

    def open(self, root: Digest, size_bytes: int) -> Room:
        """Where the array with this digest gathers: in memory, if it is small or the disk refuses.

        The first refusal is told in the log.
        """
        opened = self._opened(root, size_bytes) if size_bytes >= self._least_bytes else None
        return opened or MemoryRoom(root, size_bytes)

    def _opened(self, root: Digest, size_bytes: int) -> FileRoom | None:
        promised = {**self._promised, root: size_bytes}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            to_come = max(0, sum(promised.values()) - self._written_bytes())
            room = self._room()
            if room is not None and to_come > room:
                self._refuse(f"limits.disk_bytes_max leaves {room:,} bytes")
                return None
            require_space(self.folder, to_come, "a download of weights")
            opened = FileRoom(self.folder / root.hex(), size_bytes, self._refuse)
        except (OSError, DiskFull) as error:
            self._refuse(str(error))
            return None
        self._promised = promised
        return opened

    def _written_bytes(self) -> int:
        files = (self.folder / root.hex() for root in self._promised)
        return sum(file.stat().st_blocks * 512 for file in files if file.exists())

    def _refuse(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            log.warning(
                "weights gather in memory, not in files of %s, so a restart fetches them anew: %s",
                self.folder,
                reason,
            )

    def keep(self, root: Digest, values: F32) -> bool:
        """Write a whole array, for the next life; whether the disk took it."""
        opened = self._opened(root, values.nbytes)
        if opened is None:
            return False
        content = values.data.cast("B")
        for start in range(0, len(content), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            if opened.is_begun or np.frombuffer(piece, np.uint8).any():
                opened.write(start, piece)
        return opened.is_in_file

    def whole(self, root: Digest, size_bytes: int) -> F32 | None:
        """An array that was kept, unchecked; None if there is none."""
        path = self.folder / root.hex()
        try:
            if path.stat().st_size != size_bytes:
                return None
            return FileRoom(path, size_bytes, self._refuse).values()
        except OSError:
            return None

    def keep_only(self, roots: Collection[Digest]) -> None:
        """Removes the files of all other arrays; whoever has one open has it still."""
        wanted = {root.hex() for root in roots}
        with contextlib.suppress(OSError):
            wanted.add(BOOKMARK)
            others = [one.name for one in os.scandir(self.folder) if one.name not in wanted]
            for name in others:
                (self.folder / name).unlink()
        self._promised = {root: size for root, size in self._promised.items() if root in roots}

    def remove(self, roots: Collection[Digest]) -> None:
        """Removes the files of these arrays."""
        for root in roots:
            self._promised.pop(root, None)
            with contextlib.suppress(OSError):
                (self.folder / root.hex()).unlink()

    def clear(self) -> None:
        """Nothing is to come any more."""
        self._promised = {}
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Others of this home may have begun something too.
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()


def forget_old(folder: Path, now_s: float) -> None:
    """Removes the downloads below this folder, each in PROJECT/INSTANCE, that nobody has gone on
    with for two weeks."""
    for place in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            newest_s = max((one.stat().st_mtime for one in place.iterdir()), default=0.0)
            if now_s - newest_s > OLD_S:
                shutil.rmtree(place)
                place.parent.rmdir()
