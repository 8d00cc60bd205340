"""Where the bytes of an array gather while they come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from blake3 import blake3

from protocol.ids import Digest
from protocol.numerics import chunks
from protocol.numerics.buffers import F32


class Room(Protocol):
    """Bytes of one array, zeros where nothing was written."""

    @property
    def is_begun(self) -> bool:
        """Whether something may be in it from a life before: to be checked before it is used."""
        ...

    def write(self, start: int, content: bytes | memoryview) -> None:
        """Put bytes at their place. From any thread; of two that overlap, either may win."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """The bytes of a span that was written, or was found to be right."""
        ...

    def values(self) -> F32:
        """The whole array."""
        ...


Rooms = Callable[[Digest, int], Room]
"""The room of an array, by its digest; the number is that of its bytes."""


class MemoryRoom:
    """In memory. Pages come into being as they are filled; of what stays zero none does."""

    is_begun = False

    def __init__(self, root: Digest, size_bytes: int) -> None:
        self._values: F32 = np.zeros(size_bytes // 4, np.float32)
        self._bytes = memoryview(self._values.view(np.uint8).data)

    def write(self, start: int, content: bytes | memoryview) -> None:
        self._bytes[start : start + len(content)] = content

    def view(self, start: int, end: int) -> memoryview:
        return self._bytes[start:end]

    def values(self) -> F32:
        return self._values


def kept_chunks(room: Room, manifest: bytes | memoryview, size_bytes: int) -> frozenset[int]:
    """Which chunks of an array are in its room from a life before, by their places.

    From any thread; reads all that is there, if there is anything.
    """
    if not room.is_begun:
        return frozenset()
    named = zip(chunks.digests(manifest), chunks.spans(size_bytes), strict=True)
    return frozenset(
        index
        for index, (name, span) in enumerate(named)
        if blake3(room.view(*span)).digest() == name
    )
