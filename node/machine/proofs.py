"""The certified entries that prove what a learner holds, so that it can prove it to others.

When no syncer's disk is left, the owner begins a new epoch from the newest state that a learner can
prove: the head of its log, and the origin of every fragment's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol import wire
from protocol.log.records import Body, FragmentMerged, Record
from protocol.log.state import FragmentState, SwarmState, SwarmSummary
from protocol.messages import CertifiedRecord

Versions = tuple[int, ...]
"""Of each fragment."""

FORMERS_MAX = 8


def _versions(fragments: Sequence[FragmentState]) -> Versions:
    return tuple(one.version for one in fragments)


@dataclass(frozen=True, slots=True)
class ProvenState:
    """What the log said at a record, and what proves it."""

    head: CertifiedRecord
    origins: list[CertifiedRecord]
    """Of every fragment, in log order."""
    summary: SwarmSummary


@dataclass(slots=True)
class Proofs:
    """The head of the log, and where each fragment's newest version comes from."""

    head: CertifiedRecord | None = None
    formers: list[ProvenState] = field(default_factory=list)
    """States before merges whose payloads are not all here yet, oldest first.

    A merge whose payload nobody fetched is lost with the syncer's disk, and with it every state
    behind it: what can be gone on from is the one before.
    """
    _origins: dict[int, CertifiedRecord] = field(default_factory=dict)

    def start(self, origins: list[CertifiedRecord]) -> None:
        """Begin with an index; its head is proven by the first record that follows."""
        self.head = None
        self.formers.clear()
        self._origins = {wire.decode(one.record, Record).index: one for one in origins}

    def add(self, entry: CertifiedRecord, index: int, state: SwarmState) -> None:
        """Keep the next entry, and forget what it made obsolete."""
        self.head = entry
        needed = {fragment.record_index for fragment in state.fragments}
        if index in needed:
            self._origins[index] = entry
            self._origins = {at: one for at, one in self._origins.items() if at in needed}

    def before(self, body: Body, state: SwarmState, held: Versions) -> None:
        """A record is about to be applied to this state, of which such weights are here."""
        if not isinstance(body, FragmentMerged):
            return
        if held == _versions(state.fragments):
            self.formers.clear()
        proven = self._proven(state)
        if proven is not None and len(self.formers) < FORMERS_MAX:
            self.formers.append(proven)

    def newest_held(self, state: SwarmState, held: Versions) -> ProvenState | None:
        """The newest state that can be proven and whose weights are all here; this one where there
        is none, as others may have the rest. None if it cannot be proven."""
        if held != _versions(state.fragments):
            for former in reversed(self.formers):
                if held == _versions(former.summary.fragments):
                    return former
        return self._proven(state)

    def _proven(self, state: SwarmState) -> ProvenState | None:
        origins = self.origins(state)
        if self.head is None or origins is None:
            return None
        return ProvenState(self.head, origins, state.summary())

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
