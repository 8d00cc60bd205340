"""Committed entries at hand: for learners that continue their log, and for those that join."""

from __future__ import annotations

from collections import deque

from msgspec import structs

from protocol import limits, wire
from protocol.log.batching import told_bytes
from protocol.log.records import (
    FragmentMerged,
    NewVersions,
    Record,
    WeightsInitialised,
    is_in_brief,
    read_record,
    told_in_brief,
)
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
        self._origins = {at: told_in_brief(one) for at, one in recovered.origins.items()}
        self._contributors: dict[int, frozenset[bytes]] = {}
        """Of entries that were told in brief to who came back, by log index."""

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
            self._origins[record.index] = told_in_brief(entry)
            needed = {fragment.record_index for fragment in self._state.fragments}
            self._origins = {at: kept for at, kept in self._origins.items() if at in needed}

    def continuation(
        self, hello: Hello, in_brief_for: bytes | None = None
    ) -> tuple[CertifiedRecord, ...] | None:
        """The entries after the learner's head; None when it must start from the index, as where
        they are more than goes at once.

        in_brief_for: that learner, if it follows in brief.
        """
        behind = self._state.index - hello.head_index
        if hello.head_index == 0 or behind < 0 or behind > len(self._recent):
            return None
        if behind == 0:
            return () if hello.head == self._state.head else None
        entries = list(self._recent)[-behind:]
        if in_brief_for is not None:
            entries = [self._brief_for(in_brief_for, entry) for entry in entries]
        elif is_in_brief(entries[0].record):
            return None  # All that is here of where this log begins.
        if sum(map(told_bytes, entries)) > limits.PIECES_AT_ONCE_MAX * limits.ENTRIES_BYTES_MAX:
            return None
        previous = read_record(entries[0].record, may_be_brief=True).previous
        return tuple(entries) if previous == hello.head else None

    def _brief_for(self, learner: bytes, entry: CertifiedRecord) -> CertifiedRecord:
        """An entry as a learner is told it that follows in brief."""
        known, index = self._contributors, entry.certificate.index
        if index not in known:
            body = read_record(entry.record, may_be_brief=True).body
            parts = body.contributions if isinstance(body, FragmentMerged) else ()
            if len(known) >= RECENT_RECORDS:
                known.clear()
            known[index] = frozenset(part.learner for part in parts)
        return entry if learner in known[index] else told_in_brief(entry)

    def origins(self, after: int = 0) -> list[CertifiedRecord]:
        """The proofs of every fragment's newest state, in brief and in log order; of those after a
        record."""
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
