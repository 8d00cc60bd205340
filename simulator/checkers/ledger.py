"""What every syncer ever called committed, judged from the outside: one history, well certified."""

from __future__ import annotations

from collections.abc import Callable

from protocol import limits, wire
from protocol.errors import RemoteError
from protocol.log.records import (
    CharterAdopted,
    CheckpointMarked,
    FragmentMerged,
    Record,
    StateDigests,
    WeightsInitialised,
    WeightsRestored,
    open_record,
    record_hash,
)
from protocol.messages import CertifiedRecord
from protocol.numerics.merge import push_weight
from protocol.project import Charter, WeightRule
from simulator.hosts.voter import SimVoter
from simulator.stand_ins.tiny import sim_verify


class Violation(AssertionError):
    """A promise was broken."""


class Ledger:
    """Certified records by index, whoever had them first."""

    def __init__(self, charter: Charter) -> None:
        self.entries: dict[int, bytes] = {}
        self.records: list[Record] = []
        """Without a gap, from record 1 on."""
        self.merges: list[FragmentMerged] = []
        self.versions: dict[tuple[int, int], StateDigests] = {}
        """By fragment and version; the first ones are in no merge."""
        self.newest: dict[int, tuple[int, StateDigests]] = {}
        """Version and state of every fragment."""
        self.checkpoints: dict[int, list[StateDigests]] = {}
        """What every mark was made of, by log index."""
        self.on_merge: list[Callable[[FragmentMerged, bytes | None], None]] = []
        """Told every merge with its payload, in the order of the log."""
        self.epoch = 0
        """The owner's newest."""
        self.void: dict[int, bytes] = {}
        """Records behind the origin of this epoch, certified in one before it."""
        self._charter = charter
        self._begun: list[tuple[WeightRule, int]] = []
        """Weight rules of former charters, and how many rounds may have begun under each that are
        not merged yet."""
        self._waiting: dict[int, CertifiedRecord] = {}

    def add(self, host: SimVoter, entry: CertifiedRecord, index: int) -> None:
        """A host applied this record. Raises Violation if that cannot be."""
        who = host.name
        digest = record_hash(entry.record)
        if entry.certificate.epoch < self.epoch and self.entries.get(index) != digest:
            # Somebody has not heard of the new epoch yet: also void records have one history.
            if self.void.setdefault(index, digest) != digest:
                raise Violation(f"{who} has another void record {index} than was committed before")
            return
        known = self.entries.setdefault(index, digest)
        if known != digest:
            raise Violation(f"{who} has another record {index} than was committed before")
        if index > len(self.records):
            self._waiting[index] = entry
        while len(self.records) + 1 in self._waiting:
            self._check(host, self._waiting.pop(len(self.records) + 1))

    def void_behind(self, index: int, charter: Charter) -> None:
        """The owner began an epoch behind this record: what follows it never was."""
        self.epoch = charter.epoch
        self.void = {at: digest for at, digest in self.entries.items() if at > index}
        self.entries = {at: digest for at, digest in self.entries.items() if at <= index}
        self._waiting.clear()
        del self.records[index:]
        self.merges = [one.body for one in self.records if isinstance(one.body, FragmentMerged)]
        self.versions.clear()
        self.newest.clear()
        self.checkpoints.clear()
        for record in self.records:
            self._note(record)
        self._charter = charter

    def check_whole(self) -> None:
        """Raise Violation if a record was applied and one before it was not, by anybody."""
        if self._waiting:
            after = len(self.records)
            raise Violation(f"record {min(self._waiting)} was applied, record {after + 1} never")

    def _check(self, host: SimVoter, entry: CertifiedRecord) -> None:
        try:
            record = open_record(entry, self._charter.project, self._charter, sim_verify)
        except RemoteError as error:
            raise Violation(f"{host.name} applied an unproven record: {error}") from error
        self.records.append(record)
        if isinstance(record.body, FragmentMerged):
            self._merge(host.name, record.body)
        if isinstance(record.body, WeightsRestored):
            self._restore(host.name, record.body)
        self._note(record)
        if isinstance(record.body, FragmentMerged):
            for look in self.on_merge:
                look(record.body, host.find_payload(record.body.payload))
        if isinstance(record.body, CharterAdopted):
            former = self._charter.rounds
            self._begun.append((former.weights, former.overlap_steps))
            self._charter = wire.decode(record.body.charter.payload, Charter)

    def _note(self, record: Record) -> None:
        """Which versions there are behind this record."""
        match record.body:
            case WeightsInitialised(fragments):
                self.newest = {at: (0, state) for at, state in enumerate(fragments)}
            case FragmentMerged() as merged:
                self.newest[merged.fragment] = (merged.version, merged.state)
                self.versions[merged.fragment, merged.version] = merged.state
            case WeightsRestored(versions=versions, fragments=fragments):
                self.newest = dict(enumerate(zip(versions, fragments, strict=True)))
                self.versions |= {(at, one[0]): one[1] for at, one in self.newest.items()}
            case CheckpointMarked():
                self.checkpoints[record.index] = [one[1] for _, one in sorted(self.newest.items())]

    def _restore(self, who: str, restored: WeightsRestored) -> None:
        """The next version of every fragment, with the bits of a checkpoint that was marked."""
        if list(restored.fragments) != self.checkpoints.get(restored.checkpoint):
            raise Violation(f"{who} went back to weights that were never at a checkpoint")
        if list(restored.versions) != [one[0] + 1 for _, one in sorted(self.newest.items())]:
            raise Violation(f"{who} went back to versions that are not the next ones")

    def _merge(self, who: str, merged: FragmentMerged) -> None:
        """The next version of its fragment, made by the charter in force or, where its round began
        before, by a former one, of pushes that count."""
        where = f"{who}: fragment {merged.fragment} v{merged.version}"
        self.merges.append(merged)
        if (merged.fragment, merged.version) in self.versions:
            raise Violation(f"{where} is in the log twice")
        if merged.version > 1 and (merged.fragment, merged.version - 1) not in self.versions:
            raise Violation(f"{where} has no predecessor")
        for part in merged.contributions:
            lag = merged.version - 1 - part.base_version
            if not 0 <= lag <= limits.PUSH_LAG_MAX:
                raise Violation(f"{where} counts a push that is {lag} versions behind")
            rules = (self._charter.rounds.weights, *(rule for rule, _ in self._begun))
            weights = [push_weight(rule, part.tokens, part.steps) / (1 + lag) for rule in rules]
            if all(abs(part.weight - weight) > 1e-9 * weight for weight in weights):
                raise Violation(
                    f"{where} gives a push {lag} versions behind the weight "
                    f"{part.weight:g}, not {weights[0]:g}"
                )
        self._begun = [(rule, left - 1) for rule, left in self._begun if left > 1]
