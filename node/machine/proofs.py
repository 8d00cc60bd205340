"""The certified entries that prove what a learner holds, so that it can prove it to others.

When no syncer's disk is left, the owner begins a new epoch from the newest state that a learner can
prove: the head of its log, and the origin of every fragment's version.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol import wire
from protocol.log.records import Record
from protocol.log.state import SwarmState
from protocol.messages import CertifiedRecord


@dataclass(slots=True)
class Proofs:
    """The head of the log, and where each fragment's newest version comes from."""

    head: CertifiedRecord | None = None
    _origins: dict[int, CertifiedRecord] = field(default_factory=dict)

    def start(self, origins: list[CertifiedRecord]) -> None:
        """Begin with an index; its head is proven by the first record that follows."""
        self.head = None
        self._origins = {wire.decode(one.record, Record).index: one for one in origins}

    def add(self, entry: CertifiedRecord, index: int, state: SwarmState) -> None:
        """Keep the next entry, and forget what it made obsolete."""
        self.head = entry
        needed = {fragment.record_index for fragment in state.fragments}
        if index in needed:
            self._origins[index] = entry
            self._origins = {at: one for at, one in self._origins.items() if at in needed}

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
