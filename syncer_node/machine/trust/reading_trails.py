"""What each session read, in its order: between two hand-ins of a fragment lies the text of a push.

Leases say what a session reads and in which order, cursors of its pushes how far it came. A probe
needs both. Kept for the leases since a leader began, and as far back as any fragment needs them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from protocol.ids import SessionKey
from protocol.log.records import Span
from protocol.log.state import SwarmState
from protocol.messages import Cursor, PushHeader, SequencePlace

SPANS_MAX = 256
"""Leases of one session that are remembered: hours of reading."""


@dataclass(slots=True)
class Trail:
    """One session's. Offsets count sequences in reading order, from where the trail began."""

    spans: list[Span] = field(default_factory=list)
    begin: int = 0
    """Offset of the first of the spans."""
    handed_in: dict[int, int] = field(default_factory=dict)
    """By fragment: the offset behind what was read for its newest push."""


@dataclass(slots=True)
class ReadingTrails:
    """All sessions'. Of those that were here before this leader, from what they held then."""

    state: SwarmState
    block_sequences: int
    fragments: int
    trails: dict[SessionKey, Trail] = field(default_factory=dict)

    def on_leased(self, session: SessionKey, spans: tuple[Span, ...]) -> None:
        """Blocks were leased to it; the record is applied to the state."""
        trail = self.trails.get(session)
        if trail is None:
            self._begin(session)
            return
        trail.spans.extend(spans)
        self._trim(trail)

    def on_returned(self, session: SessionKey) -> None:
        """It is over."""
        self.trails.pop(session, None)

    def on_push(self, session: SessionKey, header: PushHeader, sequences_max: int) -> range:
        """Offsets of what was read for this push since the one before of its fragment.

        At most the last `sequences_max` of them; empty where its cursor does not fit its leases.
        """
        trail = self.trails.get(session)
        if trail is None:
            trail = self._begin(session)
        self._trim(trail)
        end = self._offset(trail, header.cursor)
        if end is None:
            return range(0)
        former = trail.handed_in.get(header.fragment, trail.begin)
        trail.handed_in[header.fragment] = end
        # A trainer that starts again reads once more what was not handed in: then end < former.
        return range(max(former, trail.begin, end - sequences_max), end)

    def sample(
        self, session: SessionKey, read: range, count: int, rng: random.Random
    ) -> list[SequencePlace]:
        """So many of these sequences, or all where there are fewer, in reading order."""
        spans, chosen = self.trails[session], sorted(rng.sample(read, min(count, len(read))))
        return [self._place(spans, at) for at in chosen]

    def positions(self, session: SessionKey, read: range) -> set[int]:
        """Of the blocks that these sequences are in."""
        trail = self.trails[session]
        return {
            self._place(trail, at).position for at in (*read[:: self.block_sequences], read[-1])
        }

    def _begin(self, session: SessionKey) -> Trail:
        trail = Trail(list(self.state.leases.held.get(session, ())))
        self.trails[session] = trail
        self._trim(trail)
        return trail

    def _length(self, span: Span) -> int:
        return (span.stop - span.start) * self.block_sequences - span.skip

    def _offset(self, trail: Trail, cursor: Cursor) -> int | None:
        """How much of the trail lies before the cursor; None where that is outside."""
        block = self.block_sequences
        offset = trail.begin
        for span in trail.spans:
            before = (cursor.position - span.start) * block + cursor.sequence - span.skip
            if span.start <= cursor.position < span.stop and 0 <= before <= self._length(span):
                return offset + before
            offset += self._length(span)
        return None

    def _place(self, trail: Trail, offset: int) -> SequencePlace:
        left = offset - trail.begin
        for span in trail.spans:
            if left < self._length(span):
                block, sequence = divmod(left + span.skip, self.block_sequences)
                return SequencePlace(span.start + block, sequence)
            left -= self._length(span)
        raise AssertionError("it was read on this trail")

    def _trim(self, trail: Trail) -> None:
        """Forget what no fragment's next push can have been trained on, and what is too much."""
        is_known = len(trail.handed_in) == self.fragments
        needed = min(trail.handed_in.values()) if is_known else trail.begin
        while trail.spans:
            end = trail.begin + self._length(trail.spans[0])
            if end > needed and len(trail.spans) <= SPANS_MAX:
                return
            trail.begin = end
            del trail.spans[0]
