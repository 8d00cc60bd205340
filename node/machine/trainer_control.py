"""Controls the inner loop: starts it, feeds it leased blocks, reports on it, evaluates with it."""

from __future__ import annotations

import math

from node.machine import jobs
from node.machine.context import LearnerContext
from node.machine.data_feed import DataFeed
from node.machine.fragment_sync import FragmentSync, FreezePlan
from node.machine.graceful_leave import GracefulLeave
from node.machine.memory_rest import MemoryRest
from node.machine.moments_client import MomentsClient
from node.machine.snapshot_part import PartState
from node.machine.trainer_states import TRAINER_TRANSITIONS, TrainerState
from protocol import limits
from protocol.backoff import Backoff
from protocol.log.records import BlocksLeased, BlocksReturned, CheckpointMarked
from protocol.machine import Failed
from protocol.messages import Cursor, Evaluation, Heartbeat, LearnerState, Unfit
from protocol.trace import TrainerChanged

BEAT_EVERY_S = 0.1
"""Heartbeats on change come no more often than this."""

SUSPEND_RETRY_S = 60.0
"""A trainer that could not be suspended is tried again after so long."""

WAKES_MAX = 5
"""A suspended state that so many trainers in a row could not take up is given up for a fresh one.
That no trainer starts at all, for want of memory or a device, is no fault of the state."""

RESTART = Backoff((1.0, 2.0, 5.0, 10.0, 30.0, 60.0))
UNFIT = Backoff((15.0, 60.0, 300.0, 900.0))
"""Text or model is at fault: its owner may put it right, and the network of a hub come back."""

RESTING = (TrainerState.DOWN, TrainerState.SUSPENDED)
"""States in which a trainer is started or woken when it is time."""

ABSENT = (TrainerState.DOWN, TrainerState.STARTING)
"""States in which there is nobody to feed or to tell anything."""

MICRO_BATCH_FIRST = 8
"""Assumed to have been tried when memory ran out before any was chosen."""


class TrainerControl:
    """The learner's side of its trainer process."""

    def __init__(
        self, context: LearnerContext, fragment_sync: FragmentSync, moments_client: MomentsClient
    ) -> None:
        self.context = context
        self.fragment_sync = fragment_sync
        self.moments_client = moments_client
        self.trainer = TrainerState.DOWN
        self.detail = ""
        self.device = ""
        self.micro_batch = context.setup.micro_batch
        self._chosen_micro_batch = 0
        self._has_other_text = False
        self._crashes = 0
        self._unfits = 0
        self.unfit: Unfit = ""
        """What keeps every trainer from starting, until one does."""
        self.unfit_words = ""
        self.next_try_s = 0.0
        """The rest after the newest trainer that could not start for that."""
        self.memory_rest = MemoryRest()
        self._is_ended = False
        """The trainer that is starting was told to end."""
        self._restart_s: float | None = None
        self.data_feed = DataFeed(context, fragment_sync)
        self._beat_s = -1e9
        self.beat_every_s = 0.0
        """The syncer wants to hear of news no more often."""
        self._is_news = False
        self._told_progress = -1.0
        self._furthest_progress = 0.0
        """No trainer of this daemon is sent back, whatever the owner does to the budget."""
        self._evaluating: int | None = None
        self.paused_until_s: float | None = None
        """End of a pause, infinite when it lasts until resumed; None when there is none."""
        self._suspend_retry_s = -math.inf
        self._wakes_failed = 0
        self._wants_smaller = False
        self.held_because = ""
        """Why the owner's settings allow no local steps now; empty when they do."""
        self.graceful_leave = GracefulLeave(context, fragment_sync)

    @property
    def state(self) -> LearnerState:
        """The word for this learner in the swarm's lists."""
        if self.graceful_leave.until_s is not None and self.trainer in (
            TrainerState.HELD,
            TrainerState.SUSPENDED,
        ):
            return "finishing"
        is_held = self.trainer is TrainerState.HELD
        if self.is_paused or self.memory_rest.words or (self.is_resting and is_held):
            return "paused"
        if self.trainer is TrainerState.STEPPING:
            return "training"
        if self.trainer is TrainerState.STARVED:
            return "starved"
        return "starting" if self.fragment_sync.is_held else "syncing"

    @property
    def is_paused(self) -> bool:
        """Whether the word of an owner, of this machine or of the run, or settings allow no steps.

        A run may be paused for days, so its trainers free their memory as well.
        """
        is_paused_here = self.paused_until_s is not None or bool(self.held_because)
        return is_paused_here or self.context.run_paused_at_s is not None

    @property
    def is_evaluating(self) -> bool:
        """Whether the trainer measures a checkpoint, or is about to."""
        plan = self.fragment_sync.freezing
        return self._evaluating is not None or (plan is not None and plan.is_asked)

    @property
    def is_resting(self) -> bool:
        """Whether the swarm's guard paused merging: local steps would be in vain."""
        return self.context.state.pause is not None

    def look(self) -> None:
        """Do whatever the inner loop needs next."""
        now_s = self.context.now_s
        may_start = self._restart_s is None or now_s >= self._restart_s
        # A paused machine takes no memory for a trainer that would stand still.
        is_wanted = self.context.charter is not None and not self.is_paused
        if self.trainer is TrainerState.DOWN and is_wanted and may_start:
            self._start()
        is_standing = self.trainer is TrainerState.LOADING and self.fragment_sync.is_standing
        if is_standing and self.moments_client.may_begin():
            self._fire("loaded", "")
            self.context.effects.do(jobs.BeginSteps())
        self._hold()
        self._lease()
        self._evaluate()
        self._beat()

    def deadline_s(self) -> float:
        """When to look again if nothing happens before."""
        times = [self._beat_s + limits.HEARTBEAT_S]
        if self._is_news:
            times.append(self._beat_s + max(BEAT_EVERY_S, self.beat_every_s))
        waits = (self._restart_s, self.paused_until_s, self.graceful_leave.deadline_s())
        times += [t for t in (*waits, self.data_feed.deadline_s()) if t is not None]
        return max(min(times), self.context.now_s + 0.01)

    # From the owner of this machine.

    def pause(self, seconds: float | None) -> None:
        """No local steps for so long, or until resumed."""
        self.paused_until_s = math.inf if seconds is None else self.context.now_s + seconds
        self._is_news = True

    def resume(self) -> None:
        """Local steps again, also when this learner was about to finish."""
        self.paused_until_s = None
        self.graceful_leave.withdraw()
        self._is_news = True
        if (self.unfit or self.memory_rest.words) and self.trainer in RESTING:
            self._restart_s = None  # Its owner has put it right.

    def finish(self) -> None:
        """Hand in what is done, then stop."""
        self.paused_until_s = None
        self.graceful_leave.ask()
        self._is_news = True

    # From the log.

    def on_leased(self, leased: BlocksLeased) -> None:
        """Blocks for somebody; for this session they are fed to the inner loop."""
        if (leased.learner, leased.incarnation) == self.data_feed.session:
            self.data_feed.asked_s = None
            if self.trainer not in ABSENT:
                self.data_feed.feed(leased.spans)

    def on_returned(self, returned: BlocksReturned) -> None:
        """A session's blocks go to others; this one's, if it was away for too long."""
        is_own = (returned.learner, returned.incarnation) == self.data_feed.session
        if is_own and self.trainer not in ABSENT:
            self.data_feed.lose()

    def on_index(self) -> None:
        """Records were skipped: what they did shows in the state alone."""
        if self.trainer not in ABSENT:
            self.data_feed.check()
        self.on_progress()

    def on_marked(self, mark: CheckpointMarked, index: int) -> None:
        """A checkpoint; this learner freezes it if it is named, and evaluates it as the first."""
        former, me = self.fragment_sync.freezing, self.context.setup.signer.key
        if former is not None and (me in (mark.evaluator, mark.second) or not former.is_asked):
            self._forget_frozen(former)
        if me in (mark.evaluator, mark.second):
            versions = {at: f.version for at, f in enumerate(self.context.state.fragments)}
            is_first = me == mark.evaluator
            self.fragment_sync.freezing = FreezePlan(index, versions, is_asked=is_first)

    def on_measured(self, checkpoint: int) -> None:
        """The first has measured a checkpoint: the second does too, if its word is wanted."""
        plan = self.fragment_sync.freezing
        if plan is None or plan.index != checkpoint or plan.is_asked:
            return
        plan.is_asked = self.context.state.awaits(checkpoint, self.context.setup.signer.key)
        if not plan.is_asked:
            self._forget_frozen(plan)

    def _forget_frozen(self, plan: FreezePlan) -> None:
        self.context.effects.do(jobs.Thaw(plan.index))
        self.fragment_sync.freezing = None

    def on_progress(self) -> None:
        """Committed tokens moved: so does the learning-rate schedule, backwards only by what was
        taken back. A run that goes on for longer needs the rate that it would have without."""
        if self.context.charter is None or self.trainer in ABSENT:
            return
        state, budget = self.context.state, self.context.charter.limits.tokens
        merged = min(1.0, state.tokens_merged / budget)
        self._furthest_progress = max(merged, self._furthest_progress)
        taken = (state.tokens_merged - state.tokens) / budget
        fraction = max(0.0, self._furthest_progress - taken)
        if abs(fraction - self._told_progress) > 1e-4:
            self._told_progress = fraction
            self.context.effects.do(jobs.SetProgress(fraction))

    def on_link(self) -> None:
        """The session opened or ended: what was asked for on the former one is void."""
        self.data_feed.asked_s = None
        self._is_news = True

    def on_inner_changed(self) -> None:
        """The owner changed what local steps do: a new trainer takes it up."""
        if self.trainer is not TrainerState.DOWN:
            self.context.effects.do(jobs.ReplaceTrainer("the project's training settings changed"))

    def on_went_back(self) -> None:
        """Merges are void: a new trainer begins, whose optimizer knows nothing of them.

        What they did to the moments and to the error feedback, up to values that are no numbers,
        would outlive the weights.
        """
        self.context.effects.do(jobs.DropErrorFeedback())
        if self.trainer is not TrainerState.DOWN:
            self.context.effects.do(
                jobs.ReplaceTrainer("the run went back to an earlier state of the model")
            )

    def on_restored(self) -> None:
        """The guard voided merges, as an owner may."""
        plan = self.fragment_sync.freezing
        if plan is not None:
            self._forget_frozen(plan)
        self.fragment_sync.on_restored()
        self.on_went_back()

    def on_note(self, value: object) -> None:
        """News of the trainer, the word of this machine's owner, or of its sensors."""
        match value:
            case jobs.Stepped():
                self.on_stepped(value)
            case jobs.Starved():
                self.on_starved()
            case jobs.TrainerLost():
                self.on_lost(value)
            case jobs.PauseAsked(seconds):
                self.pause(seconds)
            case jobs.ResumeAsked():
                self.resume()
            case jobs.FinishAsked():
                self.finish()
            case jobs.Governed(because):
                self._is_news = self._is_news or bool(because) != bool(self.held_because)
                self.held_because = because
            case jobs.MemoryShort(words):
                self.shrink(words)
            case jobs.CeilingChanged():
                self.memory_rest.on_changed()
                if self.memory_rest.words and self.trainer in RESTING:
                    self._restart_s = None

    # From the trainer.

    def on_ready(self, result: object) -> None:
        """The trainer could step, or could not be started."""
        if not isinstance(result, jobs.TrainerReady):
            detail = result.reason if isinstance(result, Failed) else "did not start"
            self.on_lost(jobs.TrainerLost(False, detail))
            if isinstance(result, jobs.TrainerUnfit):
                self._rest_unfit(result)
            return
        self.unfit, self._unfits = "", 0
        self.memory_rest.on_ready(self.context.now_s)
        self._fire("ready", result.device)
        self.device, self._chosen_micro_batch = result.device, result.micro_batch
        self._has_other_text = result.has_other_text
        self._told_progress = -1.0
        self._take_batch(result)
        start = self.context.setup.start
        if result.unread is not None and start is not None and start.part is not None:
            self._go_on(start.part, result, result.unread)
            return
        self.moments_client.on_trainer_ready()
        self.fragment_sync.can_deliver = True
        self.on_progress()
        # Blocks whose steps died with the former trainer are read again.
        self.data_feed.feed_held()

    def _rest_unfit(self, result: jobs.TrainerUnfit) -> None:
        """Trying again would end the same way, so it is done ever more seldom."""
        if result.kind == "memory":
            self._restart_s = self.context.now_s + self.memory_rest.begin(result.reason)
            return
        self.unfit, self.unfit_words = result.kind, result.reason
        self.next_try_s = UNFIT.pause_s(self._unfits)
        self._unfits += 1
        self._restart_s = self.context.now_s + self.next_try_s

    def _take_batch(self, ready: jobs.TrainerReady) -> None:
        context = self.context
        context.batch_sequences = ready.batch_sequences or context.inner.batch_sequences

    def _go_on(self, part: PartState, ready: jobs.TrainerReady, unread: int) -> None:
        """The trainer stands where the part was cut, the leased blocks it had not read included."""
        context = self.context
        self.fragment_sync.take_up(part)
        self.moments_client.on_trainer_restored()
        self.fragment_sync.can_deliver = True
        read = ready.tokens // context.setup.genesis.data.sequence_tokens
        self.data_feed.fed_sequences = unread + read
        # Should it die before its first report: this much was read, whatever it is then counted as.
        place = Cursor(0, 0)
        context.stepped = jobs.Stepped(ready.local_step, ready.tokens, None, 0.0, 0.0, 0.0, place)
        self.on_progress()

    def on_stepped(self, stepped: jobs.Stepped) -> None:
        if self.trainer is TrainerState.STARVED:
            self._fire("stepped", "")
        self.context.stepped = stepped
        self.memory_rest.on_stepped(self.context.now_s)
        self._crashes = 0
        self._is_news = True

    def on_starved(self) -> None:
        if self.trainer is TrainerState.STEPPING:
            has_read = self.context.stepped is not None
            self._fire("starved", "all leased text is read" if has_read else "no text is here yet")
            self._is_news = True

    def on_lost(self, lost: jobs.TrainerLost) -> None:
        """The trainer died: the daemon goes on, and starts another one after a pause."""
        if self.trainer is TrainerState.DOWN:
            return
        if self.trainer is TrainerState.WAKING:
            return  # Its state is safe, and the job that wakes it says so.
        tally = self.context.tally
        self.moments_client.on_trainer_lost()
        tally.lost_steps += self.fragment_sync.on_trainer_lost()
        tally.trainer_restarts += 1
        self.context.stepped = None
        self._evaluating = None
        detail = lost.detail
        pause_s = RESTART.pause_s(self._crashes)
        if lost.is_out_of_memory and self._tried == 1:
            detail = (
                "It ran out of memory with a micro-batch of one sequence. Free memory on this "
                "machine, or raise limits.ram_bytes_max if that is set."
            )
            pause_s = self.memory_rest.begin(detail)
        elif lost.is_out_of_memory:
            self._halve()
            detail = f"out of memory; next try with a micro-batch of {self.micro_batch}"
        self._restart_s = self.context.now_s + pause_s
        self._crashes += 1
        self._fire("lost", detail)
        self._is_news = True

    def on_suspended(self, result: object) -> None:
        """The trainer's state is in files, or it holds and keeps its memory."""
        if self.trainer is not TrainerState.SUSPENDING:
            return  # It died meanwhile.
        if isinstance(result, jobs.TrainerSuspended):
            self._wants_smaller = False
            self._wakes_failed = 0
            self._restart_s = None
            self._fire("suspended", "its memory is free")
            return
        reason = result.reason if isinstance(result, Failed) else "it did not answer"
        self._suspend_retry_s = self.context.now_s + SUSPEND_RETRY_S
        self._wants_smaller = False
        self._fire("not suspended", f"its memory stays taken: {reason}")

    def on_woken(self, result: object) -> None:
        """A trainer goes on where the suspended one stood, or another try is due."""
        if self.trainer is not TrainerState.WAKING:
            return
        if isinstance(result, jobs.TrainerReady):
            self.device, self._chosen_micro_batch = result.device, result.micro_batch
            self._take_batch(result)
            self.memory_rest.on_ready(self.context.now_s)
            self._fire("woken", "")
            self.context.effects.do(jobs.BeginSteps())
            return
        if isinstance(result, jobs.TrainerLost):
            self._fire("not woken", result.detail)
            self.on_lost(result)
            return
        is_stuck = isinstance(result, jobs.NotRestored)
        detail = result.reason if isinstance(result, Failed | jobs.NotRestored) else "did not start"
        self._wakes_failed += 1
        if is_stuck and self._wakes_failed >= WAKES_MAX:
            self.context.effects.do(
                jobs.ReplaceTrainer(f"its state could not be restored: {detail}")
            )
        if self._wakes_failed > 1:
            self.micro_batch = max(1, (self._chosen_micro_batch or MICRO_BATCH_FIRST) // 2)
        pause_s = RESTART.pause_s(self._wakes_failed)
        if isinstance(result, jobs.TrainerUnfit) and result.kind == "memory":
            pause_s = self.memory_rest.begin(detail)
        self._restart_s = self.context.now_s + pause_s
        self._fire("not woken", detail)

    def shrink(self, words: str) -> None:
        """Go on with a smaller micro-batch, for what is taken is at the owner's ceiling."""
        if self.trainer not in (TrainerState.STEPPING, TrainerState.STARVED):
            return
        self._halve()
        self._wants_smaller = True
        self.detail = f"{words}; continuing with a micro-batch of {self.micro_batch}"

    def on_evaluated(self, job: jobs.Evaluate, result: object) -> None:
        self._evaluating = None
        context = self.context
        context.effects.do(jobs.Thaw(job.index))
        if isinstance(result, jobs.EvaluatedLoss) and context.leader is not None:
            # A wrecked model gives no number, or a huge one: the guard has to hear of it.
            is_told = 0.0 <= result.loss < limits.LOSS_MAX
            loss = result.loss if is_told else limits.LOSS_MAX
            answer = Evaluation(job.index, loss, result.tokens, result.seconds)
            context.effects.send(context.leader, answer)

    # Inside.

    @property
    def _tried(self) -> int:
        """The micro-batch of the newest trainer, as far as it is known."""
        return self._chosen_micro_batch or self.micro_batch or MICRO_BATCH_FIRST

    def _halve(self) -> None:
        """The next trainer gets half of the micro-batch that was tried."""
        self.micro_batch = max(1, self._tried // 2)

    def _fire(self, trigger: str, detail: str) -> None:
        self.trainer = TRAINER_TRANSITIONS[self.trainer, trigger]
        self.detail = detail
        self._is_news = True
        self.context.effects.emit(TrainerChanged(self.trainer.value, detail))

    def _start(self) -> None:
        self._restart_s = None
        self._is_ended = False
        self.data_feed.begin()
        self._fire("start", "")
        self.context.effects.start(jobs.StartTrainer(self.micro_batch, self.context.inner))

    def _hold(self) -> None:
        """Make the inner loop hold or go on, as the owner wants."""
        now_s = self.context.now_s
        if self.paused_until_s is not None and now_s >= self.paused_until_s:
            self.paused_until_s = None
        wants_suspend = self.is_paused or self._wants_smaller
        wants_hold = self.graceful_leave.until_s is not None or self.is_resting
        is_live = self.trainer in (TrainerState.STEPPING, TrainerState.STARVED)
        may_suspend = is_live or (
            self.trainer is TrainerState.HELD and now_s >= self._suspend_retry_s
        )
        if (
            self.is_paused
            and self.trainer in (TrainerState.STARTING, TrainerState.LOADING)
            and not self._is_ended
        ):
            self._is_ended = True
            self.context.effects.do(
                jobs.ReplaceTrainer("its owner paused it before its first local step")
            )
        elif wants_suspend and may_suspend:
            self._fire("suspend", "")
            self.context.effects.start(jobs.SuspendTrainer())
        elif wants_hold and is_live:
            self._fire("hold", "")
            self.context.effects.do(jobs.HoldSteps())
        elif not wants_suspend and not wants_hold and self.trainer is TrainerState.HELD:
            self._fire("release", "")
            self.context.effects.do(jobs.ReleaseSteps())
        elif not self.is_paused and not wants_hold and self.trainer is TrainerState.SUSPENDED:
            self._wake()

    def _wake(self) -> None:
        if self._restart_s is None or self.context.now_s >= self._restart_s:
            self._restart_s = None
            self._fire("wake", "")
            # It goes on with the batch that it had.
            inner = self.context.inner.with_batch(self.context.batch_sequences)
            self.context.effects.start(jobs.WakeTrainer(self.micro_batch, inner))

    def _lease(self) -> None:
        """Ask for blocks before the inner loop runs out of them."""
        context = self.context
        if not context.is_following or context.leader is None or context.charter is None:
            return
        if self.trainer in (
            TrainerState.DOWN,
            TrainerState.HELD,
            TrainerState.SUSPENDING,
            TrainerState.SUSPENDED,
        ):
            return
        is_going_on = context.setup.start is not None and context.setup.start.part is not None
        has_some = is_going_on or context.state.leases.held.get(self.data_feed.session)
        if self.trainer is TrainerState.STARTING and (
            has_some or self.unfit or self.memory_rest.words
        ):
            return  # They are fed, or asked for, as soon as there is a trainer.
        self.data_feed.ask()

    def _evaluate(self) -> None:
        plan = self.fragment_sync.freezing
        is_ready = self.trainer in (
            TrainerState.LOADING,
            TrainerState.STEPPING,
            TrainerState.STARVED,
            TrainerState.HELD,
        )
        if plan is None or plan.missing or self._evaluating is not None or not is_ready:
            return
        if not plan.is_asked:
            return
        charter = self.context.charter
        assert charter is not None, "a mark comes from the log, which comes after the charter"
        self.fragment_sync.freezing = None
        self._evaluating = plan.index
        self.context.effects.start(jobs.Evaluate(plan.index, charter.limits.heldout_sequences))

    def _beat(self) -> None:
        """Say where we stand: on change, rate-limited, and now and then that we live."""
        context = self.context
        since_s = context.now_s - self._beat_s
        every_s = max(BEAT_EVERY_S, self.beat_every_s) if self._is_news else limits.HEARTBEAT_S
        if since_s < every_s:
            return
        self._beat_s, self._is_news = context.now_s, False
        context.tell_leader(self.heartbeat())

    def heartbeat(self) -> Heartbeat:
        """What the swarm is told about this learner."""
        stepped = self.context.stepped
        local_step = stepped.local_step if stepped else 0
        local_fragments = self.fragment_sync.local_fragments
        return Heartbeat(
            state=self.state,
            device=self.device[:128],
            local_step=local_step,
            tokens=stepped.tokens if stepped else 0,
            step_s=stepped.step_s if stepped else 0.0,
            loss=stepped.loss if stepped else None,
            steps=tuple(local.steps(local_step) for local in local_fragments),
            versions=tuple(max(0, local.standing) for local in local_fragments),
            cursor=stepped.cursor if stepped else Cursor(0, 0),
            work_s=stepped.work_s if stepped else 0.0,
            alive_s=stepped.alive_s if stepped else 0.0,
            busy_s=stepped.busy_s if stepped else 0.0,
            has_other_text=self._has_other_text,
            unfit=self.unfit,
        )
