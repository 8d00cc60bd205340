"""Synchronous data parallelism: one model, the gradients of all learners averaged in every step.

The average is exact: the inner loop's own accumulation over micro-batches, one for each learner.
Rigid: an interruption stops everybody until the learner is back. Elastic: the others go on with
fewer after a pause, and pause again to take it back in; the batch is smaller meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from node.trainer.builtin import BuiltinTrainer
from node.trainer.loop import InnerLoop
from node.trainer.model import FragmentView
from node.trainer.text.reader import BlockReader, Pieces
from simulator.compare.bench import Bench
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import (
    GRADIENT_BYTES,
    OVERLAP_FRAC,
    Setting,
    StepClock,
    failures,
    ring_bytes,
)


class JoinedReader(BlockReader):
    """The batches of several learners as one, each from its own place in the text."""

    def __init__(self, bench: Bench, readers: Sequence[BlockReader], batch: int) -> None:
        super().__init__(bench.corpus, block_sequences=bench.genesis.data.block_sequences)
        self.readers = readers
        self.active = list(range(len(readers)))
        """Learners whose batches are in the next step."""
        self._batch = batch

    def plan(self, count: int) -> Pieces:
        """Each active learner's next batch, the last one cut so that there are `count` in all."""
        pieces: list[tuple[int, int, int]] = []
        for learner in self.active:
            wanted = min(self._batch, count)
            if wanted > 0:
                pieces += self.readers[learner].plan(wanted)
                count -= wanted
        return tuple(pieces)


class DataParallel:
    """One run."""

    def __init__(self, bench: Bench, setting: Setting, *, fails: bool, is_elastic: bool) -> None:
        inner = bench.charter.inner
        self.bench, self.setting = bench, setting
        self.is_elastic = is_elastic
        self.batch = inner.batch_sequences
        self.budget = setting.learners * setting.steps * self.batch
        """Sequences of the whole run."""
        # Whoever stays reads on when others are away, so each place holds enough for all.
        blocks = -(-self.budget // bench.genesis.data.block_sequences)
        share = -(-blocks // setting.learners)
        readers = [bench.reader(at * share, blocks) for at in range(setting.learners)]
        self.reader = JoinedReader(bench, readers, self.batch)
        self.loop: InnerLoop[BuiltinTrainer] = bench.loop(
            self.reader, inner, micro_batch=self.batch
        )
        self.clock = StepClock(setting)
        self.now_s = self.work_s = 0.0
        self.bytes = 0
        self.away: dict[int, float] = {}
        """Learners that are gone, and when they are back."""
        self._failures = failures(setting) if fails else iter(())
        self._next_failure = next(self._failures, None)

    def run(self, tell: Tell) -> Outcome:
        done = 0
        while done < self.budget:
            self._admit()
            count = min(self.budget - done, self.batch * len(self.reader.active))
            if not self._time_passes():
                continue
            self.loop.inner = msgspec.structs.replace(
                self.bench.charter.inner, batch_sequences=count
            )
            self.loop.progress = done / self.budget
            self.loop.step()
            done += count
            tell(done / self.budget)
        fragments = FragmentView(self.loop.trainer.model, self.bench.layout).copies()
        return Outcome(
            eval_loss=self.bench.heldout_loss(self.loop, fragments),
            tasks=self.bench.task_scores(self.loop, fragments),
            tokens=self.loop.tokens_total,
            bytes=self.bytes,
            virtual_wall_s=self.now_s,
            goodput=self.work_s / (self.setting.learners * self.now_s),
        )

    def _time_passes(self) -> bool:
        """Let one step pass on the clock; False if an interruption spoils it."""
        active = len(self.reader.active)
        compute_s, work_s = self.clock.step(self.reader.active)
        parameters = self.bench.layout.parameters
        sent = GRADIENT_BYTES * parameters
        reduce_s = self.setting.all_reduce_s(sent, parameters, learners=active)
        end_s = self.now_s + compute_s + max(0.0, reduce_s - OVERLAP_FRAC * compute_s)
        if self._next_failure is not None and self._next_failure[0] < end_s:
            self._lose(*self._next_failure)
            return False
        self.now_s = end_s
        self.work_s += work_s
        self.bytes += ring_bytes(sent, active)
        return True

    def _lose(self, time_s: float, learner: int) -> None:
        self.now_s = max(self.now_s, time_s)
        back_s = time_s + self.setting.away_s
        if self.is_elastic:
            self.now_s += self.setting.downscale_s
            self._leave(learner, back_s)
        else:
            self.now_s = max(self.now_s, back_s) + self.setting.restart_s
        self._next_failure = next(self._failures, None)
        # What happens while everybody stands still costs no second pause.
        while self._next_failure is not None and self._next_failure[0] < self.now_s:
            time_s, learner = self._next_failure
            if self.is_elastic:
                self._leave(learner, time_s + self.setting.away_s)
            else:
                self.now_s = max(self.now_s, time_s + self.setting.away_s + self.setting.restart_s)
            self._next_failure = next(self._failures, None)

    def _leave(self, learner: int, back_s: float) -> None:
        self.away[learner] = back_s
        if learner in self.reader.active:
            self.reader.active.remove(learner)

    def _admit(self) -> None:
        """Take in whoever is back; if nobody is left, wait for the first."""
        if not self.reader.active:
            self.now_s = max(self.now_s, min(self.away.values()))
        back = sorted(one for one, back_s in self.away.items() if back_s <= self.now_s)
        if back:
            self.now_s += self.setting.upscale_s
            for learner in back:
                del self.away[learner]
            self.reader.active = sorted([*self.reader.active, *back])
