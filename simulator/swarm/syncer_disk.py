"""The disk of a simulated syncer: what survives a crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from protocol import wire
from protocol.log.records import Record, record_hash
from protocol.log.state import SwarmSummary
from protocol.messages import Certificate, CertifiedRecord, Envelope
from protocol.project import Origin
from syncer_node.machine.jobs import (
    InstallState,
    KeepSnapshot,
    SnapshotKept,
    SnapshotWritten,
    WriteCheckpoint,
    WriteSnapshot,
)
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.jobs import Append, SaveBallot
from syncer_node.raft.log import Floor
from syncer_node.storage.merge_bank import Version

DISK_JOBS = (SaveBallot, Append, WriteCheckpoint, WriteSnapshot, KeepSnapshot)
"""What a full disk does not take."""


@dataclass(slots=True)
class SimDisk:
    """What survives a crash of a syncer."""

    ballot: Ballot
    log: list[bytes] = field(default_factory=list)
    proofs: list[Certificate] = field(default_factory=list)
    floor: Floor = field(default_factory=Floor)
    floor_entry: CertifiedRecord | None = None
    floor_summary: SwarmSummary | None = None
    floor_origins: tuple[CertifiedRecord, ...] = ()
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    charter: Envelope | None = None
    has_weights: bool = False
    is_full: bool = False
    snapshots: dict[int, KeepSnapshot] = field(default_factory=dict)
    summaries: dict[int, SwarmSummary] = field(default_factory=dict)
    """The folded log of each snapshot."""
    weights: dict[int, list[Version]] = field(default_factory=dict)
    """Every fragment of each snapshot."""
    base: list[Version] | None = None
    """Every fragment at the floor, where the log begins behind a snapshot."""

    @classmethod
    def fresh(cls, name: bytes) -> SimDisk:
        """An empty disk with a name of its own."""
        return cls(Ballot(name, 0))

    @property
    def last(self) -> int:
        return self.floor.index + len(self.log)

    @property
    def certified(self) -> int:
        return min(self.last, self.floor.index + len(self.proofs))

    def floor_state(self) -> tuple[Floor, SwarmSummary | None]:
        return self.floor, self.floor_summary

    def records(self, after: int) -> Iterable[bytes]:
        return list(self.log[after - self.floor.index :])

    def certificate(self, index: int) -> Certificate | None:
        at = index - self.floor.index - 1
        return self.proofs[at] if 0 <= at < len(self.proofs) else None

    def append(self, after: int, records: tuple[bytes, ...]) -> None:
        at = after - self.floor.index
        del self.log[at:]
        del self.proofs[at:]
        self.log.extend(records)

    def keep(self, certificate: Certificate) -> None:
        if certificate.index == self.floor.index + len(self.proofs) + 1:
            self.proofs.append(certificate)

    def cut_for_epoch(self, index: int, epoch: int) -> None:
        self.append(index, ())

    def leave_log(self, epoch: int) -> None:
        self.log, self.proofs = [], []
        self.floor, self.floor_entry, self.floor_summary = Floor(), None, None
        self.base = None

    def keep_snapshot(self, job: WriteSnapshot | KeepSnapshot) -> SnapshotWritten | SnapshotKept:
        if isinstance(job, WriteSnapshot):
            return SnapshotWritten()
        self.snapshots[job.manifest.snapshot] = job
        self.snapshots = {at: one for at, one in self.snapshots.items() if at in job.kept}
        return SnapshotKept()

    def enter_snapshot(self, origin: Origin | None) -> None:
        """Begin behind a snapshot that is here, where this log does not reach it."""
        kept = self.snapshots.get(origin.snapshot) if origin is not None else None
        if origin is not None and kept is not None and self.last == 0:
            summary = self.summaries[origin.snapshot]
            self.begin_behind(InstallState(kept.entry, summary, kept.origins))
            self.base = self.weights[origin.snapshot]

    def begin_behind(self, job: InstallState) -> None:
        record = wire.decode(job.entry.record, Record)
        owed = max(self.ballot.owed, self.last)
        self.ballot = msgspec.structs.replace(self.ballot, owed=owed, owed_epoch=job.summary.epoch)
        self.log, self.proofs = [], []
        self.base = None
        self.floor = Floor(record.index, record.term, record_hash(job.entry.record))
        self.floor_entry, self.floor_summary = job.entry, job.summary
        self.floor_origins = job.origins
