"""What a comparison holds equal for all algorithms: devices, tokens, network, interruptions."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from simulator.virtual.nodes import Speed, SpeedModel

STEP_JITTER = 0.1
"""Standard deviation of the logarithm of a local step's time."""

OVERLAP_FRAC = 2 / 3
"""Share of a step, its backward pass, behind which data parallelism hides its all-reduce."""

GRADIENT_BYTES = 2
"""What data parallelism sends of each gradient: bf16, though it is averaged here in f32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The common ground of all runs with one seed."""

    seed: int
    learners: int = 4
    steps: int = 1000
    """Local steps of each learner; together with batch and sequence length the token budget."""
    step_s: float = 1.0
    slowness: tuple[float, ...] = ()
    """Times `step_s`, of one learner after the other, over and over; empty where all are alike."""
    link_mbps: float = 1000.0
    latency_s: float = 0.03
    clock_parameters: int = 100_000_000
    """Size of the model that the virtual clock thinks is sent; the trained one is far smaller."""
    mtbi_s: float = 600.0
    """Mean time between interruptions of one learner, for the algorithms that fail."""
    away_s: float = 60.0
    """From an interruption until the learner is back."""
    downscale_s: float = 16.0
    """Elastic data parallelism: everybody's pause when a learner is lost."""
    upscale_s: float = 14.0
    """Elastic data parallelism: everybody's pause when learners are admitted."""
    restart_s: float = 26.0
    """Rigid data parallelism: from the learner's return until the job steps again."""

    def speed(self, learner: int) -> SpeedModel:
        """Of the learner of that number."""
        factor = self.slowness[learner % len(self.slowness)] if self.slowness else 1.0
        return SpeedModel(factor * self.step_s, jitter=STEP_JITTER)

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_mbps * 1e6 / 8

    def clock_bytes(self, sent: float, parameters: int) -> float:
        """What so many bytes of a model of `parameters` would be at the size the clock assumes."""
        return sent * self.clock_parameters / parameters

    def all_reduce_s(self, sent: float, parameters: int, *, learners: int) -> float:
        """A ring over equal links, each learner with `sent` bytes of a model to reduce."""
        if learners < 2:
            return 0.0
        volume = 2 * (learners - 1) / learners * self.clock_bytes(sent, parameters)
        return volume / self.link_bytes_per_s + 2 * self.latency_s


def ring_bytes(sent: float, learners: int) -> int:
    """Bytes on the wire, all learners together, of a ring all-reduce of `sent` bytes."""
    return round(2 * (learners - 1) * sent)


def failures(setting: Setting) -> Iterator[tuple[float, int]]:
    """(time, learner) of interruptions, in order, without end; none if `mtbi_s` is 0.

    The same for every algorithm of a seed. A learner that is away is not interrupted again.
    """
    if setting.mtbi_s <= 0:
        return
    chance = random.Random(f"interruptions {setting.seed}")
    rate = 1 / setting.mtbi_s
    heap = [(chance.expovariate(rate), learner) for learner in range(setting.learners)]
    heapq.heapify(heap)
    while True:
        time_s, learner = heap[0]
        yield time_s, learner
        heapq.heapreplace(heap, (time_s + setting.away_s + chance.expovariate(rate), learner))


def failures_until(setting: Setting, until_s: float) -> list[tuple[float, int]]:
    """Interruptions before that time."""
    return list(takewhile(lambda failure: failure[0] < until_s, failures(setting)))


class StepClock:
    """How long local steps take; the same draws as the simulator's learners get."""

    def __init__(self, setting: Setting) -> None:
        self._speeds = [
            Speed(setting.speed(number), random.Random(f"speed learner-{number} {setting.seed}"))
            for number in range(setting.learners)
        ]

    def step(self, learners: Sequence[int]) -> tuple[float, float]:
        """Seconds until the slowest of these is done, and seconds of work in all of them."""
        each = [self._speeds[learner].step_s(0.0) for learner in learners]
        return max(each), sum(each)
