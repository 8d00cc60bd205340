"""Certified entries, accounts and summaries, cut into messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from protocol import limits, wire
from protocol.errors import LimitExceeded
from protocol.log.accounts import Account
from protocol.log.leases import UNKNOWN
from protocol.log.state import SwarmSummary
from protocol.messages import (
    AccountsPart,
    AdoptedCharter,
    CertifiedRecord,
    IndexPart,
    StateHeld,
    StateOffer,
)

T = TypeVar("T")


def told_bytes(entry: CertifiedRecord) -> int:
    """About what an entry takes in a message."""
    return len(entry.record) + 512 * (1 + len(entry.certificate.votes) // 4)


def in_messages(entries: Iterable[CertifiedRecord]) -> Iterator[tuple[CertifiedRecord, ...]]:
    """The entries in order, in pieces that fit a frame each."""
    return map(tuple, _pieces(entries, told_bytes))


def index_parts(
    origins: Sequence[CertifiedRecord], charters: Sequence[AdoptedCharter]
) -> Iterator[IndexPart]:
    """Proofs and charters by their log indices, in pieces that fit a frame each.

    An owner may have banned ten thousand keys, so a charter may be a piece of its own.
    """
    by_index: dict[int, CertifiedRecord | AdoptedCharter] = {
        **{one.index: one for one in charters},
        **{one.certificate.index: one for one in origins},
    }
    for piece in _pieces((by_index[index] for index in sorted(by_index)), _part_bytes):
        entries = tuple(one for one in piece if isinstance(one, CertifiedRecord))
        told = tuple(one for one in piece if isinstance(one, AdoptedCharter))
        yield IndexPart(entries, charters=told)


def _part_bytes(one: CertifiedRecord | AdoptedCharter) -> int:
    """About what it takes in a message."""
    if isinstance(one, AdoptedCharter):
        return len(one.charter.payload) + 512
    return told_bytes(one)


def _pieces(items: Iterable[T], cost: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in order, in pieces of a message each; cost: bytes of one."""
    piece: list[T] = []
    size = 0
    for one in items:
        is_full = size + cost(one) > limits.ENTRIES_BYTES_MAX
        if piece and (is_full or len(piece) == limits.RECORDS_PER_MESSAGE_MAX):
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += cost(one)
    if piece:
        yield piece


@dataclass(slots=True)
class Telling:
    """A state on its way to one host: messages that fit a frame each, to be taken one by one.

    A run of months has a hundred thousand contributors, far more than may wait for a peer.
    """

    pieces: list[IndexPart]
    """Proofs of the fragments, and charters, that are still to be told, the first ones last."""
    accounts: Mapping[bytes, Account]
    keys: list[bytes]
    """Of accounts that are still to be told, the first one last."""
    end: StateOffer | StateHeld | None
    """What comes behind all of these; None once it was told."""

    def take(self, most: int) -> list[IndexPart | AccountsPart | StateOffer | StateHeld]:
        """The next messages, so many at most."""
        taken: list[IndexPart | AccountsPart | StateOffer | StateHeld] = []
        while self.end is not None and len(taken) < most:
            if self.pieces:
                taken.append(self.pieces.pop())
            elif self.keys:
                taken.append(AccountsPart(self._some_accounts()))
            else:
                taken.append(self.end)
                self.end = None
        return taken

    def _some_accounts(self) -> dict[bytes, Account]:
        piece: dict[bytes, Account] = {}
        size = 0
        while self.keys:
            account = self.accounts[self.keys[-1]]
            size += len(self.keys[-1]) + 2 + len(wire.encode(account))
            if piece and size > limits.ENTRIES_BYTES_MAX:
                break
            piece[self.keys.pop()] = account
        return piece


def telling(
    origins: Sequence[CertifiedRecord],
    charters: Sequence[AdoptedCharter],
    accounts: Mapping[bytes, Account],
    end: StateOffer | StateHeld,
) -> Telling:
    """A state to be told: its charters and the proofs of its fragments, then its accounts, which
    nobody may change meanwhile, then this message."""
    pieces = list(index_parts(origins, charters))
    return Telling(pieces[::-1], accounts, sorted(accounts, reverse=True), end)


def apart(summary: SwarmSummary) -> tuple[Mapping[bytes, Account], bytes]:
    """A summary as it is told: the accounts that have to go ahead of it in messages of their own,
    and the rest in one piece, without charters. Where all of it is a piece there are no accounts.

    The rest is without what sessions can claim where it would be too long, as thousands of them
    may have: that is bounded by time then. LimitExceeded if it is too long even so.
    """
    summary = structs.replace(summary, charters=())
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
