"""The swarm as a fold over its log: the same function on the syncer, a learner and a replayer."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from protocol import wire
from protocol.errors import MalformedMessage
from protocol.log import records
from protocol.log.accounts import Account, copied, note
from protocol.log.leases import LeaseBook, LeaseEntry
from protocol.messages import Envelope
from protocol.project import Charter

CURVE_POINTS_MAX = 512
MARKS_MAX = 16
"""Checkpoints whose evaluation may still come."""

NORMS_MAX = 8
"""Learners whose newest norm is remembered, of each fragment."""


class FragmentState(Struct, frozen=True, array_like=True):
    """Newest committed version of one fragment."""

    version: int
    state: records.StateDigests
    record_index: int
    """Log index of the record that made it."""


class CurvePoint(Struct, frozen=True, array_like=True):
    """One held-out evaluation."""

    checkpoint: int
    global_step: int
    tokens: int
    loss: float


class KnownNorm(Struct, frozen=True, array_like=True):
    """How long a learner's newest push of a fragment was."""

    learner: bytes
    norm: float


class Mark(Struct, frozen=True, array_like=True):
    """A checkpoint whose evaluation may still come."""

    index: int
    global_step: int
    tokens: int


class AdoptedCharter(Struct, frozen=True, array_like=True):
    """A charter, and the log index from behind which it was in force."""

    index: int
    charter: Envelope


class SwarmSummary(Struct, frozen=True, array_like=True):
    """A `SwarmState` in bytes: what a checkpoint keeps and what a joiner is told."""

    index: int
    head: bytes
    epoch: int
    term: int
    leader: bytes
    charters: tuple[AdoptedCharter, ...]
    """In force, and those under which fragments' newest records were made."""
    admissions: tuple[records.Admission, ...]
    fragments: tuple[FragmentState, ...]
    global_step: int
    tokens_by_fragment: tuple[int, ...]
    checkpoint: int
    checkpoint_step: int
    marks: tuple[Mark, ...]
    curve: tuple[CurvePoint, ...]
    accounts: dict[bytes, Account]
    next_position: int
    returned: tuple[records.Span, ...]
    held: tuple[LeaseEntry, ...]
    rounds: int
    is_ending: bool
    ended: records.RunEnded | None
    norms: tuple[tuple[KnownNorm, ...], ...] = ()
    """Of each fragment; empty in what learners are told."""


@dataclass(slots=True)
class SwarmState:
    """Everything the log says, up to and including record `index`."""

    block_sequences: int
    index: int = 0
    head: bytes = records.NO_RECORD
    epoch: int = 0
    term: int = 0
    leader: bytes = b""
    charters: list[AdoptedCharter] = field(default_factory=list)
    """In force, and those under which fragments' newest records were made, oldest first."""
    admissions: dict[bytes, records.Admission] = field(default_factory=dict)
    """Whose votes count: the disk of each voter."""
    fragments: list[FragmentState] = field(default_factory=list)
    global_step: int = 0
    tokens_by_fragment: list[int] = field(default_factory=list)
    checkpoint: int = 0
    """Log index of the newest marked checkpoint."""
    checkpoint_step: int = 0
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Checkpoints not yet evaluated: log index -> (global step, tokens)."""
    curve: list[CurvePoint] = field(default_factory=list)
    accounts: dict[bytes, Account] = field(default_factory=dict)
    leases: LeaseBook = field(default_factory=LeaseBook)
    rounds: int = 0
    """Rounds opened as far as the log knows; the next round takes a higher number."""
    is_ending: bool = False
    ended: records.RunEnded | None = None
    norms: list[dict[bytes, float]] = field(default_factory=list)
    """Of each fragment: how long the newest push of each learner was, newest last."""

    @property
    def tokens(self) -> int:
        """Committed tokens of the swarm: the mean over fragments of the tokens merged into each."""
        if not self.tokens_by_fragment:
            return 0
        return sum(self.tokens_by_fragment) // len(self.tokens_by_fragment)

    @property
    def best(self) -> CurvePoint | None:
        """The evaluated checkpoint with the lowest held-out loss; the earliest of equals."""
        return min(self.curve, key=lambda point: (point.loss, point.checkpoint), default=None)

    @property
    def charter(self) -> Envelope | None:
        """In force as far as the log says."""
        return self.charters[-1].charter if self.charters else None

    @property
    def charter_revision(self) -> int:
        """Revision of the charter in force, 0 before there is one."""
        return 0 if self.charter is None else wire.decode(self.charter.payload, Charter).revision

    @property
    def charter_epoch(self) -> int:
        """Epoch of the charter in force, 0 before there is one."""
        return 0 if self.charter is None else wire.decode(self.charter.payload, Charter).epoch

    @property
    def has_weights(self) -> bool:
        return bool(self.fragments)

    def apply(self, record: records.Record, digest: bytes) -> None:
        """Take the next record into account. Raises MalformedMessage if it is not the next."""
        if record.index != self.index + 1 or record.previous != self.head:
            raise MalformedMessage(f"record {record.index} does not follow record {self.index}")
        self._apply_body(record)
        self.index, self.head = record.index, digest
        self.epoch, self.term = record.epoch, record.term

    def _apply_body(self, record: records.Record) -> None:
        match record.body:
            case records.SeatTaken() | records.VotersAdmitted() | records.CharterAdopted():
                self._govern(record.body, record.index)
            case records.WeightsInitialised(fragments):
                self._initialise(fragments, record.index)
            case records.FragmentMerged() as merged:
                self._merge(merged, record)
            case records.AccountsNoted(names, refusals):
                note(self.accounts, names, refusals)
            case records.BlocksLeased(learner, incarnation, spans):
                self.leases.lease((learner, incarnation), spans, record.at_s)
            case records.BlocksReturned(learner, incarnation):
                self.leases.give_back((learner, incarnation))
            case records.CheckpointMarked(global_step, _):
                self.checkpoint, self.checkpoint_step = record.index, global_step
                self.marks[record.index] = (global_step, self.tokens)
                while len(self.marks) > MARKS_MAX:
                    del self.marks[min(self.marks)]
            case records.CheckpointEvaluated(checkpoint, global_step, tokens, _, loss):
                self.marks.pop(checkpoint, None)
                self.curve.append(CurvePoint(checkpoint, global_step, tokens, loss))
                self._thin_curve()
            case records.RunEnding():
                self.is_ending = True
            case records.RunEnded() as ended:
                self.ended = ended

    def _govern(
        self, body: records.SeatTaken | records.VotersAdmitted | records.CharterAdopted, index: int
    ) -> None:
        match body:
            case records.SeatTaken(leader):
                self.leader = leader
            case records.VotersAdmitted(voters):
                self.admissions.update({one.key: one for one in voters})
            case records.CharterAdopted(envelope):
                self.charters.append(AdoptedCharter(index, envelope))

    def _initialise(self, fragments: tuple[records.StateDigests, ...], index: int) -> None:
        if self.fragments:
            raise MalformedMessage("weights are initialised once")
        self.fragments = [FragmentState(0, state, index) for state in fragments]
        self.tokens_by_fragment = [0] * len(fragments)
        self.norms = [{} for _ in fragments]

    def _merge(self, merged: records.FragmentMerged, record: records.Record) -> None:
        if merged.fragment >= len(self.fragments):
            raise MalformedMessage(f"there is no fragment {merged.fragment}")
        if merged.version != self.fragments[merged.fragment].version + 1:
            raise MalformedMessage(f"version {merged.version} is not the next one")
        self.fragments[merged.fragment] = FragmentState(merged.version, merged.state, record.index)
        oldest = min(fragment.record_index for fragment in self.fragments)
        while len(self.charters) > 1 and self.charters[1].index < oldest:
            self.charters.pop(0)
        self.global_step = merged.global_step
        self.rounds = max(self.rounds, merged.round)
        accounts, advance = self.accounts, self.leases.advance
        for part in merged.contributions:  # Of hundreds, at each of hundreds of learners.
            tokens = part.counted_tokens
            self.tokens_by_fragment[merged.fragment] += tokens
            account = accounts.get(part.learner)
            if account is None:
                account = accounts[part.learner] = Account()
            account.merged(tokens, is_clipped=part.scale < 1.0, at_s=record.at_s)
            advance((part.learner, part.incarnation), part.cursor, self.block_sequences)
            if part.cosine:
                account.judged(part.cosine, part.trust)
        self._note_norms(merged)

    def _note_norms(self, merged: records.FragmentMerged) -> None:
        """The newest push of a learner says how long its next one may be expected to be."""
        known = self.norms[merged.fragment]
        for part in merged.contributions[-NORMS_MAX:]:
            known.pop(part.learner, None)
            known[part.learner] = part.norm
        while len(known) > NORMS_MAX:
            del known[next(iter(known))]

    def _thin_curve(self) -> None:
        """Keep the curve bounded for months: drop every second old point, never the best."""
        if len(self.curve) > CURVE_POINTS_MAX:
            best = self.best
            half = len(self.curve) // 2
            old = [p for at, p in enumerate(self.curve[:half]) if at % 2 == 0 or p is best]
            self.curve = old + self.curve[half:]

    def summary(self, *, with_accounts: bool = True, with_norms: bool = True) -> SwarmSummary:
        """This state as one value; without accounts it stays small however many contribute.
        Learners need no norms."""
        return SwarmSummary(
            index=self.index,
            head=self.head,
            epoch=self.epoch,
            term=self.term,
            leader=self.leader,
            charters=tuple(self.charters),
            admissions=tuple(self.admissions.values()),
            fragments=tuple(self.fragments),
            global_step=self.global_step,
            tokens_by_fragment=tuple(self.tokens_by_fragment),
            checkpoint=self.checkpoint,
            checkpoint_step=self.checkpoint_step,
            marks=tuple(Mark(at, step, tokens) for at, (step, tokens) in self.marks.items()),
            curve=tuple(self.curve),
            accounts=copied(self.accounts) if with_accounts else {},
            next_position=self.leases.next_position,
            returned=tuple(self.leases.returned),
            held=self.leases.entries(),
            rounds=self.rounds,
            is_ending=self.is_ending,
            ended=self.ended,
            norms=self._known_norms() if with_norms else (),
        )

    def _known_norms(self) -> tuple[tuple[KnownNorm, ...], ...]:
        return tuple(
            tuple(KnownNorm(learner, norm) for learner, norm in known.items())
            for known in self.norms
        )

    @classmethod
    def restore(cls, summary: SwarmSummary | None, block_sequences: int) -> SwarmState:
        """The state a summary was made from; without one that of an empty log."""
        if summary is None:
            return cls(block_sequences)
        book = LeaseBook(
            summary.next_position,
            list(summary.returned),
            {(e.learner, e.incarnation): list(e.spans) for e in summary.held},
            {(e.learner, e.incarnation): e.since_s for e in summary.held},
        )
        return cls(
            block_sequences=block_sequences,
            index=summary.index,
            head=summary.head,
            epoch=summary.epoch,
            term=summary.term,
            leader=summary.leader,
            charters=list(summary.charters),
            admissions={one.key: one for one in summary.admissions},
            fragments=list(summary.fragments),
            global_step=summary.global_step,
            tokens_by_fragment=list(summary.tokens_by_fragment),
            checkpoint=summary.checkpoint,
            checkpoint_step=summary.checkpoint_step,
            marks={mark.index: (mark.global_step, mark.tokens) for mark in summary.marks},
            curve=list(summary.curve),
            accounts=copied(summary.accounts),
            leases=book,
            rounds=summary.rounds,
            is_ending=summary.is_ending,
            ended=summary.ended,
            norms=[{one.learner: one.norm for one in known} for known in summary.norms]
            or [{} for _ in summary.fragments],
        )
