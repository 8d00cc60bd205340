"""What a voter must remember across every crash: its term, its vote, and whom it has met."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Count, Digest, NodeKey

DISK_NAME_BYTES = 32


class Pin(Struct, frozen=True, array_like=True):
    """What another voter's disk said of itself when it was last heard.

    The disk's number of starts only grows: an older one is a copy that was restored, the same one
    with another nonce is a clone that runs elsewhere.
    """

    key: NodeKey
    generation: Count
    disk: Digest
    boot: Count
    nonce: Count


class Ballot(Struct, frozen=True, array_like=True):
    """The part of a voter's memory without which it could vote twice. Written before it speaks."""

    disk: Digest
    boot: Count
    term: Count = 0
    voted_for: NodeKey | None = None
    owed: Count = 0
    """Last record that this disk once had and lost: no vote before it is here again."""
    owed_epoch: Count = 0
    """In which it had it; a later epoch of the owner's voids the debt."""
    pins: Annotated[tuple[Pin, ...], Meta(max_length=4 * limits.VOTERS_MAX)] = ()
    generation: Count = 0
    """`Voter.disk` of the charter under which this disk drew its name."""

    def pin(self, key: bytes) -> Pin | None:
        """What is remembered of this voter."""
        return next((pin for pin in self.pins if pin.key == key), None)

    def with_pin(self, pin: Pin) -> Ballot:
        """This ballot, with what was just learned; the oldest memory gives way."""
        others = tuple(one for one in self.pins if one.key != pin.key)
        kept = (*others, pin)[-2 * limits.VOTERS_MAX :]
        return msgspec.structs.replace(self, pins=kept)

    def renamed(self, disk: bytes, generation: int) -> Ballot:
        """This ballot on what counts as another disk: no vote of the former name is its own."""
        return msgspec.structs.replace(self, disk=disk, generation=generation)

    def owing(self, index: int, epoch: int) -> Ballot:
        """This ballot, with no smaller debt than that of these records."""
        if index <= self.owed:
            return self
        return msgspec.structs.replace(self, owed=index, owed_epoch=epoch)

    def in_term(self, term: int, voted_for: bytes | None) -> Ballot:
        """This ballot in another term, or with a vote given."""
        return msgspec.structs.replace(self, term=term, voted_for=voted_for)
