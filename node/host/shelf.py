"""The blobs a host offers to others, by content digest. Bytes are borrowed, never copied."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

Blob = bytes | memoryview


@dataclass(slots=True)
class Shelf:
    """Digest -> bytes, with a count of owners: the same content may be put twice."""

    _blobs: dict[bytes, tuple[Blob, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, digest: bytes, blob: Blob) -> None:
        """Offer these bytes until `drop` was called as often as `put`."""
        with self._lock:
            held, owners = self._blobs.get(digest, (blob, 0))
            self._blobs[digest] = (held, owners + 1)

    def drop(self, digest: bytes) -> None:
        """One owner lets go; transfers under way keep their bytes."""
        with self._lock:
            found = self._blobs.get(digest)
            if found is None:
                return
            held, owners = found
            if owners > 1:
                self._blobs[digest] = (held, owners - 1)
            else:
                del self._blobs[digest]

    def get(self, digest: bytes) -> memoryview | None:
        """The bytes under this digest, or None."""
        found = self._blobs.get(digest)
        return None if found is None else memoryview(found[0])

    def __len__(self) -> int:
        return len(self._blobs)
