"""Who trains on which blocks: leased positions of one seeded permutation, no overlap and no gap.

A pure fold over committed records: grants, hand-ins and returns. A position counts as done when
the step that read it was handed in; whatever a lost session read but did not hand in is leased
again, because those steps died with it.

The text leased to a session is a line of sequences, in the order of its leases. Where its hand-ins
of a fragment end on that line says how much the next one of that fragment can claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from protocol.errors import MalformedMessage
from protocol.ids import SessionKey
from protocol.log.records import Span
from protocol.messages import Cursor


class HandedIn(Struct, frozen=True, array_like=True):
    """How far a session's merged pushes of one fragment reach on the line of its text."""

    sequences: int = 0
    """Where the furthest of them ends."""
    tokens: int = 0
    """Of pushes since then whose end is not known: the text around it was done with already."""


NOTHING = HandedIn()

UNKNOWN = -1
"""Sequences leased to a session of which the beginning was not counted."""


class LeaseEntry(Struct, frozen=True, array_like=True):
    """One session's unread positions, in reading order."""

    learner: bytes
    incarnation: int
    since_s: float
    """Wall clock of its first lease: no local step can be older."""
    spans: tuple[Span, ...]
    granted: int = UNKNOWN
    """Sequences ever leased to it."""
    handed_in: tuple[HandedIn, ...] = ()
    """By fragment; nothing of those behind the last."""


@dataclass(frozen=True, slots=True)
class TextShape:
    """How a project cuts its text."""

    sequence_tokens: int
    block_sequences: int

    def sequences(self, tokens: int) -> int:
        """The fewest sequences that have so many tokens."""
        return -(-tokens // self.sequence_tokens)


def total(spans: Iterable[Span], block_sequences: int) -> int:
    """Sequences in spans."""
    sequences = 0
    for span in spans:  # A loop, as this is taken for each of hundreds of pushes of a merge.
        sequences += (span.stop - span.start) * block_sequences - span.skip
    return sequences


def behind(spans: Sequence[Span], cursor: Cursor, block_sequences: int) -> list[Span] | None:
    """What who read up to the cursor has still to read of spans in reading order.

    None if the cursor is in none of them.
    """
    position, sequence = cursor.position, min(cursor.sequence, block_sequences)
    for at, span in enumerate(spans):
        start, stop = span.start, span.stop
        if start <= position < stop:
            skip = max(sequence, span.skip) if position == start else sequence
            if skip == block_sequences:
                position, skip = position + 1, 0
            rest = [Span(position, stop, skip)] if position < stop else []
            return [*rest, *spans[at + 1 :]]
    for at, span in enumerate(spans):
        if position == span.stop and sequence == 0:
            return list(spans[at + 1 :])
    return None


@dataclass(slots=True)
class LeaseBook:
    """Positions handed out, positions given back or passed over, and the first behind all."""

    next_position: int = 0
    returned: list[Span] = field(default_factory=list)
    held: dict[SessionKey, list[Span]] = field(default_factory=dict)
    since_s: dict[SessionKey, float] = field(default_factory=dict)
    granted: dict[SessionKey, int] = field(default_factory=dict)
    """Sequences ever leased to a session; none for one whose beginning was not counted."""
    handed_in: dict[SessionKey, dict[int, HandedIn]] = field(default_factory=dict)
    """Of sessions in `granted`, by fragment."""
    own: bytes = field(default=b"", compare=False)
    """The learner of whose sessions `granted` and `handed_in` are kept; empty: of everybody's."""
    is_brief: bool = False
    """Of others only who is here is known, and not which text they hold or gave back."""
    changes: int = field(default=0, compare=False)
    """Grows with every lease and return; no part of the state."""
    _learners: tuple[int, frozenset[bytes]] | None = field(default=None, compare=False, repr=False)
    """After so many changes, who is here."""

    @property
    def learners(self) -> frozenset[bytes]:
        """Keys of all that have been leased text and did not leave: who is here, by the log."""
        if self._learners is None or self._learners[0] != self.changes:
            self._learners = (self.changes, frozenset(learner for learner, _ in self.since_s))
        return self._learners[1]

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

    def lease(
        self, session: SessionKey, spans: tuple[Span, ...], at_s: float, block_sequences: int
    ) -> None:
        """Hand out spans that `pick` named. MalformedMessage if they cannot be handed out."""
        self.changes += 1
        if session not in self.since_s:
            self.since_s[session] = at_s
            if not self.own or session[0] == self.own:
                self.granted[session] = 0
        held = self.held.setdefault(session, [])
        if self.is_brief and session[0] != self.own:
            return
        for span in spans:
            if self.is_brief:
                self.next_position = max(self.next_position, span.stop)
            else:
                self._take(span)
            if session in self.granted:
                self.granted[session] += total((span,), block_sequences)
            if held and held[-1].stop == span.start and span.skip == 0:
                held[-1] = Span(held[-1].start, span.stop, held[-1].skip)
            else:
                held.append(span)

    def advance(self, session: SessionKey, cursor: Cursor, block_sequences: int) -> None:
        """What this session read before the cursor is done.

        A cursor outside its spans changes nothing: a learner cannot finish what it does not hold.
        """
        left = behind(self.held.get(session, ()), cursor, block_sequences)
        if left is not None:
            self.held[session] = left

    def hand_in(
        self, session: SessionKey, fragment: int, cursor: Cursor, tokens: int, block_sequences: int
    ) -> None:
        """A push of so many tokens was merged: finish what it read, and note how far it reaches."""
        left = behind(self.held.get(session, ()), cursor, block_sequences)
        if left is not None:
            self.held[session] = left
        granted = self.granted.get(session)
        if granted is None:
            return
        reached = self.handed_in.setdefault(session, {})
        former = reached.get(fragment, NOTHING)
        end = 0 if left is None else granted - total(left, block_sequences)
        if end > former.sequences:
            reached[fragment] = HandedIn(end)
        elif tokens:  # Who came here by a summary knows of nothing that is nothing.
            reached[fragment] = HandedIn(former.sequences, former.tokens + tokens)

    def read(self, session: SessionKey, block_sequences: int) -> int | None:
        """Sequences of its line that a session is done with; None if that is not known."""
        granted = self.granted.get(session)
        if granted is None:
            return None
        return granted - total(self.held.get(session, ()), block_sequences)

    def covered(
        self, session: SessionKey, fragment: int, cursor: Cursor, shape: TextShape
    ) -> int | None:
        """Sequences that its next push of this fragment can claim; None if that is not known.

        Those between the last merged push of this fragment and the cursor. A cursor in text that is
        done with counts as its end, and one in text of others claims nothing beyond that either.
        """
        granted = self.granted.get(session)
        if granted is None:
            return None
        held = self.held.get(session, [])
        left = behind(held, cursor, shape.block_sequences)
        end = granted - total(held if left is None else left, shape.block_sequences)
        former = self.handed_in.get(session, {}).get(fragment, NOTHING)
        return end - former.sequences - shape.sequences(former.tokens)

    def give_back(self, session: SessionKey) -> None:
        """A session ended: its unread spans are leased again, oldest positions first."""
        self.changes += 1
        spans = self.held.pop(session, [])
        self.since_s.pop(session, None)
        self.granted.pop(session, None)
        self.handed_in.pop(session, None)
        if not self.is_brief:
            self.returned = sorted([*self.returned, *spans], key=lambda span: span.start)

    def follow_in_brief(self) -> None:
        """Forget which text others hold, and what was given back."""
        self.is_brief = True
        self.returned.clear()
        self.held = {
            session: spans if session[0] == self.own else [] for session, spans in self.held.items()
        }

    def unread(self, session: SessionKey) -> int:
        """Blocks this session still holds, a partly read one counted whole."""
        return sum(span.stop - span.start for span in self.held.get(session, []))

    def entries(self, *, with_coverage: bool = True) -> tuple[LeaseEntry, ...]:
        """All sessions' spans, in key order. with_coverage: and what their pushes can claim."""
        return tuple(
            LeaseEntry(
                *session,
                self.since_s[session],
                tuple(spans),
                self.granted.get(session, UNKNOWN) if with_coverage else UNKNOWN,
                self._by_fragment(session) if with_coverage else (),
            )
            for session, spans in sorted(self.held.items())
        )

    @classmethod
    def of(
        cls,
        next_position: int,
        returned: tuple[Span, ...],
        entries: tuple[LeaseEntry, ...],
        own: bytes = b"",
    ) -> LeaseBook:
        """The book that has these entries."""
        known = {(one.learner, one.incarnation): one for one in entries}
        counted = {
            key: one
            for key, one in known.items()
            if one.granted != UNKNOWN and (not own or one.learner == own)
        }
        return cls(
            next_position,
            list(returned),
            {key: list(one.spans) for key, one in known.items()},
            {key: one.since_s for key, one in known.items()},
            {key: one.granted for key, one in counted.items()},
            {
                key: {at: here for at, here in enumerate(one.handed_in) if here != NOTHING}
                for key, one in counted.items()
                if one.handed_in
            },
            own,
        )

    def _by_fragment(self, session: SessionKey) -> tuple[HandedIn, ...]:
        reached = self.handed_in.get(session, {})
        return tuple(reached.get(at, NOTHING) for at in range(max(reached, default=-1) + 1))

    def _take(self, wanted: Span) -> None:
        if wanted.start >= self.next_position:
            if wanted.start > self.next_position:
                # Of published data, where each learner reads a shard of its own.
                self.returned.append(Span(self.next_position, wanted.start, 0))
            self.next_position = wanted.stop
            return
        for at, span in enumerate(self.returned):
            if span.start <= wanted.start and wanted.stop <= span.stop:
                before = Span(span.start, wanted.start, span.skip)
                behind = Span(wanted.stop, span.stop, 0)
                rest = [one for one in (before, behind) if one.start < one.stop]
                self.returned[at : at + 1] = rest
                return
        raise MalformedMessage("a lease names positions that are neither new nor given back")
