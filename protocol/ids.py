"""Names for the identifiers that travel, so that a type checker tells them apart.

A host is its Ed25519 public key; a project is the hash of its genesis. A session is a key plus an
incarnation number, so that a restarted host is a new session of the same host.
"""

from __future__ import annotations

from typing import Annotated, NewType

from msgspec import Meta

NodeKey = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""Raw Ed25519 public key of a host, 32 bytes."""

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""blake3 hash, 32 bytes."""

Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
"""Ed25519 signature, 64 bytes."""

Count = Annotated[int, Meta(ge=0, le=2**62)]
"""A non-negative number that fits the wire and float64 sums."""

InviteId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""Drawn for each invite, 16 bytes."""

SessionKey = tuple[bytes, int]
"""(learner key, incarnation)."""

JobId = NewType("JobId", int)


def short(key: bytes) -> str:
    """The first eight hex digits of a key or digest: enough to tell hosts apart on a screen."""
    return key[:4].hex()
