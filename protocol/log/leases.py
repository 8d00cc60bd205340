"""Who trains on which blocks: leased positions of one seeded permutation, no overlap and no gap.

A pure fold over committed records: grants, hand-ins and returns. A position counts as done when
the step that read it was handed in; whatever a lost session read but did not hand in is leased
again, because those steps died with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from protocol.errors import MalformedMessage
from protocol.ids import SessionKey
from protocol.log.records import Span
from protocol.messages import Cursor


class LeaseEntry(Struct, frozen=True, array_like=True):
    """One session's unread positions, in reading order."""

    learner: bytes
    incarnation: int
    since_s: float
    """Wall clock of its first lease: no local step can be older."""
    spans: tuple[Span, ...]


@dataclass(slots=True)
class LeaseBook:
    """Positions handed out, positions given back, and the first one nobody ever had."""

    next_position: int = 0
    returned: list[Span] = field(default_factory=list)
    held: dict[SessionKey, list[Span]] = field(default_factory=dict)
    since_s: dict[SessionKey, float] = field(default_factory=dict)
    changes: int = field(default=0, compare=False)
    """Grows with every lease and return; no part of the state."""

    def pick(self, blocks: int) -> tuple[Span, ...]:
        """The spans a new lease of so many blocks would take: given-back ones first."""
        picked: list[Span] = []
        wanted = blocks
        for span in self.returned:
            if wanted == 0:
                break
            stop = min(span.stop, span.start + wanted)
            picked.append(Span(span.start, stop, span.skip))
            wanted -= stop - span.start
        if wanted:
            picked.append(Span(self.next_position, self.next_position + wanted, 0))
        return tuple(picked)

    def lease(self, session: SessionKey, spans: tuple[Span, ...], at_s: float) -> None:
        """Hand out spans that `pick` named. MalformedMessage if they cannot be handed out."""
        self.changes += 1
        self.since_s.setdefault(session, at_s)
        held = self.held.setdefault(session, [])
        for span in spans:
            self._take(span)
            if held and held[-1].stop == span.start and span.skip == 0:
                held[-1] = Span(held[-1].start, span.stop, held[-1].skip)
            else:
                held.append(span)

    def advance(self, session: SessionKey, cursor: Cursor, block_sequences: int) -> None:
        """What this session read before the cursor is done.

        A cursor outside its spans changes nothing: a learner cannot finish what it does not hold.
        """
        spans = self.held.get(session)
        if not spans:
            return
        position, sequence = cursor.position, cursor.sequence
        if sequence >= block_sequences:
            position, sequence = position + 1, 0
        for at, span in enumerate(spans):
            start, stop = span.start, span.stop
            if start <= position < stop:
                skip = max(sequence, span.skip) if position == start else sequence
                if at or position != start or skip != span.skip:
                    self.held[session] = [Span(position, stop, skip), *spans[at + 1 :]]
                return
            if position == stop and sequence == 0:
                self.held[session] = spans[at + 1 :]
                return

    def give_back(self, session: SessionKey) -> None:
        """A session ended: its unread spans are leased again, oldest positions first."""
        self.changes += 1
        spans = self.held.pop(session, [])
        self.since_s.pop(session, None)
        self.returned = sorted([*self.returned, *spans], key=lambda span: span.start)

    def unread(self, session: SessionKey) -> int:
        """Blocks this session still holds, a partly read one counted whole."""
        return sum(span.stop - span.start for span in self.held.get(session, []))

    def entries(self) -> tuple[LeaseEntry, ...]:
        """All sessions' spans, in key order."""
        return tuple(
            LeaseEntry(session[0], session[1], self.since_s[session], tuple(spans))
            for session, spans in sorted(self.held.items())
        )

    def _take(self, wanted: Span) -> None:
        if wanted.start >= self.next_position:
            if wanted.start > self.next_position:
                raise MalformedMessage("a lease skips positions")
            self.next_position = wanted.stop
            return
        for at, span in enumerate(self.returned):
            if span.start == wanted.start and wanted.stop <= span.stop:
                rest = [Span(wanted.stop, span.stop, 0)] if wanted.stop < span.stop else []
                self.returned[at : at + 1] = rest
                return
        raise MalformedMessage("a lease names positions that are neither new nor given back")
