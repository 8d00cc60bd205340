"""Checkpoints and their held-out loss: when to mark one, who evaluates it, how long to wait.

The mark is a log record, so that the evaluator captures exactly the state the syncer checkpoints.
It names a second learner too, which captures the same and measures only if the first one's loss
would make a new best, or is far above the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blake3 import blake3

from protocol.log.records import Body, CheckpointEvaluated, CheckpointMarked
from protocol.log.state import SwarmState
from protocol.messages import Evaluation
from protocol.peers.membership import Membership, Session

ANSWER_TIMEOUT_S = 120.0
"""An evaluator that has not answered by then is passed over."""

STILL_S = 30.0
"""After so long without a merge a guarded model is measured once: where it is wrecked, learners
have nothing to hand in but what is no number, and so no merge would ever make a checkpoint due."""

FINAL_TRIES = 3

PASSED_OVER_MARKS = 4
"""Who did not answer is not asked again for so many marks, if somebody else can be."""


@dataclass(slots=True)
class Evaluating:
    """The mark that is out for evaluation, if any."""

    state: SwarmState
    members: Membership
    every: int
    """Global steps between two evaluations."""
    checkpoint_every: int
    """Global steps after which the state is kept even if nobody evaluates it."""
    propose: Callable[[Body], None]
    is_marking: bool = False
    """A mark is proposed but not yet committed."""
    is_scoring: bool = False
    """A loss is proposed but not yet committed."""
    pending: int = 0
    """Log index of the mark whose loss is awaited; 0 when none."""
    evaluator: bytes | None = None
    """Who is to answer now: the first that the mark names, or the second."""
    since_s: float = 0.0
    final_tries: int = 0
    step: int = -1
    """Global step at the last look."""
    step_s: float = 0.0
    """When it was first seen."""
    asks_again: bool = False
    """One measurement says that the model is wrecked: the next one is not waited for."""
    resting: dict[bytes, int] = field(default_factory=dict)
    """Learners that did not answer, and for how many more marks they are not asked."""

    def look(self, now_s: float) -> None:
        """Mark a checkpoint when one is due."""
        self._pass_over(now_s)
        step, last = self.state.global_step, self.state.curve[-1:]
        if step != self.step:
            self.step, self.step_s = step, now_s
        if self._is_busy or not self.state.has_weights:
            return
        # The very first mark comes with the first evaluator, so that the curve starts early.
        is_due = self.asks_again or not last or step - last[0].global_step >= self.every
        is_due = is_due or (step > last[0].global_step and self._is_still(now_s))
        chosen = self._choose() if is_due else []
        if chosen or step - self.state.checkpoint_step >= self.checkpoint_every:
            self._mark(chosen)

    def _is_still(self, now_s: float) -> bool:
        """Whether a guarded run stands still."""
        return now_s - self.step_s >= STILL_S and self.state.guard != "off"

    def finish(self, now_s: float) -> bool:
        """Whether the last state is marked and evaluated as far as it will ever be."""
        self._pass_over(now_s)
        if self._is_busy:
            return False
        is_current = self.state.checkpoint_step == self.state.global_step and self.state.checkpoint
        if is_current and self._is_settled(self.state.checkpoint):
            return True
        chosen = self._choose()
        if is_current and (not chosen or self.final_tries >= FINAL_TRIES):
            return True
        self.final_tries += 1
        self._mark(chosen)
        return False

    def on_marked(self, index: int, evaluator: bytes | None, now_s: float) -> None:
        """The mark is committed; its evaluator, if any, starts now."""
        self.is_marking = False
        if evaluator is not None:
            self.pending, self.evaluator, self.since_s = index, evaluator, now_s

    def on_evaluation(self, peer: bytes, evaluation: Evaluation) -> bool:
        """Whether this is the awaited answer; if so it is proposed as a record."""
        if peer != self.evaluator or evaluation.index != self.pending:
            return False
        mark = self.state.marks.get(self.pending)
        self.pending, self.evaluator = 0, None
        self.resting.pop(peer, None)
        if mark is not None:
            step, tokens = mark
            self.is_scoring = True
            self.propose(CheckpointEvaluated(evaluation.index, step, tokens, peer, evaluation.loss))
        return True

    def on_scored(self, checkpoint: int, now_s: float) -> None:
        """The loss is committed; the second starts now, if its word could matter."""
        self.is_scoring = False
        second = self.state.seconds.get(checkpoint)
        if second is not None and self.state.awaits(checkpoint, second):
            self.pending, self.evaluator, self.since_s = checkpoint, second, now_s
        else:
            self.asks_again = self.state.is_doubtful

    def on_restored(self) -> None:
        """The guard went back: the loss of void weights is awaited no more."""
        self.pending, self.evaluator, self.asks_again = 0, None, False

    def _is_settled(self, checkpoint: int) -> bool:
        """Whether no further measurement of this state is worth a try."""
        newest = self.state.curve[-1:]
        is_disputed = any(one.checkpoint == checkpoint and one.is_disputed for one in newest)
        return not self.state.marks.get(checkpoint) and not is_disputed

    @property
    def _is_busy(self) -> bool:
        return self.is_marking or self.is_scoring or self.pending != 0

    def deadline_s(self) -> float | None:
        return self.since_s + ANSWER_TIMEOUT_S if self.pending else None

    def _mark(self, chosen: list[Session]) -> None:
        self.is_marking, self.asks_again = True, False
        self.resting = {peer: more - 1 for peer, more in self.resting.items() if more > 1}
        first, second, *_ = (*(one.peer for one in chosen), None, None)
        self.propose(CheckpointMarked(self.state.global_step, first, second))

    def _pass_over(self, now_s: float) -> None:
        if not self.pending or self.evaluator is None:
            return
        session = self.members.sessions.get(self.evaluator)
        is_here = session is not None and session.is_connected
        if not is_here or now_s >= self.since_s + ANSWER_TIMEOUT_S:
            self.resting[self.evaluator] = PASSED_OVER_MARKS
            self.pending, self.evaluator = 0, None
            self.asks_again = self.state.is_doubtful

    def _choose(self) -> list[Session]:
        """A willing learner of which something was merged, drawn anew for each mark, and another.

        The draw follows the hash of the log's head, which nobody can choose or foresee: who claims
        to be fast evaluates no more often than others. Before the first merge anybody may. One
        alone where there is nobody else.
        """
        willing = [session for session in self.members.training() if session.evaluates]
        proven = [session for session in willing if session.merges] or willing
        awake = [session for session in proven if session.peer not in self.resting] or proven
        return sorted(awake, key=self._drawn)[:2]

    def _drawn(self, session: Session) -> bytes:
        return blake3(self.state.head + session.peer).digest()
