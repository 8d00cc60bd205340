"""Certified entries, and accounts, cut into messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from protocol import limits, wire
from protocol.log.accounts import Account
from protocol.messages import CertifiedRecord


def in_messages(entries: list[CertifiedRecord]) -> Iterator[tuple[CertifiedRecord, ...]]:
    """The entries in order, in pieces that fit a frame each."""
    piece: list[CertifiedRecord] = []
    size = 0
    for entry in entries:
        cost = len(entry.record) + 512 * (1 + len(entry.certificate.votes) // 4)
        is_full = size + cost > limits.ENTRIES_BYTES_MAX
        if piece and (is_full or len(piece) == limits.RECORDS_PER_MESSAGE_MAX):
            yield tuple(piece)
            piece, size = [], 0
        piece.append(entry)
        size += cost
    if piece:
        yield tuple(piece)


def accounts_in_messages(accounts: Mapping[bytes, Account]) -> Iterator[dict[bytes, Account]]:
    """The accounts, those of the lowest keys first, in pieces that fit a frame each."""
    piece: dict[bytes, Account] = {}
    size = 0
    for key in sorted(accounts):
        cost = len(key) + 2 + len(wire.encode(accounts[key]))
        if piece and size + cost > limits.ENTRIES_BYTES_MAX:
            yield piece
            piece, size = {}, 0
        piece[key] = accounts[key]
        size += cost
    if piece:
        yield piece
