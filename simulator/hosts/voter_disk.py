"""A voter's disk in virtual time: what survives a crash, and what a crash does to writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from protocol import wire
from protocol.log.records import read_record, record_hash
from protocol.log.state import SwarmSummary
from protocol.machine import Failed
from protocol.messages import Certificate, CertifiedRecord, Envelope
from protocol.project import Charter
from protocol.signing import Signer
from syncer_node.machine.jobs import Installed, InstallState
from syncer_node.raft import jobs
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.log import Floor, LogStart
from syncer_node.storage.recovery import LogView, enter_epoch, log_start, recertify, scan


@dataclass
class VoterDisk:
    """Ballot, charter, log, certificates, payloads."""

    ballot: Ballot
    charter: Envelope
    log: list[bytes] = field(default_factory=list)
    proofs: list[Certificate] = field(default_factory=list)
    proofs_synced: int = 0
    """So many of them survive a power loss."""
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    """Of merges, by digest; where there are no tensors, nothing is in them."""
    floor: Floor = field(default_factory=Floor)
    floor_entry: CertifiedRecord | None = None
    floor_summary: SwarmSummary | None = None
    is_full: bool = False

    @property
    def last(self) -> int:
        return self.floor.index + len(self.log)

    @property
    def certified(self) -> int:
        return min(self.last, self.floor.index + len(self.proofs))

    def digest_at(self, index: int) -> bytes | None:
        """Hash of a stored record; None where the disk begins behind it or ends before it."""
        at = index - self.floor.index - 1
        return record_hash(self.log[at]) if 0 <= at < len(self.log) else None

    def entry(self, index: int) -> CertifiedRecord | None:
        """A stored record with its proof, or the one before this log."""
        if index == self.floor.index:
            return self.floor_entry
        certificate = self.certificate(index)
        if certificate is None:
            return None
        return CertifiedRecord(self.log[index - self.floor.index - 1], certificate)

    # What recovery reads.

    def floor_state(self) -> tuple[Floor, SwarmSummary | None]:
        return self.floor, self.floor_summary

    def records(self, after: int) -> Iterable[bytes]:
        return list(self.log[after - self.floor.index :])

    def certificate(self, index: int) -> Certificate | None:
        at = index - self.floor.index - 1
        return self.proofs[at] if 0 <= at < len(self.proofs) else None

    def cut_for_epoch(self, index: int, epoch: int) -> None:
        self._cut(index)
        self.proofs_synced = len(self.proofs)

    def leave_log(self, epoch: int) -> None:
        self._begin(Floor(), None, None)

    def start(
        self, signer: Signer, on_certified: Callable[[CertifiedRecord, int], None]
    ) -> LogStart:
        """What a voter's log in memory begins with, as the daemons find it."""
        return log_start(self, self.open(signer, on_certified))

    def open(self, signer: Signer, on_certified: Callable[[CertifiedRecord, int], None]) -> LogView:
        """Settle debts, enter the epoch of the charter and read the log.

        on_certified: told of what this host proved alone, record by record.
        """
        charter = wire.decode(self.charter.payload, Charter)
        if self.ballot.owed and charter.epoch > self.ballot.owed_epoch:
            self.ballot = msgspec.structs.replace(self.ballot, owed=0)
        self._enter(charter)
        view = scan(self, charter, signer)
        for index in range(self.certified + 1, view.certified + 1):
            encoded = self.log[index - self.floor.index - 1]
            entry = recertify(encoded, None, signer, view.charter.voters)
            if entry is not None:
                self.keep(entry.certificate)
                on_certified(entry, index)
        return view

    def _enter(self, charter: Charter) -> None:
        enter_epoch(self, charter)

    # What a machine asks for.

    def write(self, job: object) -> object:
        """Carry out a job and answer it."""
        if self.is_full:
            return Failed("disk full")
        match job:
            case jobs.SaveBallot(ballot):
                self.ballot = ballot.owing(self.ballot.owed, self.ballot.owed_epoch)
                return jobs.BallotSaved(ballot)
            case jobs.Append(after, records):
                if not self.floor.index <= after <= self.last:
                    return Failed(f"record {after + 1} waits for record {self.last + 1}")
                self._cut(after)
                self.log.extend(records)
                return jobs.Appended(self.last)
            case jobs.KeepProofs(certificates):
                for certificate in certificates:
                    self.keep(certificate)
                self.proofs_synced = len(self.proofs)
                is_kept = self.certified >= certificates[-1].index
                return (
                    jobs.ProofsKept() if is_kept else Failed("a proof is missing before this one")
                )
            case InstallState():
                self._install(job)
                return Installed()
        raise AssertionError(f"nothing here carries out {type(job).__name__}")

    def keep(self, certificate: Certificate) -> None:
        """Store a proof, not durably."""
        if certificate.index == self.floor.index + len(self.proofs) + 1:
            self.proofs.append(certificate)

    def lose_power(self, proofs: int) -> None:
        """So many of the newest proofs are gone, where they were not synced."""
        del self.proofs[max(self.proofs_synced, len(self.proofs) - proofs) :]

    def _cut(self, after: int) -> None:
        del self.log[after - self.floor.index :]
        del self.proofs[after - self.floor.index :]
        self.proofs_synced = min(self.proofs_synced, len(self.proofs))

    def _begin(
        self, floor: Floor, entry: CertifiedRecord | None, summary: SwarmSummary | None
    ) -> None:
        self.log, self.proofs, self.proofs_synced = [], [], 0
        self.floor, self.floor_entry, self.floor_summary = floor, entry, summary

    def _install(self, job: InstallState) -> None:
        record = read_record(job.entry.record, may_be_brief=True)
        self.ballot = self.ballot.owing(self.last, job.summary.epoch)
        floor = Floor(record.index, record.term, record_hash(job.entry.record))
        self._begin(floor, job.entry, job.summary)
