"""Keeps fragments current and hands in displacements; owns the local fragments."""

from __future__ import annotations

from dataclasses import dataclass

from node.machine import jobs
from node.machine.context import LearnerContext
from node.machine.fragment_state import NONE, LocalFragment, OpenPush
from node.machine.snapshot_part import PartState
from protocol import wire
from protocol.backoff import Backoff
from protocol.log.records import FragmentMerged
from protocol.log.state import SwarmState
from protocol.machine import Failed
from protocol.messages import Cursor, Decline, Pull, Push, PushHeader, Settled
from protocol.signing import seal
from protocol.trace import FragmentAdvanced, FragmentApplied, PushSettled, WeightsReady

FETCH_AGAIN = Backoff((0.3, 0.6, 1.2, 2.4, 4.8, 5.0))
ADVANCE_TRIES = 3
DELIVER_AGAIN_S = 0.3
NO_STEPS = "no local steps since the last hand-in"
"""Failures after which a fragment's full state is fetched instead of the missing payload."""


@dataclass(slots=True)
class FreezePlan:
    """A checkpoint this learner evaluates: which version of each fragment it is made of."""

    index: int
    missing: dict[int, int]
    """Fragment -> version, for those not frozen yet."""
    is_asked: bool = True
    """Otherwise another learner measures it first."""


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
        self.handed_cursor: Cursor | None = None
        """Up to where text was read that is in a push."""
        self._joining_since_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether every fragment is here in a verified version."""
        return all(local.held != NONE for local in self.local_fragments)

    @property
    def has_any(self) -> bool:
        """Whether a fragment is here in a verified version."""
        return any(local.held != NONE for local in self.local_fragments)

    @property
    def held(self) -> tuple[int, ...]:
        """The version of each fragment whose weights are here, NONE for none."""
        return tuple(local.held for local in self.local_fragments)

    @property
    def is_standing(self) -> bool:
        """Whether the inner loop has every fragment."""
        return all(local.standing != NONE for local in self.local_fragments)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way to or from the inner loop."""
        return not any(local.is_moving for local in self.local_fragments)

    def take_up(self, part: PartState) -> None:
        """The inner loop stands where this part of a snapshot says."""
        self.sequence = part.sequence
        for local, kept in zip(self.local_fragments, part.local_fragments, strict=True):
            local.standing, local.must_assign = kept.standing, kept.must_assign
            local.marked_step, local.marked_tokens = kept.marked_step, kept.marked_tokens
            local.handed_step, local.discarded_steps = kept.handed_step, kept.discarded_steps
            local.merged_sequence, local.merged_version = kept.merged_sequence, kept.merged_version
            local.accounts = kept.accounts.accounts()

    def restart_from_index(self, former: SwarmState) -> bool:
        """The log's state was replaced by an index: full states replace what is missing.

        In a new epoch a version may have the number of a void one: what is held counts only if it
        is the very one of the index. Whether the owner voided something that the inner loop
        stands on: then its optimizer has seen it too.
        """
        fragments = self.context.state.fragments
        is_new = former.has_weights and former.epoch < self.context.state.epoch
        self._joining_since_s = self.context.now_s
        self.freezing = None
        for local in self.local_fragments:
            local.queue.clear()
            if local.push is not None:
                # Whether it was merged stood in records that were skipped: count it as lost.
                self._resolve(local, local.push.sequence, "abandoned", "the log was left behind")
                local.must_assign = True
            local.accounts.give_up()
            newest = fragments[local.index]
            is_void = is_new and former.fragments[local.index] != newest
            if local.held > newest.version:
                local.held = NONE
            elif is_void and local.held == newest.version:
                # The inner loop stands on the void one: what came instead must be delivered.
                local.held = local.standing = NONE
        if self._has_missed_restore(former):
            self._drop_void()
            return True
        charter = self.context.charter
        origin = charter.origin if charter is not None else None
        if not is_new or origin is None:
            return False
        return any(one.record_index > origin.index for one in former.fragments)

    def _has_missed_restore(self, former: SwarmState) -> bool:
        """Whether the guard went back in records that were skipped."""
        restored = self.context.state.restored
        return former.has_weights and restored is not None and restored.index > former.index

    def _drop_void(self) -> None:
        restored = self.context.state.restored
        assert restored is not None, "the guard went back"
        for local, version in zip(self.local_fragments, restored.versions, strict=True):
            local.restored(version)

    def go_on(self) -> None:
        """The log's state is that of a former life: its weights are to be had from this disk."""
        self._joining_since_s = self.context.now_s

    def start_over(self) -> None:
        """Local steps that are not handed in do not count: others read their text again."""
        self.handed_cursor = None
        for local in self.local_fragments:
            local.must_assign = local.must_assign or local.standing != NONE

    def look(self) -> None:
        """Do for each fragment whatever can be done next; most are at rest."""
        is_freezing = self.freezing is not None
        for local in self.local_fragments:
            if is_freezing or not local.is_at_rest:
                self._pump(local)

    def deadline_s(self) -> float | None:
        """When what failed is tried again."""
        times = [
            again_s
            for local in self.local_fragments
            for again_s in (local.retry_s, local.deliver_again_s)
            if again_s > self.context.now_s
        ]
        return min(times, default=None)

    # From the log.

    def on_committed(self, merged: FragmentMerged) -> None:
        """A new version of a fragment counts; perhaps with a push of ours in it."""
        local = self.local_fragments[merged.fragment]
        local.queue.append(merged)
        local.passed(self.context.now_s)
        setup = self.context.setup
        for part in merged.contributions:
            if (part.learner, part.incarnation) == (setup.signer.key, setup.incarnation):
                outcome = "clipped" if part.scale < 1 else "merged"
                self.context.tally.trust = part.trust
                self._resolve(
                    local,
                    part.sequence,
                    outcome,
                    "",
                    version=merged.version,
                    tokens=part.tokens,
                )

    def on_restored(self) -> None:
        """The guard went back: every fragment is fetched as it was, and local steps on the void
        weights are in vain."""
        self.freezing = None
        for local in self.local_fragments:
            local.accounts.give_up()
            if local.push is not None:
                self._resolve(local, local.push.sequence, "abandoned", "the guard went back")
        self._drop_void()

    def on_new_term(self) -> None:
        """Rounds of the former leader died with its term: what they held is free again."""
        for local in self.local_fragments:
            local.accounts.give_up()
            if local.push is not None and local.push.message is not None:
                self._resolve(local, local.push.sequence, "abandoned", "a new term began")

    # From the syncer.

    def on_pull(self, pull: Pull) -> None:
        """Hand in at the next boundary on the newest version, or say why not."""
        if pull.fragment >= len(self.local_fragments):
            return
        local = self.local_fragments[pull.fragment]
        if not self.can_deliver or local.held == NONE:
            self._decline(pull, "not training")
        elif local.push is not None:
            self._decline(pull, "the last push is unresolved")
        else:
            local.pull = pull

    def on_settled(self, settled: Settled) -> None:
        """A push did not make it into a merge."""
        if settled.incarnation != self.context.setup.incarnation:
            return
        for local in self.local_fragments:
            if local.push is not None and local.push.sequence == settled.sequence:
                if settled.outcome == "rejected":
                    local.must_assign = True
                self._resolve(local, settled.sequence, settled.outcome, settled.reason)

    def on_rule_changed(self) -> None:
        """Local steps outlive merges in another way than before: whatever a push of before is in,
        the inner loop starts over from it."""
        for local in self.local_fragments:
            if local.standing != NONE and (local.queue or local.needs_delivery):
                local.must_assign = True
            if local.push is not None:
                local.push.is_of_former_rule = True

    def on_link(self) -> None:
        """Say again what was handed in: its fate may have been told while nobody listened. What the
        leader could not give while it was away it may give now."""
        for local in self.local_fragments:
            local.failures, local.retry_s = 0, 0.0
            local.accounts.give_up()  # Nobody says again what a trainer that is gone handed in.
            if local.push is not None:
                local.push.is_handed_in = False
        self._hand_in()

    def _hand_in(self) -> None:
        """Hand in what is encoded, in the order in which it was captured.

        Several may be encoded at once. A syncer takes a push for one that it had before if a later
        one came first.
        """
        pushes = [local.push for local in self.local_fragments if local.push is not None]
        for push in sorted(pushes, key=lambda one: one.sequence):
            if push.message is None:
                return
            if not push.is_handed_in:
                push.is_handed_in = True
                self.context.tell_leader(push.message)

    # From the trainer.

    def on_trainer_lost(self) -> int:
        """Local steps that died with the trainer."""
        self.can_deliver = False
        stepped = self.context.stepped
        done = stepped.local_step if stepped else 0
        lost = sum(local.steps(done) for local in self.local_fragments) // len(self.local_fragments)
        for local in self.local_fragments:
            if local.pull is not None:
                self._decline(local.pull, "the trainer stopped")
            local.accounts.trainer_lost(stepped.tokens if stepped else 0)
            local.trainer_lost()
        return lost

    # Answers.

    def on_job(self, job: jobs.FragmentJob, result: object) -> None:
        match job:
            case jobs.FetchState():
                self.on_state(job, result)
            case jobs.Advance():
                self.on_advanced(job, result)
            case jobs.Deliver():
                self.on_delivered(job, result)
            case jobs.Capture():
                self.on_captured(job, result)

    def on_state(self, job: jobs.FetchState, result: object) -> None:
        local = self.local_fragments[job.fragment]
        local.is_busy = False
        if job.version < local.sound_from:
            return
        if not isinstance(result, jobs.StateFetched):
            self._retry_later(local)
            return
        local.failures = 0
        local.skip_to(job.version)
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
            words = "from this disk"
        context.effects.emit(FragmentAdvanced(local.index, job.version, job.state.theta, words))
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

    def on_advanced(self, job: jobs.Advance, result: object) -> None:
        merged = job.merged
        local = self.local_fragments[merged.fragment]
        local.is_busy = False
        if merged.version < local.sound_from:
            return
        if not isinstance(result, jobs.Advanced):
            self._retry_later(local)
            return
        local.failures = 0
        local.skip_to(merged.version)
        fact = FragmentAdvanced(local.index, merged.version, merged.state.theta, "outer step")
        self.context.effects.emit(fact)

    def on_delivered(self, job: jobs.Deliver, result: object) -> None:
        local = self.local_fragments[job.fragment]
        if local.delivering != job.version:
            return  # Asked of a trainer that is gone.
        local.delivering = NONE
        if not isinstance(result, jobs.Delivered):
            # As of a trainer that is gone, which may be news to us.
            local.must_assign = True
            local.deliver_again_s = self.context.now_s + DELIVER_AGAIN_S
            return
        local.standing = result.version
        if job.is_assign:
            local.was_captured = False
            local.overwrite(result.local_step)
            local.marked_step, local.marked_tokens = result.local_step, result.tokens
            local.accounts.assigned(result.tokens)
        self.context.effects.emit(FragmentApplied(local.index, result.version, result.local_step))

    def on_captured(self, job: jobs.Capture, result: object) -> None:
        local = self.local_fragments[job.fragment]
        push = local.push
        if push is None or push.sequence != job.sequence:
            self._drop(job.fragment, job.sequence)
            return
        if not isinstance(result, jobs.Captured):
            reason = result.reason if isinstance(result, Failed) else "capture failed"
            local.push = None
            local.must_assign = True
            self._decline(push.pull, reason)
            self._hand_in()
            return
        steps = result.local_step - local.marked_step
        if steps < 1 or local.must_assign or push.is_of_former_rule:
            local.push = None
            self._drop(job.fragment, job.sequence)
            reason = "the rules changed" if push.is_of_former_rule else NO_STEPS
            self._decline(push.pull, reason)
            self._hand_in()
            return
        push.local_step, push.tokens = result.local_step, result.tokens
        local.was_captured = True
        self.handed_cursor = result.cursor
        local.accounts.handed(push.sequence, result.tokens)
        push.message = self._seal(push, result, steps, result.tokens - local.marked_tokens)
        self.context.tally.pushed += 1
        self._hand_in()

    # Inside.

    def _pump(self, local: LocalFragment) -> None:
        is_waiting = self.context.now_s < local.retry_s
        if local.is_busy or (is_waiting and local.standing != NONE):
            return
        self._freeze(local)
        is_behind = bool(local.queue) or (local.held == NONE and self.context.state.has_weights)
        # Between tries an inner loop that has nothing gets what is held: better than to stand still
        # while the only host with the newest version is away.
        if is_behind and not is_waiting and self._bring(local):
            return
        is_able = self.can_deliver and self.may_move
        # A capture is of what the inner loop stood on: that must not change before it is encoded.
        if not is_able or local.held == NONE or local.is_moving:
            return
        if local.needs_delivery:
            if self.context.now_s >= local.deliver_again_s:
                self._deliver(local)
        elif local.pull is not None and local.is_current and local.push is None:
            pull, local.pull = local.pull, None
            self.sequence += 1
            local.push = OpenPush(self.sequence, pull)
            self.context.effects.start(jobs.Capture(local.index, self.sequence))

    def _bring(self, local: LocalFragment) -> bool:
        """Start what brings the local to a newer version; whether something was started."""
        newest = self.context.state.fragments[local.index]
        following = local.queue[0] if local.queue else None
        is_next = following is not None and following.version == local.held + 1
        if following is not None and is_next and local.failures < ADVANCE_TRIES:
            self.context.effects.start(jobs.Advance(following))
            local.is_busy = True
            return True
        if local.held < newest.version:
            self.context.effects.start(jobs.FetchState(local.index, newest.version, newest.state))
            local.is_busy = True
            return True
        return False

    def _deliver(self, local: LocalFragment) -> None:
        is_assign = local.must_assign or not self.context.rebases
        if is_assign and not local.must_assign:
            is_assign = not self._lives_on(local)
        kept_frac = 0.0 if local.must_assign else self.context.kept_frac
        local.delivering = local.held
        job = jobs.Deliver(local.index, local.held, is_assign, local.merged_sequence, kept_frac)
        local.must_assign, local.merged_sequence = False, None
        self.context.effects.start(job)

    def _lives_on(self, local: LocalFragment) -> bool:
        """Whether local steps outlive a merge that has none of them in it.

        They do where a round asks some of the learners, and where one local step takes longer than
        the others need from merge to merge: started over each time, that learner would never have
        anything to hand in. More than H are of a learner that was away.
        """
        context = self.context
        if local.merged_sequence is not None:
            return False
        if context.keeps_left_out:
            return True
        stepped = context.stepped
        if stepped is None or local.was_captured or stepped.step_s <= local.cycle_s:
            return False
        return local.steps(stepped.local_step) <= context.local_steps

    def _freeze(self, local: LocalFragment) -> None:
        plan = self.freezing
        if plan is None or local.index not in plan.missing:
            return
        if local.held == plan.missing[local.index]:
            del plan.missing[local.index]
            self.context.effects.do(jobs.Freeze(plan.index, local.index))

    def _retry_later(self, local: LocalFragment) -> None:
        local.retry_s = self.context.now_s + FETCH_AGAIN.pause_s(local.failures)
        local.failures += 1

    def _resolve(
        self,
        local: LocalFragment,
        sequence: int,
        outcome: str,
        reason: str,
        *,
        version: int = 0,
        tokens: int = 0,
    ) -> None:
        """The fate of one of our pushes: close its accounts once.

        version, tokens: what the log says of one that was merged.
        """
        is_merged = outcome in ("merged", "clipped")
        local.accounts.settled(sequence, tokens, is_merged=is_merged)
        context = self.context
        context.tally.outcomes[outcome] = context.tally.outcomes.get(outcome, 0) + 1
        context.tally.merged += is_merged
        action = jobs.Settle(local.index, sequence, "merged" if is_merged else "dropped")
        context.effects.do(action)
        push = local.push
        if push is None or push.sequence != sequence:
            return
        local.push = None
        if is_merged:
            local.handed_step = push.local_step
        else:
            local.discarded_steps += push.overwritten_steps
        # One that the inner loop started over from since is in nothing that it stands on.
        is_in_loop = is_merged and push.local_step > local.marked_step
        if is_in_loop and push.is_of_former_rule:
            local.must_assign = True
        elif is_in_loop and any(context.outliving):
            local.merged_sequence, local.merged_version = sequence, version
            if context.rebases:
                local.marked_step, local.marked_tokens = push.local_step, push.tokens
        key, incarnation = context.setup.signer.key, context.setup.incarnation
        context.effects.emit(
            PushSettled(push.pull.round, key, incarnation, sequence, outcome, reason)
        )

    def _drop(self, fragment: int, sequence: int) -> None:
        self.context.effects.do(jobs.Settle(fragment, sequence, "dropped"))

    def _decline(self, pull: Pull, reason: str) -> None:
        self.context.tell_leader(Decline(pull.round, pull.fragment, reason[:64]))

    def _seal(self, push: OpenPush, captured: jobs.Captured, steps: int, tokens: int) -> Push:
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
