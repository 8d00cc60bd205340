"""A state's content address: a tree of two levels, so that any piece can be checked by itself.

The bytes of a flat f32 array are cut into chunks of `STATE_CHUNK_BYTES`, the last one shorter. The
manifest is the plain blake3 digests of the chunks, one after the other; the state's digest is the
plain blake3 of the manifest. Manifest and chunks are therefore ordinary blobs: whoever trusts the
digest can fetch each of them from anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from protocol import limits
from protocol.errors import InternalError
from protocol.numerics.buffers import F32
from protocol.numerics.codecs import require_flat
from protocol.numerics.workers import ALONE, Workers

DIGEST_BYTES = 32

SECTIONS = 64
"""Of an array's chunks: who has only some of them says so by one bit for each section."""

ALL_SECTIONS = (1 << SECTIONS) - 1


def spans(size_bytes: int) -> list[tuple[int, int]]:
    """Start and end of each chunk of a state of this size, in order."""
    step = limits.STATE_CHUNK_BYTES
    return [(start, min(start + step, size_bytes)) for start in range(0, size_bytes, step)]


def manifest_bytes(size_bytes: int) -> int:
    """How long the manifest of a state of this size is."""
    return DIGEST_BYTES * -(-size_bytes // limits.STATE_CHUNK_BYTES)


def section_of(index: int, count: int) -> int:
    """In which of the `SECTIONS` of an array of so many chunks this one lies: 0 to 63."""
    return index * SECTIONS // count


@functools.lru_cache
def digest_of_zeros(length: int) -> bytes:
    """The digest of a chunk of so many bytes that are all zero."""
    return blake3(bytes(length)).digest()


def content(values: F32) -> memoryview:
    """The bytes that are hashed and sent: little-endian f32, borrowed where that is the host's."""
    require_flat(values)
    return values.astype("<f4", copy=False).view(np.uint8).data


def manifest(values: F32, *, workers: Workers = ALONE) -> bytes:
    """The digests of all chunks of an array."""
    whole = content(values)
    return b"".join(
        workers.map(lambda part: blake3(whole[slice(*part)]).digest(), spans(len(whole)))
    )


def root(manifest: bytes) -> bytes:
    """The digest of the state that this manifest describes."""
    return blake3(manifest).digest()


def digests(manifest: bytes | memoryview) -> list[bytes]:
    """The digests in a manifest, in the order of the chunks."""
    whole = bytes(manifest)
    return [whole[at : at + DIGEST_BYTES] for at in range(0, len(whole), DIGEST_BYTES)]


def blobs(manifest: bytes, values: F32) -> Iterator[tuple[bytes, bytes | memoryview]]:
    """Digest and bytes of everything a downloader asks for; chunks are borrowed, not copied."""
    whole = content(values)
    if len(manifest) != manifest_bytes(len(whole)):
        raise InternalError(f"a manifest of {len(manifest)} bytes for {len(whole)} bytes of state")
    yield root(manifest), manifest
    for name, (start, end) in zip(digests(manifest), spans(len(whole)), strict=True):
        yield name, whole[start:end]
