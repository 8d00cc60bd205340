"""Vector clocks: what a host has seen of the log, so that two hosts' presents can be compared."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Count

Steps = Annotated[tuple[Count, ...], Meta(max_length=limits.FRAGMENTS_MAX)]


class VectorClock(Struct, frozen=True, array_like=True):
    """What a learner has seen of the log: its newest record, and a version of every fragment."""

    log_index: Count
    versions: Steps

    def has_observed(self, other: VectorClock) -> bool:
        """Whether nothing in `other` is newer; clocks of different length know nothing of each
        other."""
        if self.log_index < other.log_index or len(self.versions) != len(other.versions):
            return False
        return all(mine >= its for mine, its in zip(self.versions, other.versions, strict=True))
