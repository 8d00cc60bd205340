"""The certified entries that prove what a learner holds, so that it can prove it to others.

When no syncer's disk is left, the owner begins a new epoch from the newest state that a learner can
prove: the head of its log, and the origin of every fragment's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.log.records import Body, FragmentMerged, read_record, record_hash, told_in_brief
from protocol.log.state import FragmentState, SwarmState, SwarmSummary
from protocol.messages import CertifiedRecord

Versions = tuple[int, ...]
"""Of each fragment."""

FORMERS_MAX = 8

BASE_EVERY = 64
"""Merges between two summaries of the state: one takes longer than a merge, and as much memory."""

RECORDS_MAX = 4096
"""Records kept behind a summary; of more, no former state is proven any more."""


def _versions(fragments: Sequence[FragmentState]) -> Versions:
    return tuple(one.version for one in fragments)


@dataclass(frozen=True, slots=True)
class ProvenState:
    """What the log said at a record, and what proves it."""

    head: CertifiedRecord
    origins: list[CertifiedRecord]
    """Of every fragment, in log order."""
    summary: SwarmSummary


@dataclass(frozen=True, slots=True)
class FormerState:
    """A `ProvenState` of which the summary is put together once somebody asks."""

    index: int
    versions: Versions
    head: CertifiedRecord
    origins: list[CertifiedRecord]


@dataclass(slots=True)
class Proofs:
    """The head of the log, and where each fragment's newest version comes from."""

    head: CertifiedRecord | None = None
    formers: list[FormerState] = field(default_factory=list)
    """States before merges whose payloads are not all here yet, oldest first.

    A merge whose payload nobody fetched is lost with the syncer's disk, and with it every state
    behind it: what can be gone on from is the one before.
    """
    _origins: dict[int, CertifiedRecord] = field(default_factory=dict)
    _base: SwarmSummary | None = None
    """The state before or at the oldest former one."""
    _merges: int = 0
    """Since the base."""
    _behind: list[CertifiedRecord] = field(default_factory=list)
    """Records behind the base, up to the newest former state at least."""

    def start(self, origins: list[CertifiedRecord]) -> None:
        """Begin with an index; its head is proven by the first record that follows."""
        self.head = None
        self._begin_anew()
        self._origins = {read_record(one.record, may_be_brief=True).index: one for one in origins}

    def go_on(self, head: CertifiedRecord, origins: Sequence[CertifiedRecord]) -> None:
        """Begin where another life ended."""
        self.start(list(origins))
        self.head = head

    def add(self, entry: CertifiedRecord, index: int, state: SwarmState) -> None:
        """Keep the next entry, and forget what it made obsolete."""
        self.head = entry
        if self._base is not None and len(self.formers) < FORMERS_MAX:
            self._behind.append(entry)
            if len(self._behind) > RECORDS_MAX:
                self._begin_anew()
        needed = {fragment.record_index for fragment in state.fragments}
        if index in needed:
            self._origins[index] = told_in_brief(entry)
            self._origins = {at: one for at, one in self._origins.items() if at in needed}

    def before(self, body: Body, state: SwarmState, held: Versions) -> None:
        """A record is about to be applied to this state, of which such weights are here."""
        if not isinstance(body, FragmentMerged):
            return
        versions = _versions(state.fragments)
        if held == versions:
            if len(self.formers) >= FORMERS_MAX or self._merges >= BASE_EVERY:
                self._begin_anew()
            self.formers.clear()
        self._merges += 1
        origins = self.origins(state)
        if self.head is None or origins is None or len(self.formers) >= FORMERS_MAX:
            return
        if self._base is None:
            self._base = state.summary()
        self.formers.append(FormerState(state.index, versions, self.head, origins))

    def _begin_anew(self) -> None:
        """Nothing of before is proven any more."""
        self.formers.clear()
        self._behind.clear()
        self._base, self._merges = None, 0

    def newest_held(self, state: SwarmState, held: Versions) -> ProvenState | None:
        """The newest state that can be proven and whose weights are all here; this one where there
        is none, as others may have the rest. None if it cannot be proven."""
        if held != _versions(state.fragments):
            for former in reversed(self.formers):
                if held == former.versions:
                    summary = self._summary_at(former.index, state)
                    return ProvenState(former.head, former.origins, summary)
        origins = self.origins(state)
        if self.head is None or origins is None:
            return None
        return ProvenState(self.head, origins, state.summary())

    def _summary_at(self, index: int, newest: SwarmState) -> SwarmSummary:
        """Folded once more from the base; every record was proven when it came."""
        state = SwarmState.restore(self._base, newest.block_sequences, newest.own)
        if newest.is_brief:
            state.follow_in_brief()
        for entry in self._behind[: index - state.index]:
            state.apply(read_record(entry.record, may_be_brief=True), record_hash(entry.record))
        return state.summary()

    @property
    def newest(self) -> CertifiedRecord | None:
        """The newest record of all that are proven; None before there is any."""
        if self.head is not None:
            return self.head
        return max(self._origins.values(), key=lambda one: one.certificate.index, default=None)

    def origins(self, state: SwarmState) -> list[CertifiedRecord] | None:
        """The origins of every fragment in log order; None if one is missing."""
        needed = sorted({fragment.record_index for fragment in state.fragments})
        if not all(index in self._origins for index in needed):
            return None
        return [self._origins[index] for index in needed]
