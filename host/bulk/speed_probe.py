"""A blob without content that syncers give to anybody: how fast it comes is how fast the line is.

`shoal doctor` fetches it before a project is joined. It costs a syncer what any other blob of its
length costs, under the same limits of streams.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from protocol.numerics.outer import digest

SAMPLE_BYTES: Final = 1 << 20


@cache
def content() -> memoryview:
    """The blob."""
    return memoryview(bytes(SAMPLE_BYTES))


@cache
def name() -> bytes:
    """Under which it is asked for."""
    return digest(content())


def find(wanted: bytes) -> memoryview | None:
    """The blob if it is the one that is wanted."""
    return content() if wanted == name() else None
