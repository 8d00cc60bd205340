"""What a leader remembers of former pushes, to see who repeats itself. In memory alone.

A new leader knows nothing yet, so with each learner's first push it finds no repetition; what
former leaders found is in the log. Own parts of a merge are taken once its record is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from protocol.numerics.codecs import F32
from protocol.numerics.repeats import Former, remembered

LEARNERS_MAX = 64
"""Whose parts are remembered, of each fragment: 32 KiB each."""

Candidate = tuple[int, int, bytes]
"""Fragment, version, and payload of a merge."""


class OwnParts:
    """Of all fragments."""

    def __init__(self) -> None:
        self._seeds: dict[int, int] = {}
        self._parts: dict[int, dict[bytes, F32]] = {}
        self._candidates: dict[Candidate, dict[bytes, F32]] = {}

    def former(self, fragment: int, seed: int) -> Former:
        """What is remembered. seed: of the first merge is that of all, so that they compare."""
        parts = self._parts.setdefault(fragment, {})
        return Former(self._seeds.setdefault(fragment, seed), MappingProxyType(parts))

    def propose(self, candidate: Candidate, parts: Mapping[bytes, F32]) -> None:
        """These are of a merge that may be committed."""
        self._candidates[candidate] = dict(parts)

    def adopt(self, candidate: Candidate) -> None:
        """It was committed: to what is remembered of each learner in it, its push is added."""
        known = self._parts.setdefault(candidate[0], {})
        for learner, part in self._candidates.pop(candidate, {}).items():
            known[learner] = remembered(known.pop(learner, None), part)
        while len(known) > LEARNERS_MAX:
            del known[next(iter(known))]

    def drop(self, candidate: Candidate) -> None:
        """It will not be."""
        self._candidates.pop(candidate, None)
