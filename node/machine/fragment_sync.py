"""Keeping fragments current and handing in displacements: the part that owns the tracks."""

from __future__ import annotations

from dataclasses import dataclass

from node.machine.context import LearnerContext
from node.machine.fragment_state import NONE, LocalFragment, OpenPush
from node.machine.jobs import (
    Advance,
    Advanced,
    Capture,
    Captured,
    Deliver,
    Delivered,
    FetchState,
    Freeze,
    Settle,
    StateFetched,
)
from node.machine.snapshot_part import PartState
from protocol import wire
from protocol.backoff import Backoff
from protocol.log.records import FragmentMerged
from protocol.log.state import SwarmState
from protocol.machine import Failed
from protocol.messages import Decline, Pull, Push, PushHeader, Settled
from protocol.signing import seal
from protocol.trace import FragmentAdvanced, FragmentApplied, PushSettled, WeightsReady

FETCH_AGAIN = Backoff((0.3, 0.6, 1.2, 2.4, 4.8, 5.0))
ADVANCE_TRIES = 3
"""Failures after which a fragment's full state is fetched instead of the missing payload."""


@dataclass(slots=True)
class FreezePlan:
    """A checkpoint this learner evaluates: which version of each fragment it is made of."""

    index: int
    missing: dict[int, int]
    """Fragment -> version, for those not frozen yet."""


class FragmentSync:
    """All fragments of one learner."""

    def __init__(self, context: LearnerContext, fragments: int) -> None:
        self.context = context
        self.local_fragments = [LocalFragment(index) for index in range(fragments)]
        self.freezing: FreezePlan | None = None
        self.can_deliver = False
        """A trainer is there to take fragments."""
        self.may_move = True
        """Otherwise nothing is delivered or captured, so that a copy of everything can be made."""
        self.sequence = 0
        """Of the last push made."""
        self._joining_since_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether every fragment is here in a verified version."""
        return all(track.held != NONE for track in self.local_fragments)

    @property
    def is_standing(self) -> bool:
        """Whether the inner loop has every fragment."""
        return all(track.standing != NONE for track in self.local_fragments)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way to or from the inner loop."""
        return not any(track.is_moving for track in self.local_fragments)

    def take_up(self, part: PartState) -> None:
        """The inner loop stands where this part of a snapshot says."""
        self.sequence = part.sequence
        for track, kept in zip(self.local_fragments, part.local_fragments, strict=True):
            track.standing, track.must_assign = kept.standing, kept.must_assign
            track.marked_step, track.marked_tokens = kept.marked_step, kept.marked_tokens
            track.handed_step, track.discarded_steps = kept.handed_step, kept.discarded_steps
            track.merged_sequence, track.merged_version = kept.merged_sequence, kept.merged_version
            track.books = kept.books.books()

    def restart_from_index(self, former: SwarmState) -> None:
        """The log's state was replaced by an index: full states replace what is missing.

        In a new epoch a version may have the number of a void one: what is held counts only if it
        is the very one of the index.
        """
        fragments = self.context.state.fragments
        is_new = former.has_weights and former.epoch < self.context.state.epoch
        self._joining_since_s = self.context.now_s
        self.freezing = None
        for track in self.local_fragments:
            track.queue.clear()
            if track.push is not None:
                # Whether it was merged stood in records that were skipped: count it as lost.
                self._resolve(track, track.push.sequence, "abandoned", "the log was left behind")
                track.must_assign = True
            track.books.give_up()
            newest = fragments[track.index]
            is_void = is_new and former.fragments[track.index] != newest
            if track.held > newest.version:
                track.held = NONE
            elif is_void and track.held == newest.version:
                # The inner loop stands on the void one: what came instead must be delivered.
                track.held = track.standing = NONE

    def start_over(self) -> None:
        """Local steps that are not handed in do not count: others read their text again."""
        for track in self.local_fragments:
            track.must_assign = track.must_assign or track.standing != NONE

    def look(self) -> None:
        """Do for each fragment whatever can be done next."""
        for track in self.local_fragments:
            self._pump(track)

    def deadline_s(self) -> float | None:
        """When a failed fetch is tried again."""
        times = [
            track.retry_s for track in self.local_fragments if track.retry_s > self.context.now_s
        ]
        return min(times, default=None)

    # From the log.

    def on_committed(self, merged: FragmentMerged) -> None:
        """A new version of a fragment counts; perhaps with a push of ours in it."""
        track = self.local_fragments[merged.fragment]
        track.queue.append(merged)
        setup = self.context.setup
        for part in merged.contributions:
            if (part.learner, part.incarnation) == (setup.signer.key, setup.incarnation):
                outcome = "clipped" if part.scale < 1 else "merged"
                self._resolve(
                    track,
                    part.sequence,
                    outcome,
                    "",
                    version=merged.version,
                    tokens=part.tokens,
                )

    def on_new_term(self) -> None:
        """Rounds of the former leader died with its term: what they held is free again."""
        for track in self.local_fragments:
            track.books.give_up()
            if track.push is not None and track.push.message is not None:
                self._resolve(track, track.push.sequence, "abandoned", "a new term began")

    # From the syncer.

    def on_pull(self, pull: Pull) -> None:
        """Hand in at the next boundary on the newest version, or say why not."""
        if pull.fragment >= len(self.local_fragments):
            return
        track = self.local_fragments[pull.fragment]
        if not self.can_deliver or track.held == NONE:
            self._decline(pull, "not training")
        elif track.push is not None:
            self._decline(pull, "the last push is unresolved")
        else:
            track.pull = pull

    def on_settled(self, settled: Settled) -> None:
        """A push did not make it into a merge."""
        if settled.incarnation != self.context.setup.incarnation:
            return
        for track in self.local_fragments:
            if track.push is not None and track.push.sequence == settled.sequence:
                if settled.outcome == "rejected":
                    track.must_assign = True
                self._resolve(track, settled.sequence, settled.outcome, settled.reason)

    def resend(self) -> None:
        """Say again what was handed in: its fate may have been told while nobody listened."""
        for track in self.local_fragments:
            track.books.give_up()  # Nobody says again what a trainer that is gone handed in.
            if track.push is not None and track.push.message is not None:
                self._tell(track.push.message)

    # From the trainer.

    def on_trainer_lost(self) -> int:
        """Local steps that died with the trainer."""
        self.can_deliver = False
        stepped = self.context.stepped
        done = stepped.local_step if stepped else 0
        lost = sum(track.steps(done) for track in self.local_fragments) // len(self.local_fragments)
        for track in self.local_fragments:
            if track.pull is not None:
                self._decline(track.pull, "the trainer stopped")
            track.books.trainer_lost(stepped.tokens if stepped else 0)
            track.trainer_lost()
        return lost

    # Answers.

    def on_state(self, job: FetchState, result: object) -> None:
        track = self.local_fragments[job.fragment]
        track.is_busy = False
        if not isinstance(result, StateFetched):
            self._retry_later(track)
            return
        track.failures = 0
        track.skip_to(job.version)
        context = self.context
        is_syncer = any(source == context.leader for source, _ in result.sources)
        for source, count in result.sources:
            context.tally.state_bytes[source] = context.tally.state_bytes.get(source, 0) + count
        words = "fetched from the syncer" if is_syncer else "fetched from learners"
        if is_syncer:
            context.tally.states_from_syncer += 1
        elif result.sources:
            context.tally.states_from_peers += 1
        else:
            words = "of this learner's part of a snapshot"
        context.effects.emit(FragmentAdvanced(track.index, job.version, job.state.theta, words))
        if self.is_held and self._joining_since_s is not None:
            seconds = context.now_s - self._joining_since_s
            self._joining_since_s = None
            context.effects.emit(
                WeightsReady(
                    context.tally.states_from_peers,
                    context.tally.states_from_syncer,
                    seconds,
                    tuple(context.tally.state_bytes.items()),
                )
            )

    def on_advanced(self, job: Advance, result: object) -> None:
        merged = job.merged
        track = self.local_fragments[merged.fragment]
        track.is_busy = False
        if not isinstance(result, Advanced):
            self._retry_later(track)
            return
        track.failures = 0
        track.skip_to(merged.version)
        fact = FragmentAdvanced(track.index, merged.version, merged.state.theta, "outer step")
        self.context.effects.emit(fact)

    def on_delivered(self, job: Deliver, result: object) -> None:
        track = self.local_fragments[job.fragment]
        if track.delivering != job.version:
            return  # Asked of a trainer that is gone.
        track.delivering = NONE
        if not isinstance(result, Delivered):
            track.must_assign = True
            return
        track.standing = result.version
        if job.is_assign:
            track.overwrite(result.local_step)
            track.marked_step, track.marked_tokens = result.local_step, result.tokens
            track.books.assigned(result.tokens)
        self.context.effects.emit(FragmentApplied(track.index, result.version, result.local_step))

    def on_captured(self, job: Capture, result: object) -> None:
        track = self.local_fragments[job.fragment]
        push = track.push
        if push is None or push.sequence != job.sequence:
            self._drop(job.fragment, job.sequence)
            return
        if not isinstance(result, Captured):
            reason = result.reason if isinstance(result, Failed) else "capture failed"
            track.push = None
            track.must_assign = True
            self._decline(push.pull, reason)
            return
        steps = result.local_step - track.marked_step
        if steps < 1 or track.must_assign:
            track.push = None
            self._drop(job.fragment, job.sequence)
            self._decline(push.pull, "no local steps since the last hand-in")
            return
        push.local_step, push.tokens = result.local_step, result.tokens
        track.books.handed(push.sequence, result.tokens)
        push.message = self._seal(push, result, steps, result.tokens - track.marked_tokens)
        self.context.tally.pushed += 1
        self._tell(push.message)

    # Inside.

    def _pump(self, track: LocalFragment) -> None:
        is_waiting = self.context.now_s < track.retry_s
        if track.is_busy or (is_waiting and track.standing != NONE):
            return
        self._freeze(track)
        is_behind = bool(track.queue) or (track.held == NONE and self.context.state.has_weights)
        # Between tries an inner loop that has nothing gets what is held: better than to stand still
        # while the only host with the newest version is away.
        if is_behind and not is_waiting and self._bring(track):
            return
        is_able = self.can_deliver and self.may_move
        # A capture is of what the inner loop stood on: that must not change before it is encoded.
        if not is_able or track.held == NONE or track.is_moving:
            return
        if track.needs_delivery:
            self._deliver(track)
        elif track.pull is not None and track.is_current and track.push is None:
            pull, track.pull = track.pull, None
            self.sequence += 1
            track.push = OpenPush(self.sequence, pull)
            self.context.effects.start(Capture(track.index, self.sequence))

    def _bring(self, track: LocalFragment) -> bool:
        """Start what brings the track to a newer version; whether something was started."""
        newest = self.context.state.fragments[track.index]
        following = track.queue[0] if track.queue else None
        is_next = following is not None and following.version == track.held + 1
        if following is not None and is_next and track.failures < ADVANCE_TRIES:
            self.context.effects.start(Advance(following))
            track.is_busy = True
            return True
        if track.held < newest.version:
            self.context.effects.start(FetchState(track.index, newest.version, newest.state))
            track.is_busy = True
            return True
        return False

    def _deliver(self, track: LocalFragment) -> None:
        is_assign = track.must_assign or not self.context.rebases
        kept_frac = 0.0 if track.must_assign else self.context.kept_frac
        track.delivering = track.held
        job = Deliver(track.index, track.held, is_assign, track.merged_sequence, kept_frac)
        track.must_assign, track.merged_sequence = False, None
        self.context.effects.start(job)

    def _freeze(self, track: LocalFragment) -> None:
        plan = self.freezing
        if plan is None or track.index not in plan.missing:
            return
        if track.held == plan.missing[track.index]:
            del plan.missing[track.index]
            self.context.effects.do(Freeze(plan.index, track.index))

    def _retry_later(self, track: LocalFragment) -> None:
        track.retry_s = self.context.now_s + FETCH_AGAIN.pause_s(track.failures)
        track.failures += 1

    def _resolve(
        self,
        track: LocalFragment,
        sequence: int,
        outcome: str,
        reason: str,
        *,
        version: int = 0,
        tokens: int = 0,
    ) -> None:
        """The fate of one of our pushes: close its books once.

        version, tokens: what the log says of one that was merged.
        """
        is_merged = outcome in ("merged", "clipped")
        track.books.settled(sequence, tokens, is_merged=is_merged)
        context = self.context
        context.tally.outcomes[outcome] = context.tally.outcomes.get(outcome, 0) + 1
        context.tally.merged += is_merged
        action = Settle(track.index, sequence, "merged" if is_merged else "dropped")
        context.effects.do(action)
        push = track.push
        if push is None or push.sequence != sequence:
            return
        track.push = None
        if is_merged:
            track.handed_step = push.local_step
        else:
            track.discarded_steps += push.overwritten_steps
        if is_merged and context.rebases:
            track.merged_sequence, track.merged_version = sequence, version
            track.marked_step, track.marked_tokens = push.local_step, push.tokens
        key, incarnation = context.setup.signer.key, context.setup.incarnation
        context.effects.emit(
            PushSettled(push.pull.round, key, incarnation, sequence, outcome, reason)
        )

    def _drop(self, fragment: int, sequence: int) -> None:
        self.context.effects.do(Settle(fragment, sequence, "dropped"))

    def _decline(self, pull: Pull, reason: str) -> None:
        self._tell(Decline(pull.round, pull.fragment, reason[:64]))

    def _tell(self, message: Push | Decline) -> None:
        if self.context.leader is not None and self.context.is_following:
            self.context.effects.send(self.context.leader, message)

    def _seal(self, push: OpenPush, captured: Captured, steps: int, tokens: int) -> Push:
        context = self.context
        assert context.charter is not None
        header = PushHeader(
            project=context.setup.project,
            incarnation=context.setup.incarnation,
            sequence=push.sequence,
            round=push.pull.round,
            fragment=push.pull.fragment,
            base_version=captured.base_version,
            codec=context.charter.rounds.up_codec,
            digest=captured.digest,
            payload_bytes=captured.payload_bytes,
            steps=steps,
            tokens=tokens,
            local_step=captured.local_step,
            cursor=captured.cursor,
        )
        payload = wire.encode(header)
        return Push(seal("push", context.setup.project, payload, context.setup.signer))
