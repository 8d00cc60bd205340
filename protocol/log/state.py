"""The swarm as a fold over its log: the same function on the syncer, a learner and a replayer."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from msgspec import Struct, structs

from protocol import limits, standing, wire
from protocol.errors import MalformedMessage
from protocol.log import records
from protocol.log.account_book import AccountBook
from protocol.log.accounts import Account
from protocol.log.guard import AT_S_MAX, Pause, found_far, is_doubtful
from protocol.log.heldout import CurvePoint, best_of, needs_second
from protocol.log.leases import LeaseBook, LeaseEntry
from protocol.log.restoring import Restored, States, candidates, outlook_words, refusal
from protocol.merge_rules import NORMS_KNOWN_MAX
from protocol.messages import AdoptedCharter, Envelope
from protocol.probes import heard
from protocol.project import Charter, GuardRule

CURVE_POINTS_MAX = 512
MARKS_MAX = 16
"""Checkpoints whose evaluation may still come."""

TAKEN_BACK_MAX = 256
"""Learners whose tokens may be taken back at one time; those of further ones stay counted."""


class FragmentState(Struct, frozen=True, array_like=True):
    """Newest committed version of one fragment."""

    version: int
    state: records.StateDigests
    record_index: int
    """Log index of the record that made it."""


class KnownNorm(Struct, frozen=True, array_like=True):
    """How long a learner's newest push of a fragment was."""

    learner: bytes
    norm: float
    steps: int = 0
    """Local steps in it; 0 where an older record is all that is known."""
    tensors: bytes = b""
    """Norms by tensor, as in the record."""


class TakenBack(Struct, frozen=True, array_like=True):
    """Tokens of a learner that are no progress of the run, summed over fragments."""

    learner: bytes
    tokens: int


class Mark(Struct, frozen=True, array_like=True):
    """A checkpoint whose evaluation may still come."""

    index: int
    global_step: int
    tokens: int
    second: bytes = b""
    """Who would measure it too; empty for nobody."""


class KnownInvite(Struct, frozen=True, array_like=True):
    """The keys that an invite brought, first come first."""

    invite: bytes
    learners: tuple[bytes, ...]


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
    invites: tuple[KnownInvite, ...] = ()
    """Those that brought somebody; empty in what learners are told."""
    taken_back: tuple[TakenBack, ...] = ()
    pause: Pause | None = None
    guarded_from: int = 0
    candidates: dict[int, States] = {}
    restored: Restored | None = None
    is_brief: bool = False
    """As `SwarmState.is_brief`."""
    taken_back_told: int = 0


def _read(envelope: Envelope) -> Charter:
    return wire.decode(envelope.payload, Charter)


@dataclass(slots=True)
class SwarmState:
    """Everything the log says, up to and including record `index`."""

    block_sequences: int
    own: bytes = field(default=b"", compare=False)
    """The learner whose log this is. It judges nobody, so that where pushes pointed, how long they
    were and what their text can claim is kept of its own alone. Empty: of everybody."""
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
    """Checkpoints that wait for a measurement: log index -> (global step, tokens)."""
    pause: Pause | None = None
    """Of the guard: no merges until the owner decides."""
    owner_paused_at_s: float | None = None
    """Since when the owner pauses the run, Unix seconds: no merges until the charter says else. It
    follows from the charter, so no summary has it."""
    guarded_from: int = 0
    """Log index where the owner last said to go on: the guard compares later checkpoints alone."""
    candidates: dict[int, States] = field(default_factory=dict)
    """The weights of checkpoints that the guard may still go back to, by log index."""
    restored: Restored | None = None
    """The last time that the guard went back by itself."""
    seconds: dict[int, bytes] = field(default_factory=dict)
    """Of these, who would measure it too."""
    curve: list[CurvePoint] = field(default_factory=list)
    accounts: AccountBook = field(default_factory=AccountBook)
    leases: LeaseBook = field(default_factory=LeaseBook)
    rounds: int = 0
    """Rounds opened as far as the log knows; the next round takes a higher number."""
    is_ending: bool = False
    ended: records.RunEnded | None = None
    norms: list[dict[bytes, KnownNorm]] = field(default_factory=list)
    """Of each fragment: how long the newest push of each learner was, newest last."""
    invited: dict[bytes, bytes] = field(default_factory=dict)
    """Learner -> the invite that brought it, first come first; at most `INVITED_MAX`."""
    taken_back: dict[bytes, int] = field(default_factory=dict)
    """Learner -> tokens of it that are no progress of the run, summed over fragments; at most
    `TAKEN_BACK_MAX` learners."""
    is_brief: bool = False
    """Whether this log is told to its learner in brief: of merges without it not who contributed,
    of others only who is here. It has that learner's account and text, and may pass over
    records."""
    taken_back_told: int = 0
    """In brief, tokens of all learners that are no progress of the run, summed over fragments."""
    judgements: int = field(default=0, compare=False)
    """Grows with every record that says how far somebody's pushes count; no part of the state."""

    def __post_init__(self) -> None:
        self.leases.own = self.own

    @property
    def tokens(self) -> int:
        """Progress of the run: the tokens merged, but for those that were taken back."""
        taken = self.taken_back_told if self.is_brief else sum(self.taken_back.values())
        return self._mean_tokens(taken)

    @property
    def tokens_merged(self) -> int:
        """Committed tokens of the swarm: the mean over fragments of the tokens merged into each."""
        return self._mean_tokens(0)

    def _mean_tokens(self, taken: int) -> int:
        if not self.tokens_by_fragment:
            return 0
        return (sum(self.tokens_by_fragment) - taken) // len(self.tokens_by_fragment)

    @property
    def best(self) -> CurvePoint | None:
        """The checkpoint with the lowest held-out loss of those that count."""
        return best_of(self.curve)

    def awaits(self, checkpoint: int, learner: bytes) -> bool:
        """Whether this learner is the second that should measure the checkpoint now."""
        point = self.point(checkpoint)
        is_asked = self.seconds.get(checkpoint) == learner
        return is_asked and point is not None and point.is_open

    def point(self, checkpoint: int) -> CurvePoint | None:
        """What was measured of the checkpoint marked at this log index."""
        found = (one for one in reversed(self.curve) if one.checkpoint == checkpoint)
        return next(found, None)

    def is_suspended(self, learner: bytes) -> bool:
        """Whether nothing of this key counts, because of what others measured of its pushes."""
        account = self.accounts.get(learner)
        return account is not None and account.is_suspended

    def has_merges(self, learner: bytes) -> bool:
        """Whether anything of this key was ever merged, as far as this log knows."""
        account = self.accounts.get(learner)
        return account is not None and account.merges > 0

    @property
    def charter(self) -> Envelope | None:
        """In force as far as the log says."""
        return self.charters[-1].charter if self.charters else None

    @property
    def charter_revision(self) -> int:
        """Revision of the charter in force, 0 before there is one."""
        return 0 if self.charter is None else _read(self.charter).revision

    @property
    def charter_epoch(self) -> int:
        """Epoch of the charter in force, 0 before there is one."""
        return 0 if self.charter is None else _read(self.charter).epoch

    @property
    def is_resting(self) -> bool:
        """Whether no merges are begun, because the guard or the owner pauses the run."""
        return self.pause is not None or self.owner_paused_at_s is not None

    @property
    def guard(self) -> GuardRule:
        """What the charter in force says of a held-out loss far above the best."""
        return "off" if self.charter is None else _read(self.charter).guard

    @property
    def restore_refusal(self) -> str:
        """Why the owner has to end this pause, as the rest of a sentence.

        Empty where the guard goes back by itself, and where it never does.
        """
        if self.pause is None or self.guard != "restore":
            return ""
        return refusal(self.pause, self.restored, self.curve, self.candidates)

    @property
    def restoring(self) -> tuple[int, States] | None:
        """The checkpoint that the guard goes back to now, by log index, and its weights."""
        if self.pause is None or self.guard != "restore" or self.restore_refusal:
            return None
        checkpoint = self.pause.best.checkpoint
        return checkpoint, self.candidates[checkpoint]

    @property
    def outlook(self) -> str:
        """What comes of this pause, in sentences: the guard goes back, or the owner decides."""
        return outlook_words(self.restore_refusal, goes_back=self.restoring is not None)

    @property
    def is_doubtful(self) -> bool:
        """Whether one measurement says that the model is wrecked, which another one should say
        soon."""
        is_watched = self.pause is None and self.guard != "off"
        return is_watched and is_doubtful(self.curve, self.guarded_from)

    @property
    def newest_version_index(self) -> int:
        """Log index of the newest record that made a version; however the log is told, the same."""
        return max((one.record_index for one in self.fragments), default=0)

    @property
    def has_weights(self) -> bool:
        return bool(self.fragments)

    def apply(self, record: records.Record, digest: bytes) -> None:
        """Take the next record into account. Raises MalformedMessage if it is not the next.

        In brief, the next may be any later one: nothing is lost by it, as a version that is not the
        next of its fragment is refused all the same.
        """
        is_next = record.index == self.index + 1 and record.previous == self.head
        if not is_next and not (self.is_brief and record.index > self.index + 1):
            raise MalformedMessage(f"record {record.index} does not follow record {self.index}")
        self._apply_body(record)
        if isinstance(record.body, records.CheckpointEvaluated):
            self._guard(record, digest)
        self.index, self.head = record.index, digest
        self.epoch, self.term = record.epoch, record.term

    def follow_in_brief(self) -> None:
        """From here on only what concerns `own` is told: what is known of others is forgotten."""
        if self.is_brief:
            return
        self.is_brief, self.taken_back_told = True, sum(self.taken_back.values())
        self.taken_back = {key: n for key, n in self.taken_back.items() if key == self.own}
        known = self.accounts.get(self.own)
        self.accounts = AccountBook({} if known is None else {self.own: known})
        self.leases.follow_in_brief()

    def _is_told_of(self, learner: bytes) -> bool:
        """Whether what this log says of a learner is all that there is; else nothing is kept."""
        return not self.is_brief or learner == self.own

    def _apply_body(self, record: records.Record) -> None:
        match record.body:
            case (
                records.SeatTaken()
                | records.VotersAdmitted()
                | records.CharterAdopted()
                | records.InviteUsed()
            ):
                self._govern(record.body, record.index)
            case records.WeightsInitialised(fragments):
                self._initialise(fragments, record.index)
            case records.FragmentMerged() as merged:
                self._merge(merged, record)
            case (
                records.PushProbed() | records.TokensTakenBack() | records.TokensGivenBack()
            ) as body:
                self._revise(body, record.at_s)
            case records.AccountsNoted(names, refusals):
                self.accounts.note(
                    (one for one in names if self._is_told_of(one.learner)),
                    (one for one in refusals if self._is_told_of(one.learner)),
                )
            case records.BlocksLeased(learner, incarnation, spans):
                session = (learner, incarnation)
                self.leases.lease(session, spans, record.at_s, self.block_sequences)
            case records.BlocksReturned(learner, incarnation):
                self.leases.give_back((learner, incarnation))
            case records.CheckpointMarked() | records.CheckpointEvaluated():
                self._checkpoint(record.body, record.index)
            case records.WeightsRestored() | records.RestoreGivenUp():
                self._go_back(record.body, record)
            case records.RunEnding():
                self.is_ending, self.pause, self.owner_paused_at_s = True, None, None
            case records.RunEnded() as ended:
                self.ended = ended

    def _checkpoint(
        self, body: records.CheckpointMarked | records.CheckpointEvaluated, index: int
    ) -> None:
        if isinstance(body, records.CheckpointMarked):
            self._mark(body, index)
        else:
            self._measured(body)
        self._keep_candidates()

    def _keep_candidates(self) -> None:
        self.candidates = candidates(
            self.candidates,
            self.curve,
            awaited=max(self.seconds, default=0),
            since=self.guarded_from,
            pause=self.pause,
        )

    def _go_back(
        self, body: records.WeightsRestored | records.RestoreGivenUp, record: records.Record
    ) -> None:
        """The guard went back, or cannot. What was measured of void weights counts no more."""
        pause = self.pause
        if pause is None or body.pause != pause.record:
            raise MalformedMessage("the guard goes back from a pause, and there is no such pause")
        if isinstance(body, records.RestoreGivenUp):
            self.pause = structs.replace(pause, is_given_up=True)
            return
        self._check_restored(body, pause)
        pairs = zip(body.versions, body.fragments, strict=True)
        self.fragments = [FragmentState(*one, record.index) for one in pairs]
        self._forget_charters()
        self.checkpoint, self.checkpoint_step = record.index, self.global_step
        self.marks.clear()
        self.seconds.clear()
        self.curve = [one for one in self.curve if one.checkpoint <= body.checkpoint]
        at_s, states = min(record.at_s, AT_S_MAX), body.fragments
        self.restored = Restored(record.index, at_s, pause, self.global_step, body.versions, states)
        self.pause = None
        self._keep_candidates()

    def _check_restored(self, body: records.WeightsRestored, pause: Pause) -> None:
        following = tuple(fragment.version + 1 for fragment in self.fragments)
        if body.versions != following or len(body.fragments) != len(following):
            raise MalformedMessage("restored weights are the next version of every fragment")
        if (body.global_step, body.round) != (self.global_step, self.rounds):
            raise MalformedMessage("going back is no merge")
        # Who began with what a former version kept does not know the weights of its checkpoints.
        known = self.candidates.get(body.checkpoint, body.fragments)
        if body.checkpoint != pause.best.checkpoint or body.fragments != known:
            raise MalformedMessage("restored weights are those of the best checkpoint")

    def _mark(self, mark: records.CheckpointMarked, index: int) -> None:
        self.checkpoint, self.checkpoint_step = index, mark.global_step
        self.marks[index] = (mark.global_step, self.tokens)
        if mark.second is not None:
            self.seconds[index] = mark.second
            self.candidates[index] = tuple(fragment.state for fragment in self.fragments)
        while len(self.marks) > MARKS_MAX:
            self._forget_mark(min(self.marks))

    def _forget_mark(self, index: int) -> None:
        self.marks.pop(index, None)
        self.seconds.pop(index, None)

    def _measured(self, measured: records.CheckpointEvaluated) -> None:
        """The first measurement makes a point of the curve, that of the second completes it."""
        checkpoint, evaluator, loss = measured.checkpoint, measured.evaluator, measured.loss
        if self.awaits(checkpoint, evaluator):
            self.curve = [
                one.answered(loss) if one.checkpoint == checkpoint else one for one in self.curve
            ]
            self._forget_mark(checkpoint)
            return
        second = self.seconds.get(checkpoint, b"")
        if not second or not needs_second(self.curve, loss, self.guarded_from):
            self._forget_mark(checkpoint)
        place = (checkpoint, measured.global_step, measured.tokens)
        self.curve.append(CurvePoint(*place, loss, evaluator, second, (loss,)))
        self._thin_curve()

    def _guard(self, record: records.Record, digest: bytes) -> None:
        """Pause, if what was measured last says that the model is wrecked."""
        if self.pause is not None or self.is_ending or self.guard == "off":
            return
        best = found_far(self.curve, self.guarded_from)
        if best is not None:
            self.pause = Pause(digest, min(record.at_s, AT_S_MAX), self.curve[-1], best)

    def _lift(self, envelope: Envelope, index: int) -> None:
        """The owner may say to go on: from this very pause, or without a guard."""
        if self.pause is None:
            return
        charter = _read(envelope)
        if charter.guard == "off" or charter.resumed == self.pause.record:
            self.pause, self.guarded_from = None, index
            self._keep_candidates()

    def _probed(self, probed: records.PushProbed, at_s: float) -> None:
        """What a probe says of a learner; the last of many may suspend it."""
        self.judgements += 1
        account = self.accounts.opened(probed.learner)
        account.probes += 1
        account.findings = heard(
            account.findings, probed.prober, probed.own, probed.other, probed.score
        )
        if not probed.suspends or account.is_suspended:
            return
        account.suspended_at_s = at_s
        self._take_back(probed.learner, probed.withdrawn)
        for known in self.norms:
            known.pop(probed.learner, None)

    def _reinstate(self, charter: Charter, former_revision: int) -> None:
        """Lift the suspensions that the owner lifted with this charter."""
        self.judgements += 1
        for one in charter.reinstated:
            if one.learner in self.accounts and one.revision > former_revision:
                self.accounts.opened(one.learner).reinstated()
                self.taken_back.pop(one.learner, None)

    def _govern(self, body: records.Governing, index: int) -> None:
        match body:
            case records.SeatTaken(leader):
                self.leader = leader
            case records.VotersAdmitted(voters):
                self.admissions.update({one.key: one for one in voters})
            case records.CharterAdopted(envelope):
                charter = _read(envelope)
                self._reinstate(charter, self.charter_revision)
                self.owner_paused_at_s = None if self.is_ending else charter.paused_at_s
                self.charters.append(AdoptedCharter(index, envelope))
                self._forget_charters()
                self._lift(envelope, index)
            case records.InviteUsed(invite, learner):
                if len(self.invited) < limits.INVITED_MAX and self._is_told_of(learner):
                    self.invited.setdefault(learner, invite)

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
        self._forget_charters()
        self.judgements += 1
        self.global_step = merged.global_step
        self.rounds = max(self.rounds, merged.round)
        counted = records.counted_tokens(merged.contributions)
        self._count_tokens(merged, sum(counted))
        # Of hundreds, at each of hundreds of learners.
        for part, tokens in zip(merged.contributions, counted, strict=True):
            if not self._is_told_of(part.learner):
                continue
            account = self.accounts.merged(
                part.learner, tokens, is_clipped=part.scale < 1.0, at_s=record.at_s
            )
            if part.learner in self.taken_back:
                self.taken_back[part.learner] += tokens
            self.leases.hand_in(
                (part.learner, part.incarnation),
                merged.fragment,
                part.cursor,
                part.tokens,
                self.block_sequences,
            )
            if not self.own or part.learner == self.own:
                self._judge(account, part, merged)
        self._note_norms(merged)

    def _count_tokens(self, merged: records.FragmentMerged, counted: int) -> None:
        """Those of a merge; in brief, as the record has them."""
        tally, fragment = merged.tally, merged.fragment
        if not self.is_brief or tally is None:
            if not merged.contributions:
                raise MalformedMessage("a merge in brief, and the log is told whole")
            self.tokens_by_fragment[fragment] += counted
            return
        self.tokens_by_fragment[fragment] = tally.fragment_tokens
        self.taken_back_told = min(tally.taken_back_tokens, sum(self.tokens_by_fragment))
        self.leases.next_position = max(self.leases.next_position, tally.next_position)

    def _judge(
        self, account: Account, part: records.Contribution, merged: records.FragmentMerged
    ) -> None:
        """What one push of a merge says of its learner's next ones."""
        is_late = part.base_version < merged.version - 1
        if part.cosine and not standing.is_of_the_beginning(
            part.base_version, is_late=is_late, pushes=len(merged.contributions)
        ):
            account.judged(part.cosine, part.trust, part.expected, part.repeat)
        account.heard(part.echo, part.novelty, is_late=is_late)

    def _forget_charters(self) -> None:
        """Those under which no fragment's newest record was made, but for the one in force."""
        if len(self.charters) < 2:
            return
        made = sorted({fragment.record_index for fragment in self.fragments})
        until = [one.index for one in self.charters[1:]]
        self.charters = [
            one
            for one, end in zip(self.charters, [*until, None], strict=True)
            if end is None or bisect_right(made, end) > bisect_right(made, one.index)
        ]

    def _revise(
        self,
        body: records.PushProbed | records.TokensTakenBack | records.TokensGivenBack,
        at_s: float,
    ) -> None:
        """What counts of a learner changes. Never more is taken than there is: how many tokens were
        a learner's, a joiner does not know."""
        if not self._is_told_of(body.learner):
            return
        match body:
            case records.PushProbed():
                self._probed(body, at_s)
            case records.TokensTakenBack(learner, tokens):
                self._take_back(learner, tokens)
            case records.TokensGivenBack(learner):
                self.taken_back.pop(learner, None)

    def _take_back(self, learner: bytes, tokens: int) -> None:
        if learner not in self.taken_back and len(self.taken_back) < TAKEN_BACK_MAX:
            left = sum(self.tokens_by_fragment) - sum(self.taken_back.values())
            self.taken_back[learner] = min(tokens, left)

    def _note_norms(self, merged: records.FragmentMerged) -> None:
        """The newest push of a learner says how long its next one may be expected to be."""
        known = self.norms[merged.fragment]
        for part in merged.contributions[-NORMS_KNOWN_MAX:]:
            if not self.own or part.learner == self.own:
                known.pop(part.learner, None)
                known[part.learner] = KnownNorm(part.learner, part.norm, part.steps, part.tensors)
        while len(known) > NORMS_KNOWN_MAX:
            del known[next(iter(known))]

    def _thin_curve(self) -> None:
        """Keep the curve bounded for months: drop every second old point, never the best."""
        if len(self.curve) > CURVE_POINTS_MAX:
            best = self.best
            half = len(self.curve) // 2
            old = [p for at, p in enumerate(self.curve[:half]) if at % 2 == 0 or p is best]
            self.curve = old + self.curve[half:]

    def summary(
        self,
        *,
        with_accounts: bool = True,
        with_norms: bool = True,
        with_invites: bool = True,
        with_coverage: bool = True,
        with_charters: bool = True,
    ) -> SwarmSummary:
        """This state as one value; without accounts it stays small however many contribute, and
        without charters however many are banned. Learners need no norms, no invites, and not what
        others can claim."""
        return SwarmSummary(
            index=self.index,
            head=self.head,
            epoch=self.epoch,
            term=self.term,
            pause=self.pause,
            guarded_from=self.guarded_from,
            candidates=dict(self.candidates),
            restored=self.restored,
            leader=self.leader,
            charters=tuple(self.charters) if with_charters else (),
            admissions=tuple(self.admissions.values()),
            fragments=tuple(self.fragments),
            global_step=self.global_step,
            tokens_by_fragment=tuple(self.tokens_by_fragment),
            checkpoint=self.checkpoint,
            checkpoint_step=self.checkpoint_step,
            marks=tuple(
                Mark(at, step, tokens, self.seconds.get(at, b""))
                for at, (step, tokens) in self.marks.items()
            ),
            curve=tuple(self.curve),
            accounts=self.accounts.shared() if with_accounts else {},
            next_position=self.leases.next_position,
            returned=tuple(self.leases.returned),
            held=self.leases.entries(with_coverage=with_coverage),
            rounds=self.rounds,
            is_ending=self.is_ending,
            ended=self.ended,
            norms=self._known_norms() if with_norms else (),
            invites=self.invites() if with_invites else (),
            taken_back=tuple(TakenBack(*one) for one in self.taken_back.items()),
            is_brief=self.is_brief,
            taken_back_told=self.taken_back_told,
        )

    def invites(self) -> tuple[KnownInvite, ...]:
        """Invites that brought somebody, in the order in which they first did."""
        brought: dict[bytes, list[bytes]] = {}
        for learner, invite in self.invited.items():
            brought.setdefault(invite, []).append(learner)
        return tuple(KnownInvite(invite, tuple(keys)) for invite, keys in brought.items())

    def _known_norms(self) -> tuple[tuple[KnownNorm, ...], ...]:
        return tuple(tuple(known.values()) for known in self.norms)

    @classmethod
    def restore(
        cls, summary: SwarmSummary | None, block_sequences: int, own: bytes = b""
    ) -> SwarmState:
        """The state a summary was made from; without one that of an empty log. own: see there."""
        if summary is None:
            return cls(block_sequences, own)
        book = LeaseBook.of(summary.next_position, summary.returned, summary.held, own)
        book.is_brief = summary.is_brief
        charter = _read(summary.charters[-1].charter) if summary.charters else None
        is_over = charter is None or summary.is_ending
        return cls(
            owner_paused_at_s=None if charter is None or is_over else charter.paused_at_s,
            block_sequences=block_sequences,
            own=own,
            index=summary.index,
            head=summary.head,
            epoch=summary.epoch,
            term=summary.term,
            leader=summary.leader,
            charters=list(summary.charters),
            admissions={one.key: one for one in summary.admissions},
            fragments=list(summary.fragments),
            pause=summary.pause,
            guarded_from=summary.guarded_from,
            candidates=dict(summary.candidates),
            restored=summary.restored,
            global_step=summary.global_step,
            tokens_by_fragment=list(summary.tokens_by_fragment),
            checkpoint=summary.checkpoint,
            checkpoint_step=summary.checkpoint_step,
            marks={mark.index: (mark.global_step, mark.tokens) for mark in summary.marks},
            seconds={mark.index: mark.second for mark in summary.marks if mark.second},
            curve=list(summary.curve),
            accounts=AccountBook(summary.accounts),
            leases=book,
            rounds=summary.rounds,
            is_ending=summary.is_ending,
            ended=summary.ended,
            norms=[{one.learner: one for one in known} for known in summary.norms]
            or [{} for _ in summary.fragments],
            invited={key: one.invite for one in summary.invites for key in one.learners},
            taken_back={one.learner: one.tokens for one in summary.taken_back},
            is_brief=summary.is_brief,
            taken_back_told=summary.taken_back_told,
        )


def tally_of(
    state: SwarmState, fragment: int, contributions: tuple[records.Contribution, ...]
) -> records.Tally:
    """Where the log will stand with a merge of these, behind what this state knows."""
    counted = records.counted_tokens(contributions)
    taken = sum(
        tokens
        for part, tokens in zip(contributions, counted, strict=True)
        if part.learner in state.taken_back
    )
    return records.Tally(
        contributions=records.contributions_hash(contributions),
        fragment_tokens=state.tokens_by_fragment[fragment] + sum(counted),
        taken_back_tokens=sum(state.taken_back.values()) + taken,
        next_position=state.leases.next_position,
    )
