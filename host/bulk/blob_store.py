"""The blobs a host offers to others, by content digest. Bytes are borrowed, never copied.

States are offered as a group of blobs, their manifests and chunks. A newer version does not pull
the rug from under a download: a retired group that somebody asked for lately stays for a while.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protocol.ids import Digest

Blob = bytes | memoryview

LINGER_S = 20.0
"""A retired group stays for as long as somebody asks for it this often."""

RETIRED_MAX = 2
"""Retired groups at once: memory for two versions of a fragment, no more."""


@dataclass(slots=True, eq=False)
class Offer:
    """A group of blobs that come and go together."""

    names: tuple[Digest, ...]
    asked_s: float = -math.inf


@dataclass(slots=True)
class _Entry:
    blob: Blob
    owners: int
    offer: Offer | None


def _no_time() -> float:
    return 0.0


@dataclass(slots=True)
class BlobStore:
    """Digest -> bytes, with a count of owners: the same content may be put twice."""

    clock: Callable[[], float] = _no_time
    """Seconds that only grow. Where they stand still, whatever was asked for once lingers until
    there are too many."""
    _blobs: dict[Digest, _Entry] = field(default_factory=dict)
    _retired: list[Offer] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, digest: Digest, blob: Blob) -> None:
        """Offer these bytes until `drop` was called as often as `put`."""
        with self._lock:
            self._put(digest, blob, None)

    def drop(self, digest: Digest) -> None:
        """One owner lets go; transfers under way keep their bytes."""
        with self._lock:
            found = self._blobs.get(digest)
            if found is None:
                return
            found.owners -= 1
            if not found.owners:
                del self._blobs[digest]

    def put_group(self, blobs: Iterable[tuple[Digest, Blob]]) -> Offer:
        """Offer these blobs until the group is retired."""
        parts = list(blobs)
        offer = Offer(tuple(name for name, _ in parts))
        with self._lock:
            for name, blob in parts:
                self._put(name, blob, offer)
        return offer

    def retire(self, offer: Offer) -> None:
        """A newer version takes the group's place; it goes when nobody is downloading it."""
        with self._lock:
            self._retired.append(offer)
            self._sweep()

    def get(self, digest: Digest) -> memoryview | None:
        """The bytes under this digest, or None."""
        with self._lock:
            found = self._blobs.get(digest)
            if found is None:
                return None
            if found.offer is not None:
                found.offer.asked_s = self.clock()
            return memoryview(found.blob)

    def is_grouped(self, digest: Digest) -> bool:
        """Whether this blob belongs to a state rather than being offered by itself."""
        found = self._blobs.get(digest)
        return found is not None and found.offer is not None

    def __len__(self) -> int:
        return len(self._blobs)

    def _put(self, digest: Digest, blob: Blob, offer: Offer | None) -> None:
        # The newer bytes are kept, so that the older version's memory can be freed before it.
        former = self._blobs.get(digest)
        if former is None:
            self._blobs[digest] = _Entry(blob, 1, offer)
        else:
            self._blobs[digest] = _Entry(blob, former.owners + 1, offer or former.offer)

    def _sweep(self) -> None:
        now_s = self.clock()
        wanted = [offer for offer in self._retired if now_s - offer.asked_s < LINGER_S]
        wanted.sort(key=lambda offer: offer.asked_s)
        kept = wanted[-RETIRED_MAX:]
        for offer in self._retired:
            if offer not in kept:
                for name in offer.names:
                    self.drop(name)
        self._retired = kept
