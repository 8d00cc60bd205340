"""A voter's log in memory: the newest records, how far they are stored, certified, committed.

    floor <= certified <= committed <= last            floor <= stable <= last

Records up to `certified` are proven by certificates and are applied; those up to `committed` are
known to be in every later leader's log, their own certificates are being collected; those up to
`stable` are on this disk. Only what is beyond `committed` may ever be cut off again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol import limits, wire
from protocol.errors import BadSignature, CorruptState, MalformedMessage, UnexpectedMessage
from protocol.log import records as log_records
from protocol.messages import Certificate, CertifiedRecord, Vote
from protocol.project import Charter, Voter
from protocol.signing import Verify

ENTRIES_KEPT = 2048
"""Certified records kept at hand for voters that are behind; others start from the state."""

BATCH_BYTES_MAX = limits.FRAME_BYTES_MAX // 2


@dataclass(slots=True)
class Entry:
    """One record on its way, with the votes that its leader has for it."""

    record: log_records.Record
    encoded: bytes
    digest: bytes
    certificate: Certificate | None = None
    votes: dict[bytes, Vote] = field(default_factory=dict)

    @property
    def certified(self) -> CertifiedRecord:
        assert self.certificate is not None, "only certified records leave the log"
        return CertifiedRecord(self.encoded, self.certificate)

    @classmethod
    def read(cls, encoded: bytes) -> Entry:
        """The entry of these bytes. Raises MalformedMessage."""
        return cls(log_records.read_record(encoded), encoded, log_records.record_hash(encoded))


@dataclass(frozen=True, slots=True)
class Floor:
    """The record before the first one at hand."""

    index: int = 0
    term: int = 0
    head: bytes = log_records.NO_RECORD


@dataclass(frozen=True, slots=True)
class LogStart:
    """What a disk gave back: the state's place in the log, and the records around it."""

    floor: Floor
    charter: Charter
    """In force behind the floor."""
    admissions: dict[bytes, log_records.Admission]
    """As of the floor."""
    records: Sequence[bytes]
    """Stored records behind the floor."""
    certificates: Sequence[Certificate]
    """Of the first of them, without a gap."""
    is_adopted: bool = False
    """Whether a record up to the floor adopted the charter; else the log's first one will."""


class RaftLog:
    """Records by index, from the floor on."""

    def __init__(self, project: bytes, start: LogStart) -> None:
        self.project = project
        self.floor = start.floor
        self.entries: deque[Entry] = deque()
        self.stable = self.certified = self.committed = start.floor.index
        self.proofs_kept = start.floor.index
        """Certificates up to here are known to be on this disk."""
        self.entries_kept = ENTRIES_KEPT
        self._told = start.charter
        self._is_adopted = start.is_adopted or bool(start.admissions)
        self._charters: list[tuple[int, Charter]] = [(start.floor.index, start.charter)]
        self._admissions: list[tuple[int, dict[bytes, log_records.Admission]]] = [
            (start.floor.index, dict(start.admissions))
        ]
        for encoded in start.records:
            self.add(Entry.read(encoded))
        self.stable = self.last
        for certificate in start.certificates:
            self.entry(certificate.index).certificate = certificate
            self.certified = self.committed = self.proofs_kept = certificate.index

    # Looking.

    @property
    def last(self) -> int:
        """Index of the last record, stored or not."""
        return self.floor.index + len(self.entries)

    @property
    def head(self) -> bytes:
        """Hash of the last record."""
        return self.digest_at(self.last)

    def holds(self, index: int) -> bool:
        """Whether the record is at hand."""
        return self.floor.index < index <= self.last

    def entry(self, index: int) -> Entry:
        assert self.holds(index), f"record {index} is not at hand"
        return self.entries[index - self.floor.index - 1]

    def digest_at(self, index: int) -> bytes:
        return self.floor.head if index == self.floor.index else self.entry(index).digest

    def term_at(self, index: int) -> int:
        return self.floor.term if index == self.floor.index else self.entry(index).record.term

    @property
    def charter(self) -> Charter:
        """The newest in the log; it counts as soon as it is there."""
        return self._charters[-1][1]

    def newest_charter(self) -> tuple[int, Charter]:
        """The newest charter in the log, and the record that adopted it."""
        return self._charters[-1]

    @property
    def is_changing(self) -> bool:
        """Whether a charter is on its way that is not yet committed."""
        return self._charters[-1][0] > self.committed

    @property
    def is_formed(self) -> bool:
        """Whether a stored record says which disks vote."""
        return any(admitted and at <= self.stable for at, admitted in self._admissions)

    def charters_in_play(self) -> list[Charter]:
        """The charter that is known to be committed, and those that are to replace it."""
        charters: list[Charter] = []
        for at, charter in reversed(self._charters):
            charters.append(charter)
            if at <= self.committed:
                break
        return charters

    def voter(self, key: bytes) -> Voter | None:
        """The voter with this key; while the charter changes, also one of the former."""
        found = (charter.voter(key) for charter in self.charters_in_play())
        return next((voter for voter in found if voter is not None), None)

    def electorates(self) -> list[log_records.Electorate]:
        """Who must agree to a leader: while the charter changes, those who must sign the change.

        Else those of before and those of now could each elect a leader of their own.
        """
        changes = [self.electorate(at) for at, _ in self._charters if at > self.committed]
        return [log_records.Electorate.of(self.charter.voters), *changes]

    def charter_before(self, index: int) -> Charter:
        """The charter in force when this record was made."""
        return next(charter for at, charter in reversed(self._charters) if at < index)

    def electorate(self, index: int) -> log_records.Electorate:
        """Who must sign this record."""
        return log_records.electorate(self.entry(index).record.body, self.charter_before(index))

    def is_admitted(self, key: bytes, disk: bytes) -> bool:
        """Whether votes of this voter's disk count."""
        admission = self._admissions[-1][1].get(key)
        voter = self.voter(key)
        return (
            admission is not None
            and voter is not None
            and (admission.generation, admission.disk) == (voter.disk, disk)
        )

    def has_admission(self, key: bytes, generation: int, disk: bytes) -> bool:
        """Whether the log admits this disk under this generation."""
        admission = self._admissions[-1][1].get(key)
        return admission is not None and admission == log_records.Admission(key, generation, disk)

    def is_known_disk(self, key: bytes, generation: int, disk: bytes) -> bool:
        """Whether the log names no other disk for this generation of a voter."""
        admission = self._admissions[-1][1].get(key)
        return admission is None or admission.generation < generation or admission.disk == disk

    def batch(self, after: int, *, up_to: int | None = None) -> tuple[bytes, ...]:
        """The encoded records behind this one, as many as go into one message."""
        end = self.last if up_to is None else up_to
        batch: list[bytes] = []
        size = 0
        for index in range(after + 1, end + 1):
            encoded = self.entry(index).encoded
            size += len(encoded) + 16
            if batch and (size > BATCH_BYTES_MAX or len(batch) == limits.RECORDS_PER_MESSAGE_MAX):
                break
            batch.append(encoded)
        return tuple(batch)

    # Changing.

    def begin_with(self, charter: Charter) -> None:
        """No record is stored yet in this epoch: a newer charter is in force from its start."""
        self._told = charter
        self._charters = [(self.floor.index, charter)]

    def propose(self, body: log_records.Body, *, epoch: int, term: int, at_s: float) -> Entry:
        """Put a new record behind the last."""
        record = log_records.Record(self.project, epoch, term, self.last + 1, self.head, at_s, body)
        encoded = log_records.encode_record(record)
        entry = Entry(record, encoded, log_records.record_hash(encoded))
        self.add(entry)
        return entry

    def add(self, entry: Entry) -> None:
        """Put a record behind the last. Raises MalformedMessage if it does not belong there."""
        record = entry.record
        if (record.index, record.previous) != (self.last + 1, self.head):
            raise MalformedMessage(f"record {record.index} does not follow record {self.last}")
        if record.project != self.project or record.term < self.term_at(self.last):
            raise MalformedMessage(f"record {record.index} is of another log")
        match record.body:
            case log_records.CharterAdopted(envelope):
                self._adopt(record.index, wire.decode(envelope.payload, Charter))
            case log_records.VotersAdmitted(voters):
                former = self._admissions[-1][1]
                now = {**former, **{one.key: one for one in voters}}
                self._admissions.append((record.index, now))
        self.entries.append(entry)

    def _adopt(self, index: int, charter: Charter) -> None:
        """From this record on the charter holds; the first one of a log did so from its start.

        A voter that joins later was told a newer one, whose voters did not sign the first records.
        """
        if not self._has_first_charter():
            self._charters = [(self.floor.index, charter)]
        self._charters.append((index, charter))

    def _has_first_charter(self) -> bool:
        return len(self._charters) > 1 or self._is_adopted

    def cut(self, after: int) -> None:
        """Drop the records behind this one, which another leader replaced."""
        if after < self.committed:
            raise CorruptState(f"record {self.committed} is committed and cannot be taken back")
        while self.last > after:
            self.entries.pop()
        self.stable = min(self.stable, after)
        self._charters = [pair for pair in self._charters if pair[0] <= after]
        self._admissions = [pair for pair in self._admissions if pair[0] <= after]
        if not self._has_first_charter():
            self._charters = [(self.floor.index, self._told)]

    def drop_unstored(self) -> None:
        """Forget what never reached this disk: a candidate stands on what it has stored."""
        self.committed = min(self.committed, max(self.stable, self.certified))
        self.cut(self.stable)

    def stored(self, after: int, records: Sequence[bytes]) -> None:
        """These records are on the disk behind that one, unless they were replaced meanwhile."""
        for index, encoded in enumerate(records, after + 1):
            if index != self.stable + 1:
                continue
            if not self.holds(index) or self.entry(index).encoded != encoded:
                return
            self.stable = index

    def vote(self, index: int, vote: Vote) -> None:
        """Keep a voter's signature for a record that is not yet certified."""
        if self.certified < index <= self.last:
            self.entry(index).votes[vote.voter] = vote

    def certify(self, term: int) -> list[Entry]:
        """Records that became certified, in order.

        A record of the leader's own term with enough votes commits all before it; older ones get
        their certificates only then, because votes for them are given only then.
        """
        for index in range(self.stable, self.committed, -1):
            if self.term_at(index) != term:
                break
            if self._commits(index):
                self.committed = index
                break
        certified = []
        while self.certified < self.committed:
            index = self.certified + 1
            if self.entry(index).certificate is None and not self._has_enough(index):
                break
            self.prove(index)
            if self._waits_for_proof(index):
                break
            self.certified = index
            certified.append(self.entry(index))
        return certified

    def prove(self, index: int) -> Certificate:
        """The certificate of a record that has one, or has the votes for one."""
        entry = self.entry(index)
        if entry.certificate is None:
            assert self._has_enough(index), f"record {index} lacks votes"
            needed = self.electorate(index).members
            votes = sorted(entry.votes.values(), key=lambda vote: vote.voter not in needed)
            entry.certificate = log_records.certify(
                entry.record, entry.digest, votes[: limits.VOTES_MAX]
            )
        return entry.certificate

    def _commits(self, index: int) -> bool:
        """Whether enough voters stored this record, and with it every change of the charter."""
        votes = self.entry(index).votes
        changes = [at for at, _ in self._charters if self.committed < at < index]
        return all(self.electorate(at).has_enough(votes) for at in (index, *changes))

    def _has_enough(self, index: int) -> bool:
        return self.electorate(index).has_enough(self.entry(index).votes)

    def take_certificate(self, certificate: Certificate, verify: Verify) -> None:
        """Keep the leader's proof of a record; it and all before it are committed.

        Raises BadSignature or UnexpectedMessage if it proves nothing of what is here.
        """
        index = certificate.index
        if index <= self.certified:
            return
        if not self.holds(index) or self.entry(index).digest != certificate.record:
            raise UnexpectedMessage(f"a certificate for record {index}, which is not here")
        entry = self.entry(index)
        given = log_records.signers(certificate, entry.digest, self.project, verify)
        if not self.electorate(index).has_enough(given):
            raise BadSignature(f"{len(given)} valid votes under record {index} are not enough")
        entry.certificate = certificate
        self.committed = max(self.committed, index)

    def advance(self) -> list[Entry]:
        """Records that became certified here since, in order: proven, and on this disk."""
        certified = []
        while self.certified < self.stable and self.holds(self.certified + 1):
            following = self.entry(self.certified + 1)
            if following.certificate is None or self._waits_for_proof(self.certified + 1):
                break
            self.certified += 1
            certified.append(following)
        return certified

    def _waits_for_proof(self, index: int) -> bool:
        """Whether this record's certificate must be on disk before anything relies on it.

        Those who signed for a charter may be no voters under it: it could not be proven again.
        """
        body = self.entry(index).record.body
        return index > self.proofs_kept and isinstance(body, log_records.CharterAdopted)

    def unkept_proofs(self) -> tuple[Certificate, ...]:
        """Certificates that are to be on disk before the next record is applied."""
        index = self.certified + 1
        if index > self.stable or not self._waits_for_proof(index):
            return ()
        found = [self.entry(at).certificate for at in range(self.floor.index + 1, index + 1)]
        return tuple(one for one in found if one is not None) if found[-1] is not None else ()

    def forget_old(self) -> None:
        """Let the floor rise: what is certified long since is at hand no more."""
        kept = self.entries_kept
        while len(self.entries) > kept and self.floor.index < self.certified - kept:
            entry = self.entries.popleft()
            self.floor = Floor(entry.record.index, entry.record.term, entry.digest)
            while len(self._charters) > 1 and self._charters[1][0] <= self.floor.index:
                self._charters.pop(0)
                self._is_adopted = True
            while len(self._admissions) > 1 and self._admissions[1][0] <= self.floor.index:
                self._admissions.pop(0)
