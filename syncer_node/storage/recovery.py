"""From what a disk holds back to a machine's state. Pure: bytes in, state out.

A record that this host stored is a vote it gave: the sole voter of a charter may sign it again and
gets the same certificate, because signing is deterministic. So nothing that was ever broadcast can
be lost between fsync and the writing of its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from protocol import wire
from protocol.errors import CorruptState
from protocol.log import records
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import Certificate, CertifiedRecord
from protocol.project import Charter, Voter
from protocol.signing import Signer
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.log import ENTRIES_KEPT, Floor, LogStart


class VoterDisk(Protocol):
    """What recovery reads: the files of a voter, or their stand-in in virtual time."""

    @property
    def last(self) -> int: ...

    @property
    def certified(self) -> int: ...

    def floor_state(self) -> tuple[Floor, SwarmSummary | None]: ...

    def records(self, after: int) -> Iterable[bytes]: ...

    def certificate(self, index: int) -> Certificate | None: ...

    def cut_for_epoch(self, index: int, epoch: int) -> None: ...

    def leave_log(self, epoch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LogView:
    """What a pass over the stored log says."""

    charter: Charter
    """In force behind its last certified record."""
    certified: int
    """Last record that is proven to be committed."""
    start: Floor
    """Where the part begins that is worth keeping in memory."""
    start_charter: Charter
    start_admissions: dict[bytes, records.Admission]
    is_adopted: bool
    """Whether the start's charter is in the log before it, not only told by the owner."""


def enter_epoch(disk: VoterDisk, charter: Charter) -> None:
    """Drop what the owner voided by beginning a new epoch, if this log has any of it.

    A log that cannot prove all up to the origin is left too: a leader must be able to bring others
    there. Whoever can prove it hands the state over.
    """
    origin = charter.origin
    floor, summary = disk.floor_state()
    if origin is None or disk.last == 0:
        return
    if summary is not None and summary.epoch == charter.epoch:
        return
    previous, index = floor.head, floor.index
    is_ours = (index, previous) == (origin.index, origin.head)
    for encoded in disk.records(floor.index):
        record = records.read_record(encoded)
        if record.epoch == charter.epoch:
            return  # This log is in the epoch already.
        if record.index > origin.index:
            break
        index, previous = record.index, records.record_hash(encoded)
        is_ours = is_ours or (index, previous) == (origin.index, origin.head)
    if is_ours and disk.certified >= origin.index:
        disk.cut_for_epoch(origin.index, charter.epoch)
    else:
        disk.leave_log(charter.epoch)


def scan(disk: VoterDisk, newest: Charter, signer: Signer) -> LogView:
    """One pass over the stored log: charters, admissions, and where memory should begin."""
    floor, summary = disk.floor_state()
    charter, admissions = newest, dict[bytes, records.Admission]()
    ruling: Charter | None = None
    if summary is not None:
        found = [wire.decode(one.charter.payload, Charter) for one in summary.charters[-1:]]
        if found and found[-1].epoch == summary.epoch:
            charter = ruling = found[-1]
        if ruling is not None or summary.epoch != newest.epoch:
            # Else the floor lies between the start of an epoch and its first charter's record.
            admissions = {one.key: one for one in summary.admissions}
    origin = newest.origin
    lowest = max(floor.index, disk.certified - ENTRIES_KEPT, origin.index if origin else 0)
    place = floor
    is_adopted = ruling is not None
    start = (place, charter, dict(admissions), is_adopted)
    for encoded in disk.records(floor.index):
        if place.index <= lowest:
            start = (place, charter, dict(admissions), is_adopted)
        record = records.read_record(encoded)
        place = Floor(record.index, record.term, records.record_hash(encoded))
        match record.body:
            case records.CharterAdopted(envelope):
                charter = wire.decode(envelope.payload, Charter)
                is_adopted = True
                ruling = charter if place.index <= disk.certified else ruling
            case records.VotersAdmitted(voters):
                admissions.update({one.key: one for one in voters})
    if place.index <= lowest:
        start = (place, charter, dict(admissions), is_adopted)
    if origin is not None and start[0].index == origin.index:
        # A new epoch begins here: the owner says who votes, and all are admitted anew.
        start = (start[0], newest if charter.epoch < newest.epoch else charter, {}, False)
        charter = start[1]
    certified = disk.certified
    if origin is not None and place.index >= origin.index:
        certified = max(certified, origin.index)
    ruling = ruling if ruling is not None and ruling.epoch == charter.epoch else None
    charter, certified = _prove_alone(disk, certified, ruling, charter, signer)
    return LogView(charter, certified, *start)


def _prove_alone(
    disk: VoterDisk, certified: int, ruling: Charter | None, newest: Charter, signer: Signer
) -> tuple[Charter, int]:
    """How far this host proves what it stored where it needs nobody else, and the charter there.

    ruling: in force behind record `certified`; None before a log's first one, which holds from the
    log's start.
    """
    stored = [records.read_record(encoded) for encoded in disk.records(certified)]
    adopted = [
        wire.decode(record.body.charter.payload, Charter)
        for record in stored
        if isinstance(record.body, records.CharterAdopted)
    ]
    charter = ruling or next(iter(adopted), newest)
    for record in stored:
        if not records.electorate(record.body, charter).has_enough({signer.key}):
            break
        certified = record.index
        if isinstance(record.body, records.CharterAdopted):
            charter = adopted.pop(0)
    return charter, certified


def log_start(disk: VoterDisk, view: LogView) -> LogStart:
    """What a voter's log in memory begins with."""
    certificates = []
    for index in range(view.start.index + 1, view.certified + 1):
        certificate = disk.certificate(index)
        if certificate is None:
            raise CorruptState(f"the certificate of record {index} is damaged")
        certificates.append(certificate)
    return LogStart(
        floor=view.start,
        charter=view.start_charter,
        admissions=view.start_admissions,
        records=list(disk.records(view.start.index)),
        certificates=certificates,
        is_adopted=view.is_adopted,
    )


def is_sole_voter(signer: Signer, voters: tuple[Voter, ...]) -> bool:
    """Whether this host alone decides what is committed."""
    return len(voters) == 1 and voters[0].key == signer.key


def lone_ballot(disk: VoterDisk, newest: Charter, signer: Signer) -> Ballot | None:
    """A ballot for the log of a disk that lost its own; None if this host ever shared its votes.

    It may vote as it likes: nobody else's vote counts beside it. Its number of starts is one that
    it did not reach, unless it was started more often than it wrote records, so that a voter that
    comes later takes nothing that this disk once said for newer.
    """
    floor, summary = disk.floor_state()
    place, admission = floor, None
    charters = [newest]
    if summary is not None:
        charters += [wire.decode(one.charter.payload, Charter) for one in summary.charters]
        admission = next((one for one in summary.admissions if one.key == signer.key), None)
    for encoded in disk.records(floor.index):
        record = records.read_record(encoded)
        place = Floor(record.index, record.term, records.record_hash(encoded))
        match record.body:
            case records.CharterAdopted(envelope):
                charters.append(wire.decode(envelope.payload, Charter))
            case records.VotersAdmitted(voters):
                admission = next((one for one in voters if one.key == signer.key), admission)
    if admission is None or not all(is_sole_voter(signer, one.voters) for one in charters):
        return None
    ballot = Ballot(admission.disk, place.index, place.term)
    return msgspec.structs.replace(ballot, generation=admission.generation)


def recertify(
    encoded: bytes, certificate: Certificate | None, signer: Signer, voters: tuple[Voter, ...]
) -> CertifiedRecord | None:
    """The stored record with its certificate, made anew if this host is the only voter.

    A sole voter always signs anew, so that entries from before a change of its key are proven by
    the charter of now.
    """
    if not is_sole_voter(signer, voters):
        return None if certificate is None else CertifiedRecord(encoded, certificate)
    record = records.read_record(encoded)
    digest = records.record_hash(encoded)
    return CertifiedRecord(
        encoded, records.certify(record, digest, [records.sign_record(record, digest, signer)])
    )


def refold(
    state: SwarmState,
    stored: Iterable[bytes],
    on_version: Callable[[records.NewVersions], None] | None = None,
    log: str = "the stored log",
) -> None:
    """Apply stored records to `state`, in order, and name each new version on the way. Raises as
    `refold_all`."""
    for record in refold_all(state, stored, log):
        if on_version is not None and isinstance(record.body, records.NewVersions):
            on_version(record.body)


def refold_all(
    state: SwarmState, stored: Iterable[bytes], log: str = "the stored log"
) -> Iterator[records.Record]:
    """Each stored record in order, once it was applied to `state`.

    Raises CorruptState if the chain is broken; log: what is read, in words.
    """
    for encoded in stored:
        record = records.read_record(encoded)
        if record.index != state.index + 1 or record.previous != state.head:
            raise CorruptState(f"{log} breaks at record {state.index + 1}")
        state.apply(record, records.record_hash(encoded))
        yield record
