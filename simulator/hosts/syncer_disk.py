"""The disk of a simulated syncer: that of any voter, with weights and snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.log.state import SwarmSummary
from protocol.machine import Failed
from protocol.messages import CertifiedRecord
from protocol.project import Charter
from simulator.hosts.voter_disk import VoterDisk
from syncer_node.machine import jobs
from syncer_node.raft.log import Floor
from syncer_node.storage.merge_bank import Version


@dataclass
class SyncerDisk(VoterDisk):
    """What survives a crash of a syncer."""

    floor_origins: tuple[CertifiedRecord, ...] = ()
    has_weights: bool = False
    snapshots: dict[int, jobs.KeepSnapshot] = field(default_factory=dict)
    summaries: dict[int, SwarmSummary] = field(default_factory=dict)
    """The folded log of each snapshot."""
    weights: dict[int, list[Version]] = field(default_factory=dict)
    """Every fragment of each snapshot."""
    checkpoints: dict[int, list[Version]] = field(default_factory=dict)
    """Every fragment of the checkpoints that are kept, by log index."""
    restored: dict[int, list[Version]] = field(default_factory=dict)
    """The same of those that the guard went back to."""
    base: list[Version] | None = None
    """Every fragment at the floor, where the log begins behind a snapshot."""

    def write(self, job: object) -> object:
        match job:
            case jobs.WriteCheckpoint() | jobs.WriteSnapshot() | jobs.KeepSnapshot() if (
                self.is_full
            ):
                return Failed("disk full")
            case jobs.WriteCheckpoint(index):
                return jobs.CheckpointWritten(index)
            case jobs.WriteSnapshot():
                return jobs.SnapshotWritten()
            case jobs.KeepSnapshot():
                self.snapshots[job.manifest.snapshot] = job
                self.snapshots = {at: one for at, one in self.snapshots.items() if at in job.kept}
                return jobs.SnapshotKept()
        return super().write(job)

    def _enter(self, charter: Charter) -> None:
        """Also begin behind a snapshot that is here, where this log does not reach it."""
        super()._enter(charter)
        origin = charter.origin
        kept = self.snapshots.get(origin.snapshot) if origin is not None else None
        if origin is not None and kept is not None and self.last == 0:
            summary = self.summaries[origin.snapshot]
            self._install(jobs.InstallState(kept.entry, summary, kept.origins))
            self.base = self.weights[origin.snapshot]

    def _begin(
        self, floor: Floor, entry: CertifiedRecord | None, summary: SwarmSummary | None
    ) -> None:
        super()._begin(floor, entry, summary)
        self.base = None

    def _install(self, job: jobs.InstallState) -> None:
        super()._install(job)
        self.floor_origins = job.origins
