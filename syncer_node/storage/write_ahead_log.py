"""A file that survives a crash: frames behind one another, each with a checksum, so that a
half-written end shows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from host.runtime.atomic_files import sync, writing
from protocol import limits
from protocol.errors import CorruptState, TransientError

CHECKSUM_BYTES = 8
LENGTH_BYTES = 4


class WriteAheadLog:
    """An append-only file of checksummed frames. A half-written last frame is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: list[int] = []
        self._end = 0
        self._synced = 0
        """Frames that an fsync, or an earlier run, left on the disk."""
        self._handle: BinaryIO | None = None
        self.cut_bytes = self._scan()
        self._synced = len(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def synced(self) -> int:
        """Frames that a power failure leaves."""
        return self._synced

    def append(self, content: bytes, *, durable: bool) -> None:
        """Add a frame behind the last; on return it is on disk if `durable`.

        After any failure the file is cut back and opened anew: a failed fsync says nothing about
        what a later one on the same handle would mean.
        """
        checksum = blake3(content).digest(CHECKSUM_BYTES)
        frame = len(content).to_bytes(LENGTH_BYTES, "big") + checksum + content
        with writing(self.path.name):
            try:
                handle = self._open()
                handle.write(frame)
                handle.flush()
                if durable:
                    os.fsync(handle.fileno())
            except OSError:
                self.close()
                with contextlib.suppress(OSError):
                    os.truncate(self.path, self._end)
                raise
        self._offsets.append(self._end)
        self._end += len(frame)
        if durable:
            self._synced = len(self._offsets)

    def flush(self) -> None:
        """On return everything appended is on disk; after a failure what was not is gone."""
        with writing(self.path.name):
            try:
                os.fsync(self._open().fileno())
            except OSError:
                self.close()
                if self._synced < len(self._offsets):
                    self._end = self._offsets[self._synced]
                    del self._offsets[self._synced :]
                with contextlib.suppress(OSError):
                    os.truncate(self.path, self._end)
                raise
        self._synced = len(self._offsets)

    def read(self, at: int) -> bytes:
        """The frame at this position, counted from 0."""
        with self.path.open("rb") as handle:
            handle.seek(self._offsets[at])
            content = _read_frame(handle)
        if content is None:
            raise CorruptState(f"{self.path} is damaged at frame {at}")
        return content

    def frames(self, start: int = 0) -> Iterator[bytes]:
        """All frames from this position on."""
        if start >= len(self._offsets):
            return
        with self.path.open("rb") as handle:
            handle.seek(self._offsets[start])
            for _ in range(start, len(self._offsets)):
                content = _read_frame(handle)
                if content is None:
                    raise CorruptState(f"{self.path} changed while it was read")
                yield content

    def cut(self, count: int) -> None:
        """Keep the first `count` frames; on return the others are gone from the disk.

        After a failure they are gone from here, and from the disk with the next frame appended.
        """
        if count >= len(self._offsets):
            return
        self.close()
        self._end = self._offsets[count]
        del self._offsets[count:]
        self._synced = min(self._synced, count)
        with writing(self.path.name):
            os.truncate(self.path, self._end)
            sync(self.path)

    def append_all(self, contents: Sequence[bytes]) -> None:
        """Add frames with one fsync; after a failure none of them is there."""
        count = len(self._offsets)
        try:
            for content in contents[:-1]:
                self.append(content, durable=False)
            self.append(contents[-1], durable=True)
        except TransientError:
            with contextlib.suppress(TransientError):
                self.cut(count)
            raise

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):
                handle.close()

    def _open(self) -> BinaryIO:
        if self._handle is None:
            os.truncate(self.path, self._end)
            self._handle = self.path.open("ab")
        return self._handle

    def _scan(self) -> int:
        """Find the frames; bytes after the last sound one are cut when something is appended."""
        self.path.touch(mode=0o600)
        with self.path.open("rb") as handle:
            while _read_frame(handle) is not None:
                self._offsets.append(self._end)
                self._end = handle.tell()
        return self.path.stat().st_size - self._end


def _read_frame(handle: BinaryIO) -> bytes | None:
    header = handle.read(LENGTH_BYTES + CHECKSUM_BYTES)
    if len(header) < LENGTH_BYTES + CHECKSUM_BYTES:
        return None
    size = int.from_bytes(header[:LENGTH_BYTES], "big")
    if size > limits.FRAME_BYTES_MAX:
        return None
    content = handle.read(size)
    if len(content) < size or blake3(content).digest(CHECKSUM_BYTES) != header[LENGTH_BYTES:]:
        return None
    return content
