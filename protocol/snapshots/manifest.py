"""What a consistent snapshot of a swarm consists of, and what is said on the wire about one.

A snapshot is named by a number: the wall clock in whole seconds when it was begun, one more than
the last where that would not grow. People write it as a UTC time, `20260131-120000`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Count, Digest, NodeKey
from protocol.project import Text
from protocol.snapshots.vector_clock import VectorClock

STAMP = "%Y%m%d-%H%M%S"

PartReason = Literal["starting", "busy", "disk", "failed", "off"]
Sequences = Annotated[tuple[Count, ...], Meta(max_length=limits.OPEN_PUSHES_MAX)]


class PartBooks(Struct, frozen=True, array_like=True):
    """A learner's token books at its cut, summed over fragments, and its pushes without a fate.

    processed = merged + in flight + pending + discarded + lost.
    """

    sequence: Count
    """Of the last push it ever made: no other push of its session is before the cut."""
    open: Sequences
    """Pushes handed in whose fate it does not know."""
    local_step: Count
    processed: Count
    """Tokens read by all trainers of this session, once for every fragment."""
    merged: Count
    in_flight: Count
    """In pushes without a fate."""
    pending: Count
    """Not handed in yet."""
    discarded: Count
    """Overwritten before they could be handed in."""
    lost: Count
    """Died with a trainer."""

    @property
    def is_balanced(self) -> bool:
        known = self.merged + self.in_flight + self.pending + self.discarded + self.lost
        return self.processed == known


class Marker(Struct, frozen=True, array_like=True, tag="marker"):
    """The sender's state is cut here: what it sent before belongs to the snapshot, what follows
    does not. Answered with a marker at the receiver's own cut."""

    snapshot: Count
    clock: VectorClock
    """The sender's at its cut."""
    kept: Annotated[tuple[Count, ...], Meta(max_length=limits.SNAPSHOTS_MAX)] = ()
    """From a syncer: older snapshots that it still has; parts of others may go."""


class PartKept(Struct, frozen=True, array_like=True, tag="part-kept"):
    """The learner's part of a snapshot is on its disk."""

    snapshot: Count
    digest: Digest
    size_bytes: Count
    books: PartBooks


class PartRefused(Struct, frozen=True, array_like=True, tag="no-part"):
    """This learner is not in the snapshot: `starting` trains nothing yet, `busy` came to no
    boundary in time, `disk` has no room, `failed` says what went wrong, `off` is its owner's
    wish."""

    snapshot: Count
    reason: PartReason
    text: Text


class PartRestored(Struct, frozen=True, array_like=True, tag="restored"):
    """After an epoch began at a snapshot: whether this learner goes on from its own part."""

    snapshot: Count
    is_restored: bool
    digest: Digest
    """Of the part; zeros without one."""
    local_step: Count
    text: Text
    """Why it starts over, if it does."""


# The syncer's part: files of a snapshot's directory.


class FileSum(Struct, frozen=True, array_like=True):
    """A file by its content, so that damage can be found and placed."""

    name: str
    size_bytes: int
    chunk_bytes: int
    chunks: bytes
    """blake3 of each chunk, one after the other."""


class PartEntry(Struct, frozen=True, array_like=True):
    """A learner's part in a manifest."""

    learner: NodeKey
    name: str
    incarnation: int
    digest: bytes
    size_bytes: int
    clock: VectorClock
    books: PartBooks
    in_hand: tuple[int, ...]
    """Its pushes that the syncer had at its own cut and that had no fate."""
    arriving: tuple[int, ...]
    """Its pushes that were on their way: state of the channel."""


class Skipped(Struct, frozen=True, array_like=True):
    """A learner that is not in a snapshot, and why."""

    learner: NodeKey
    name: str
    reason: str


class Manifest(Struct, frozen=True, array_like=True):
    """A snapshot of the whole swarm; it exists once this is on the disk."""

    snapshot: int
    project: bytes
    epoch: int
    index: int
    """Position in the log: every record up to it counts, none behind it."""
    head: bytes
    clock: VectorClock
    global_step: int
    tokens: int
    parts: tuple[PartEntry, ...]
    skipped: tuple[Skipped, ...]
    seconds: float
    """From the syncer's cut to the last part."""

    @property
    def outline(self) -> SnapshotOutline:
        parts = tuple(
            PartOutline(one.learner, one.incarnation, one.name, one.digest) for one in self.parts
        )
        return SnapshotOutline(
            self.snapshot, self.epoch, self.index, self.global_step, parts, self.skipped
        )


class PartOutline(Struct, frozen=True, array_like=True):
    """What a machine remembers of a learner's part."""

    learner: NodeKey
    incarnation: int
    name: str
    digest: bytes


class SnapshotOutline(Struct, frozen=True, array_like=True):
    """What a machine remembers of a snapshot."""

    snapshot: int
    epoch: int
    index: int
    global_step: int
    parts: tuple[PartOutline, ...]
    skipped: tuple[Skipped, ...]


def stamp(snapshot: int) -> str:
    """The name of a snapshot for people and directories."""
    return datetime.fromtimestamp(snapshot, UTC).strftime(STAMP)


def from_stamp(text: str) -> int:
    """The snapshot of this name. Raises ValueError."""
    return int(datetime.strptime(text, STAMP).replace(tzinfo=UTC).timestamp())
