"""Committed entries at hand: for learners that continue their log, and for those that join."""

from __future__ import annotations

from collections import deque

from msgspec import structs

from protocol import limits, wire
from protocol.log.batching import told_bytes
from protocol.log.records import NewVersions, Record, WeightsInitialised
from protocol.log.state import SwarmState
from protocol.messages import CertifiedRecord, FragmentIndex, Hello
from syncer_node.machine.setup import Recovered

RECENT_RECORDS = 2048
"""Committed records kept at hand; a learner that is further behind starts from the index."""


class RecentEntries:
    """The newest entries, and those that made the newest version of some fragment."""

    def __init__(self, recovered: Recovered, state: SwarmState) -> None:
        self._state = state
        self._recent: deque[CertifiedRecord] = deque(recovered.recent, maxlen=RECENT_RECORDS)
        self._origins = dict(recovered.origins)

    @property
    def newest(self) -> CertifiedRecord | None:
        """The entry at which the state stands."""
        return self._recent[-1] if self._recent else None

    @property
    def recent_bytes(self) -> int:
        """About what the entries at hand take."""
        return sum(len(entry.record) for entry in self._recent)

    def add(self, record: Record, entry: CertifiedRecord) -> None:
        """Keep an entry that was just committed and applied to the state."""
        self._recent.append(entry)
        if isinstance(record.body, NewVersions | WeightsInitialised):
            self._origins[record.index] = entry
            needed = {fragment.record_index for fragment in self._state.fragments}
            self._origins = {at: kept for at, kept in self._origins.items() if at in needed}

    def continuation(self, hello: Hello) -> list[CertifiedRecord] | None:
        """The entries after the learner's head; None when it must start from the index, as where
        they are more than goes at once."""
        behind = self._state.index - hello.head_index
        if hello.head_index == 0 or behind < 0 or behind > len(self._recent):
            return None
        if behind == 0:
            return [] if hello.head == self._state.head else None
        entries = list(self._recent)[-behind:]
        if sum(map(told_bytes, entries)) > limits.PIECES_AT_ONCE_MAX * limits.ENTRIES_BYTES_MAX:
            return None
        previous = wire.decode(entries[0].record, Record).previous
        return entries if previous == hello.head else None

    def origins(self, after: int = 0) -> list[CertifiedRecord]:
        """The proofs of every fragment's newest state, in log order; of those after a record."""
        indices = sorted({fragment.record_index for fragment in self._state.fragments})
        return [self._origins[index] for index in indices if index > after]

    def index(self, joiner: bytes) -> FragmentIndex:
        """Where a joiner starts, once it has the origins. A suspended one learns that it is."""
        summary = self._state.summary(
            with_accounts=False,
            with_norms=False,
            with_invites=False,
            with_coverage=False,
            with_charters=False,
        )
        if self._state.is_suspended(joiner):
            told = {joiner: self._state.accounts[joiner].suspension}
            summary = structs.replace(summary, accounts=told)
        return FragmentIndex(self._state.index, self._state.head, wire.encode(summary))
