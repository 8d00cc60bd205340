"""The predecessors in lock-step: FedAvg, DiLoCo, Streaming DiLoCo.

All learners take the same number of local steps between two merges, and a merge takes them all. The
arithmetic is the project's own: codecs with error feedback, merge, outer step.

Sources: FedAvg, arXiv 1602.05629; DiLoCo, arXiv 2311.08105; Streaming DiLoCo, arXiv 2501.18512. We
know them from descriptions, and keep to their published values where those exist (docs/comparison).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch

from node.trainer.builtin import BuiltinTrainer
from node.trainer.loop import InnerLoop
from node.trainer.model import FragmentView
from protocol.numerics.codecs import F32
from protocol.numerics.merge import Contribution, merge_fragment
from protocol.numerics.outer import encode_with_feedback, outer_step
from protocol.numerics.payload_sizes import payload_bytes
from protocol.project import CodecName, InnerSpec
from simulator.compare.bench import Bench
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import Setting, StepClock, ring_bytes

NO_CLIPPING = 1e6

OUTER_BETA2: Final = 0.99
"""Of AdamW outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepSpec:
    """What tells one of them from another."""

    local_steps: int | None = None
    """H: between two merges of the same fragment; the project's if None."""
    overlap_steps: int = 0
    """Local steps that go on while a merge is on its way; 0 waits for it."""
    outer: Literal["nesterov", "adamw"] = "nesterov"
    learning_rate: float = 1.0
    momentum: float = 0.0
    """With AdamW its beta1."""
    alpha: float = 0.0
    """Share of its own value that a learner keeps when a merge arrives."""
    codec: CodecName = "f32"


@dataclass(frozen=True, slots=True)
class _Flight:
    """A merge on its way."""

    lands_at: int
    fragment: int
    pushes: tuple[memoryview, ...]


class Lockstep:
    """One run."""

    def __init__(
        self,
        bench: Bench,
        setting: Setting,
        spec: LockstepSpec,
        inner: InnerSpec | None = None,
    ) -> None:
        """The bench's layout says how many fragments there are, and each tensor's merge rule."""
        self.bench, self.setting, self.spec = bench, setting, spec
        inner = inner or bench.charter.inner
        sequences = setting.steps * inner.batch_sequences
        blocks = -(-sequences // bench.genesis.data.block_sequences)
        self.loops: list[InnerLoop[BuiltinTrainer]] = [
            bench.loop(bench.reader(at * blocks, blocks), inner) for at in range(setting.learners)
        ]
        self.views = [FragmentView(loop.trainer.model, bench.layout) for loop in self.loops]
        self.theta: list[F32] = [values.copy() for values in bench.first]
        self.momentum: list[F32] = [np.zeros_like(values) for values in self.theta]
        self._adam = [self._adam_of(values) for values in self.theta]
        self._residuals = [[np.zeros_like(values) for values in self.theta] for _ in self.loops]
        self._flights: deque[_Flight] = deque()
        self.clock = StepClock(setting)
        self.now_s = self.work_s = 0.0
        self.bytes = 0

    def _adam_of(self, values: F32) -> torch.optim.Optimizer | None:
        """It moves this very array."""
        if self.spec.outer != "adamw":
            return None
        weights = torch.nn.Parameter(torch.from_numpy(values))
        betas = self.spec.momentum, OUTER_BETA2
        return torch.optim.AdamW([weights], self.spec.learning_rate, betas, weight_decay=0.0)

    def run(self, tell: Tell) -> Outcome:
        steps = self.setting.steps
        for step in range(1, steps + 1):
            for loop in self.loops:
                loop.progress = (step - 1) / steps
                loop.step()
            compute_s, work_s = self.clock.step(range(len(self.loops)))
            self.now_s += compute_s
            self.work_s += work_s
            for fragment in self._due(step):
                self._depart(fragment, step)
            self._land(step)
            tell(step / steps)
        self._land(steps + self.spec.overlap_steps)
        return Outcome(
            eval_loss=self.bench.heldout_loss(self.loops[0], self.theta),
            tasks=self.bench.task_scores(self.loops[0], self.theta),
            tokens=sum(loop.tokens_total for loop in self.loops),
            bytes=self.bytes,
            virtual_wall_s=self.now_s,
            goodput=self.work_s / (len(self.loops) * self.now_s),
        )

    def _due(self, step: int) -> list[int]:
        """Fragments whose merge begins behind this step; all of them behind the last one."""
        count = len(self.theta)
        period = self.spec.local_steps or self.bench.charter.rounds.local_steps
        if step == self.setting.steps:
            in_flight = {flight.fragment for flight in self._flights}
            return [index for index in range(count) if index not in in_flight]
        offsets = [-(-(index + 1) * period // count) for index in range(count)]
        return [
            at for at, first in enumerate(offsets) if step >= first and not (step - first) % period
        ]

    def _depart(self, fragment: int, step: int) -> None:
        spec, numel = self.spec, self.theta[fragment].size
        pushes = []
        local = np.empty(numel, np.float32)
        for view, residuals in zip(self.views, self._residuals, strict=True):
            view.read(fragment, local)
            moved = self.theta[fragment] - local
            if spec.codec == "f32":
                residuals[fragment][:] = 0.0
            payload, residuals[fragment] = encode_with_feedback(
                spec.codec, moved, residuals[fragment]
            )
            pushes.append(payload)
        self._flights.append(_Flight(step + spec.overlap_steps, fragment, tuple(pushes)))
        sent = payload_bytes(spec.codec, numel)
        self.bytes += ring_bytes(sent, len(self.loops))
        reduce_s = self.setting.all_reduce_s(
            sent, self.bench.layout.parameters, learners=len(self.loops)
        )
        self.now_s += max(0.0, reduce_s - spec.overlap_steps * self.setting.step_s)

    def _land(self, step: int) -> None:
        while self._flights and self._flights[0].lands_at <= step:
            flight = self._flights.popleft()
            at = flight.fragment
            merged = merge_fragment(
                [
                    Contribution((bytes([index]) * 32, 1, 1), payload, self.spec.codec, 1.0)
                    for index, payload in enumerate(flight.pushes)
                ],
                self.bench.layout.fragments[at],
                NO_CLIPPING,
            )
            self._step(at, merged.values)
            for view in self.views:
                self._take(view, at)

    def _step(self, at: int, moved: F32) -> None:
        """The outer step of a fragment."""
        adam = self._adam[at]
        if adam is not None:
            (weights,) = adam.param_groups[0]["params"]
            weights.grad = torch.from_numpy(moved)
            adam.step()
            return
        self.theta[at], self.momentum[at] = outer_step(
            self.theta[at],
            self.momentum[at],
            moved,
            learning_rate=self.spec.learning_rate,
            momentum_coefficient=self.spec.momentum,
        )

    def _take(self, view: FragmentView, at: int) -> None:
        if not self.spec.alpha:
            view.write(at, self.theta[at])
            return
        local = np.empty_like(self.theta[at])
        view.read(at, local)
        keep = np.float32(self.spec.alpha)
        view.write(at, keep * local + (np.float32(1) - keep) * self.theta[at])
