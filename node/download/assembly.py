"""One version of one fragment, put together from chunks that may come from anywhere, in any order.

What arrived was checked against its digest by whoever fetched it; a chunk's digest is believed
because it stands in a manifest, and a manifest because its digest is certified. What arrived stays,
whatever happens to its donor.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Digest
from protocol.log.records import StateDigests
from protocol.numerics import chunks

F32 = NDArray[np.float32]


@dataclass(slots=True)
class Part:
    """A manifest or a chunk that has not arrived."""

    length: int
    is_manifest: bool
    places: list[memoryview] = field(default_factory=list)
    """Where a chunk belongs: all-zero momentum repeats one chunk many times."""
    asks: set[int] = field(default_factory=set)
    """Numbers of the requests that are under way."""
    failures: int = 0


class Assembly:
    """Value and momentum of one fragment version, as far as they are here."""

    def __init__(self, fragment: int, version: int, state: StateDigests, numel: int) -> None:
        self.fragment = fragment
        self.version = version
        self.state = state
        self.size_bytes = 4 * numel
        """Of each of the two arrays."""
        self.done_bytes = 0
        self.sources: dict[bytes, int] = {}
        """Donor -> bytes of chunks that it sent."""
        self.parts: dict[Digest, Part] = {}
        self._idle: list[Digest] = []
        """Chunks that nobody was asked for."""
        self._numel = numel
        self._arrays: list[F32] = []
        self.manifest_bytes = chunks.manifest_bytes(self.size_bytes)
        for root in (state.theta, state.momentum):
            self.parts[root] = Part(self.manifest_bytes, is_manifest=True)

    @property
    def total_bytes(self) -> int:
        return 2 * self.size_bytes

    @property
    def is_complete(self) -> bool:
        return not self.parts

    @property
    def has_idle_chunks(self) -> bool:
        return bool(self._idle)

    @property
    def unasked(self) -> int:
        """About how many requests could be made: an unknown manifest stands for its chunks."""
        unknown = sum(part.length // chunks.DIGEST_BYTES for _, part in self.manifests())
        return len(self._idle) + unknown

    def manifests(self) -> list[tuple[Digest, Part]]:
        """The manifests that have not arrived."""
        roots = dict.fromkeys((self.state.theta, self.state.momentum))
        found = ((root, self.parts.get(root)) for root in roots)
        return [(root, part) for root, part in found if part is not None and part.is_manifest]

    def arrays(self) -> tuple[F32, F32]:
        """Value and momentum, once complete."""
        assert self.is_complete, "it is complete before it is used"
        return self._arrays[0], self._arrays[1]

    def pick_idle(self, rng: random.Random) -> Digest:
        """Some chunk that nobody was asked for; it counts as asked for from now on."""
        at = rng.randrange(len(self._idle))
        self._idle[at], self._idle[-1] = self._idle[-1], self._idle[at]
        return self._idle.pop()

    def put_back(self, digest: Digest) -> None:
        """Nobody is asked for this chunk any more."""
        part = self.parts.get(digest)
        if part is not None and not part.is_manifest and not part.asks:
            self._idle.append(digest)

    def take_manifest(self, digest: Digest, content: memoryview) -> None:
        """The chunks of an array are known now."""
        del self.parts[digest]
        if not self._arrays:
            # Pages come into being as they are filled.
            self._arrays = [np.empty(self._numel, np.float32) for _ in range(2)]
        roots = (self.state.theta, self.state.momentum)
        for root, array in zip(roots, self._arrays, strict=True):
            if root == digest:
                self._expect(content, memoryview(array.view(np.uint8).data))

    def _expect(self, manifest: memoryview, room: memoryview) -> None:
        for name, (start, end) in zip(
            chunks.digests(manifest), chunks.spans(self.size_bytes), strict=True
        ):
            part = self.parts.get(name)
            if part is None:
                part = self.parts[name] = Part(end - start, is_manifest=False)
                self._idle.append(name)
            part.places.append(room[start:end])

    def take_chunk(self, digest: Digest, content: memoryview, donor: bytes) -> None:
        """A chunk goes to all its places."""
        part = self.parts.pop(digest)
        for place in part.places:
            place[:] = content
            self.done_bytes += len(content)
        self.sources[donor] = self.sources.get(donor, 0) + len(content)
