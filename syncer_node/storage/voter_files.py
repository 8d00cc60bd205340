"""What every voter keeps on disk, a syncer or a witness: ballot, charter, log, certificates."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from host.runtime.atomic_files import require_space, sync, writing
from host.runtime.checked_files import read_checked, write_checked
from protocol import decoders, wire
from protocol.errors import CorruptState, RemoteError, TransientError
from protocol.log.records import (
    NO_RECORD,
    CharterAdopted,
    Record,
    VotersAdmitted,
    read_record,
    record_hash,
)
from protocol.log.state import SwarmState, SwarmSummary
from protocol.machine import Job, JobResult
from protocol.messages import AdoptedCharter, Certificate, CertifiedRecord, Envelope
from protocol.project import Charter
from syncer_node.machine.jobs import Installed, InstallState
from syncer_node.raft import jobs
from syncer_node.raft.ballot import DISK_NAME_BYTES, Ballot
from syncer_node.raft.log import ENTRIES_KEPT, Floor
from syncer_node.storage.write_ahead_log import WriteAheadLog

PROOFS_UNSYNCED_MAX = 256
"""Certificates that a power failure may take with it."""


class StoredFloor(Struct, frozen=True, array_like=True):
    """Where this disk's log begins, and what was in force there."""

    index: int
    term: int
    head: bytes
    entry: CertifiedRecord | None
    summary: SwarmSummary | None
    origins: tuple[CertifiedRecord, ...]
    log: str
    """File name of the log that begins here."""


class VoterFiles:
    """One voter's log and ballot. Not thread-safe: one thread writes."""

    floor: StoredFloor
    log: WriteAheadLog
    certificates: WriteAheadLog

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unsynced: dict[int, Certificate] = {}
        """Certificates that are not known to be on the disk, by record."""
        self._open(self._read_floor())
        self._debt = (0, 0)
        """Records that this disk gave up since its ballot was read, and their epoch."""

    def carry_out(self, job: Job) -> JobResult:
        """What a voter's machine asks of its disk; when it returns, the disk has it."""
        match job:
            case jobs.SaveBallot(ballot):
                self.save_ballot(ballot)
                return jobs.BallotSaved(ballot)
            case jobs.Append(after, records):
                self.append(after, records)
                return jobs.Appended(after + len(records))
            case jobs.KeepProofs(certificates):
                self.keep_proofs(certificates)
                return jobs.ProofsKept()
            case InstallState(entry, summary, origins):
                self.begin_behind(entry, summary, origins)
                return Installed()
        raise AssertionError(f"nothing here carries out {type(job).__name__}")

    # The ballot.

    def boot(self) -> Ballot:
        """This disk's ballot at a new start, already written: its name, and one start more."""
        held = self._ballot()
        ballot = msgspec.structs.replace(held, boot=held.boot + 1)
        self.save_ballot(ballot)
        return ballot

    def _ballot(self) -> Ballot:
        path = self.root / "ballot"
        try:
            return decoders.msgpack_decoder(Ballot).decode(read_checked(path))
        except FileNotFoundError:
            if len(self.log):
                raise CorruptState(
                    f"{path} is missing next to a log: this disk may have voted before. Move "
                    f"{self.root} away; the project's owner can readmit this host's key."
                ) from None
            return Ballot(os.urandom(DISK_NAME_BYTES), 0)
        except (OSError, msgspec.MsgspecError, CorruptState) as error:
            raise CorruptState(
                f"{path} cannot be read ({error}). Move {self.root} away; the project's owner "
                "can readmit this host's key."
            ) from error

    def save_ballot(self, ballot: Ballot) -> None:
        """Keep the ballot durably; with what this disk came to owe since it gave the ballot out."""
        owing = ballot.owing(*self._debt)
        write_checked(self.root / "ballot", msgspec.msgpack.encode(owing))

    # The charter.

    def keep_charter(self, envelope: Envelope) -> None:
        """Keep the newest charter durably."""
        write_checked(self.root / "charter", wire.encode(envelope))

    def charter(self) -> Envelope | None:
        """The newest charter that was kept."""
        try:
            return wire.decode(read_checked(self.root / "charter"), Envelope)
        except FileNotFoundError:
            return None
        except (OSError, RemoteError, CorruptState):
            return None  # The project file has one too; a newer one comes from the other voters.

    # Other voters.

    def keep_addresses(self, addresses: tuple[str, ...]) -> None:
        """Keep where the other voters were reached, for the next start."""
        write_checked(self.root / "voters", msgspec.msgpack.encode(addresses))

    # The log.

    @property
    def last(self) -> int:
        """Index of the last stored record."""
        return self.floor.index + len(self.log)

    def append(self, after: int, records: Sequence[bytes]) -> None:
        """Cut the log behind record `after` and write these behind it, durably.

        TransientError if it is not possible now: the log is then as it was, or cut.
        """
        if not self.floor.index <= after <= self.last:
            raise TransientError(f"record {after + 1} waits for record {self.last + 1}")
        require_space(self.root)
        self.log.cut(after - self.floor.index)
        self.certificates.cut(after - self.floor.index)
        self._unsynced = {at: one for at, one in self._unsynced.items() if at <= after}
        self.log.append_all(records)

    def record(self, index: int) -> bytes:
        """A stored record. CorruptState if it is damaged."""
        return self.log.read(index - self.floor.index - 1)

    def records(self, after: int) -> list[bytes]:
        """The stored records behind this one."""
        return list(self.log.frames(after - self.floor.index))

    def between(self, after: int, up_to: int) -> Iterator[bytes]:
        """The stored records behind the one and up to the other, read as they are asked for."""
        frames = self.log.frames(after - self.floor.index)
        return itertools.islice(frames, max(0, up_to - after))

    def keep_certificate(self, certificate: Certificate) -> None:
        """Store a proof beside the log, some time; TransientError if that is impossible now.

        It is written with the next one then: a gap would keep out all that follow, and what is too
        old others do not have any more. A power failure takes few of them.
        """
        self._unsynced[certificate.index] = certificate
        while following := self._unsynced.get(self.floor.index + len(self.certificates) + 1):
            self.certificates.append(wire.encode(following), durable=False)
        if len(self.certificates) - self.certificates.synced >= PROOFS_UNSYNCED_MAX:
            self._sync_proofs()
        if len(self._unsynced) > ENTRIES_KEPT:  # Others have all of these still.
            del self._unsynced[min(self._unsynced)]

    def _sync_proofs(self) -> None:
        self.certificates.flush()
        last = self.floor.index + self.certificates.synced
        self._unsynced = {at: one for at, one in self._unsynced.items() if at > last}

    def keep_proofs(self, certificates: Sequence[Certificate]) -> None:
        """Store these proofs durably, with all before them. TransientError if that is impossible.

        What a certificate is lost for may be beyond making again: who signed for a charter may be
        no voter under it.
        """
        for certificate in certificates:
            self.keep_certificate(certificate)
        self._sync_proofs()
        if self.certified < certificates[-1].index:
            raise TransientError(f"the proof of record {certificates[-1].index} does not follow")

    @property
    def certified(self) -> int:
        """Last record whose certificate, and all before it, are here."""
        return min(self.last, self.floor.index + len(self.certificates))

    def proven(self, charter: Charter) -> int:
        """Last record that is committed, as far as this disk shows; charter: in force now.

        What a sole voter stored is committed: nobody else has to sign for it.
        """
        return self.last if len(charter.voters) == 1 else self.certified

    def certificate(self, index: int) -> Certificate | None:
        """The proof of a stored record, if it is here and fits."""
        at = index - self.floor.index - 1
        if not 0 <= at < min(len(self.certificates), len(self.log)):
            return None
        certificate = wire.decode(self.certificates.read(at), Certificate)
        return certificate if certificate.record == record_hash(self.record(index)) else None

    def begin_behind(
        self,
        entry: CertifiedRecord,
        summary: SwarmSummary,
        origins: tuple[CertifiedRecord, ...],
    ) -> None:
        """Begin an empty log behind this record; what was there before is set aside.

        Records that this disk may have signed beyond are owed: no vote before they are back.
        """
        record = read_record(entry.record, may_be_brief=True)
        self._debt = (self.last, summary.epoch)
        self.save_ballot(self._ballot())
        name = f"log-{record.index}"
        for path in self._paths(name):
            set_aside(path)
        with writing(name):
            (self.root / name).touch(mode=0o600)
            sync(self.root)
        head = record_hash(entry.record)
        stored = StoredFloor(record.index, record.term, head, entry, summary, origins, name)
        former = self.floor
        write_checked(self.root / "floor", msgspec.msgpack.encode(stored))
        self.close()
        self._open(stored)
        if former.log != name:
            for path in self._paths(former.log):
                set_aside(path)

    def forget_old(self, keep: int) -> bool:
        """Let the log begin later, so that `keep` certified records remain; whether it does now.

        Only for a witness: the summary at the new floor says who governs and nothing of the model.
        A crash at any moment leaves the old log or the new one.
        """
        floor = self.certified - keep
        certificate = self.certificate(floor) if floor > self.floor.index else None
        if certificate is None or keep < 1:
            return False
        encoded = self.record(floor)
        record, head = read_record(encoded), record_hash(encoded)
        entry = CertifiedRecord(encoded, certificate)
        summary = self._governing(floor, record, head)
        name = f"log-{floor}"
        paths = self._paths(name)
        for path in paths:
            path.unlink(missing_ok=True)  # Of a former try that was cut short.
        log, certificates = WriteAheadLog(paths[0]), WriteAheadLog(paths[1])
        log.append_all(self.records(floor))
        certificates.append_all(list(self.certificates.frames(floor - self.floor.index)))
        with writing(name):
            sync(self.root)
        stored = StoredFloor(floor, record.term, head, entry, summary, (), name)
        write_checked(self.root / "floor", msgspec.msgpack.encode(stored))
        former = (self.log, self.certificates)
        self.floor, self.log, self.certificates = stored, log, certificates
        for file in former:
            file.close()
            file.path.unlink(missing_ok=True)
        return True

    def _governing(self, index: int, last: Record, head: bytes) -> SwarmSummary:
        """Who governs as of this record: the charter in force, and the admitted disks."""
        former = self.floor.summary
        charters = list(former.charters) if former is not None else []
        admissions = {one.key: one for one in former.admissions} if former is not None else {}
        for encoded in self.between(self.floor.index, index):
            record = read_record(encoded)
            match record.body:
                case CharterAdopted(envelope):
                    charters.append(AdoptedCharter(record.index, envelope))
                case VotersAdmitted(voters):
                    admissions.update({one.key: one for one in voters})
        blank = SwarmState(block_sequences=1).summary()
        return msgspec.structs.replace(
            blank,
            index=index,
            head=head,
            epoch=last.epoch,
            term=last.term,
            charters=tuple(charters[-1:]),
            admissions=tuple(admissions.values()),
        )

    def floor_state(self) -> tuple[Floor, SwarmSummary | None]:
        """The record before the log's first one, and the state there."""
        floor = self.floor
        return Floor(floor.index, floor.term, floor.head), floor.summary

    def leave_log(self, epoch: int) -> None:
        """This log is of no use to the epoch that the owner began: start with an empty one."""
        for path in (self.log.path, self.certificates.path, self.root / "floor"):
            if path.exists():
                path.replace(path.with_name(f"{path.name}.before-epoch-{epoch}"))
        self.close()
        self._open(self._read_floor())

    def settle(self, ballot: Ballot, epoch: int = 0) -> Ballot:
        """Bring log and certificates together after a start; the ballot, saved if it changed.

        Certificates without their records mean that the log lost what it once had. `epoch`: the
        owner's newest; what was lost in one before it is void and not owed any more.
        """
        settled = ballot
        lost = self.floor.index + len(self.certificates)
        if lost > self.last:
            proof = wire.decode(self.certificates.read(len(self.certificates) - 1), Certificate)
            settled = ballot.owing(lost, proof.epoch)
        if settled.owed and epoch > settled.owed_epoch:
            settled = msgspec.structs.replace(settled, owed=0)
        if settled != ballot:
            self.save_ballot(settled)
        self.certificates.cut(len(self.log))
        return settled

    def cut_for_epoch(self, index: int, epoch: int) -> None:
        """The owner voided what is behind this record; a copy of it is kept for people."""
        with contextlib.suppress(OSError), writing("a copy of the former log"):
            shutil.copy2(self.log.path, self.log.path.with_name(f"log.before-epoch-{epoch}"))
        self.log.cut(max(0, index - self.floor.index))
        self.certificates.cut(max(0, index - self.floor.index))
        self._unsynced = {at: one for at, one in self._unsynced.items() if at <= index}
        self.certificates.flush()  # Nobody signs for records before the origin again.

    def close(self) -> None:
        self.log.close()
        self.certificates.close()

    def _open(self, floor: StoredFloor) -> None:
        self.floor = floor
        self.log, self.certificates = map(WriteAheadLog, self._paths(floor.log))
        self._unsynced.clear()

    def _paths(self, name: str) -> tuple[Path, Path]:
        """Of a log, and of its certificates."""
        return self.root / name, self.root / f"{name}.certificates"

    def _read_floor(self) -> StoredFloor:
        path = self.root / "floor"
        try:
            return decoders.msgpack_decoder(StoredFloor).decode(read_checked(path))
        except FileNotFoundError:
            return StoredFloor(0, 0, NO_RECORD, None, None, (), "log")
        except (OSError, msgspec.MsgspecError, CorruptState) as error:
            raise CorruptState(f"{path} is damaged ({error}); move {self.root} away") from error


def kept_addresses(root: Path) -> tuple[str, ...]:
    """Where the other voters were reached before; empty if that is not known."""
    try:
        return decoders.msgpack_decoder(tuple[str, ...]).decode(read_checked(root / "voters"))
    except (OSError, msgspec.MsgspecError, CorruptState):
        return ()  # Only hints: the swarm is found without them too.


def set_aside(path: Path) -> None:
    """Move a file out of the way without losing it; older ones of that name give way."""
    with contextlib.suppress(OSError):
        path.replace(path.with_name(f"{path.name}.former"))
