"""What every syncer ever called committed, judged from the outside: one history, well certified."""

from __future__ import annotations

from protocol import wire
from protocol.errors import RemoteError
from protocol.messages import CertifiedRecord
from protocol.project import Charter
from protocol.records import CharterAdopted, FragmentMerged, Record, open_record, record_hash
from simulator.tiny import sim_verify


class Violation(AssertionError):
    """A promise was broken."""


class Ledger:
    """Certified records by index, whoever had them first."""

    def __init__(self, charter: Charter) -> None:
        self.entries: dict[int, bytes] = {}
        self.records: list[Record] = []
        """Without a gap, from record 1 on."""
        self.merges: list[FragmentMerged] = []
        self._charter = charter
        self._waiting: dict[int, CertifiedRecord] = {}

    def add(self, who: str, entry: CertifiedRecord, index: int) -> None:
        """Somebody applied this record. Raises Violation if that cannot be."""
        digest = record_hash(entry.record)
        known = self.entries.setdefault(index, digest)
        if known != digest:
            raise Violation(f"{who} has another record {index} than was committed before")
        if index > len(self.records):
            self._waiting[index] = entry
        while len(self.records) + 1 in self._waiting:
            self._check(who, self._waiting.pop(len(self.records) + 1))

    def _check(self, who: str, entry: CertifiedRecord) -> None:
        try:
            record = open_record(entry, self._charter.project, self._charter, sim_verify)
        except RemoteError as error:
            raise Violation(f"{who} applied an unproven record: {error}") from error
        self.records.append(record)
        if isinstance(record.body, FragmentMerged):
            self.merges.append(record.body)
        if isinstance(record.body, CharterAdopted):
            self._charter = wire.decode(record.body.charter.payload, Charter)
