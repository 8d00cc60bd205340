"""Checkpoints and their held-out loss: when to mark one, who evaluates it, how long to wait.

The mark is a log record, so that the evaluator captures exactly the state the syncer checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from protocol.log.records import Body, CheckpointEvaluated, CheckpointMarked
from protocol.log.state import SwarmState
from protocol.messages import Evaluation
from protocol.peers.membership import Membership, Session

ANSWER_TIMEOUT_S = 120.0
"""An evaluator that has not answered by then is passed over."""

FINAL_TRIES = 3


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
    since_s: float = 0.0
    final_tries: int = 0

    def look(self, now_s: float) -> None:
        """Mark a checkpoint when one is due."""
        self._pass_over(now_s)
        if self._is_busy or not self.state.has_weights:
            return
        step, last = self.state.global_step, self.state.curve[-1:]
        # The very first mark comes with the first evaluator, so that the curve starts early.
        is_due = step - last[0].global_step >= self.every if last else True
        chosen = self._choose() if is_due else None
        if chosen is not None or step - self.state.checkpoint_step >= self.checkpoint_every:
            self._mark(chosen)

    def finish(self, now_s: float) -> bool:
        """Whether the last state is marked and evaluated as far as it will ever be."""
        self._pass_over(now_s)
        if self._is_busy:
            return False
        is_current = self.state.checkpoint_step == self.state.global_step and self.state.checkpoint
        if is_current and not self.state.marks.get(self.state.checkpoint):
            return True
        chosen = self._choose()
        if is_current and (chosen is None or self.final_tries >= FINAL_TRIES):
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
        if mark is not None:
            step, tokens = mark
            self.is_scoring = True
            self.propose(CheckpointEvaluated(evaluation.index, step, tokens, peer, evaluation.loss))
        return True

    def on_scored(self) -> None:
        """The loss is committed."""
        self.is_scoring = False

    @property
    def _is_busy(self) -> bool:
        return self.is_marking or self.is_scoring or self.pending != 0

    def deadline_s(self) -> float | None:
        return self.since_s + ANSWER_TIMEOUT_S if self.pending else None

    def _mark(self, chosen: Session | None) -> None:
        self.is_marking = True
        evaluator = chosen.peer if chosen is not None else None
        self.propose(CheckpointMarked(self.state.global_step, evaluator))

    def _pass_over(self, now_s: float) -> None:
        if not self.pending or self.evaluator is None:
            return
        session = self.members.sessions.get(self.evaluator)
        is_here = session is not None and session.is_connected
        if not is_here or now_s >= self.since_s + ANSWER_TIMEOUT_S:
            self.pending, self.evaluator = 0, None

    def _choose(self) -> Session | None:
        """A willing learner of which something was merged, drawn anew for each mark.

        The draw follows the hash of the log's head, which nobody can choose or foresee: who claims
        to be fast evaluates no more often than others. Before the first merge anybody may.
        """
        willing = [session for session in self.members.training() if session.evaluates]
        proven = [session for session in willing if session.merges]
        return min(proven or willing, key=self._drawn, default=None)

    def _drawn(self, session: Session) -> bytes:
        return blake3(self.state.head + session.peer).digest()
