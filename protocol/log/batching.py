"""Certified entries, accounts and summaries, cut into messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import structs

from protocol import limits, wire
from protocol.errors import LimitExceeded
from protocol.log.accounts import Account
from protocol.log.leases import UNKNOWN
from protocol.log.state import SwarmSummary
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


def apart(summary: SwarmSummary) -> tuple[Mapping[bytes, Account], bytes]:
    """A summary as it is told: the accounts that have to go ahead of it in messages of their own,
    and the rest in one piece. Where all of it is a piece there are none.

    The rest is without what sessions can claim where it would be too long, as thousands of them
    may have: that is bounded by time then. LimitExceeded if it is too long even so.
    """
    if (whole := _piece(summary)) is not None:
        return {}, whole
    rest = structs.replace(summary, accounts={})
    if (piece := _piece(rest)) is not None:
        return summary.accounts, piece
    held = tuple(structs.replace(one, granted=UNKNOWN, handed_in=()) for one in summary.held)
    return summary.accounts, wire.encode(structs.replace(rest, held=held))


def _piece(summary: SwarmSummary) -> bytes | None:
    """The summary in bytes, where it fits."""
    try:
        encoded = wire.encode(summary)
    except LimitExceeded:
        return None
    return encoded if len(encoded) <= limits.ENTRIES_BYTES_MAX else None
