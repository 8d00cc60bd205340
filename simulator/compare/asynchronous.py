"""Asynchronous merging: each learner's displacement is merged alone, when it comes.

A parameter server has the model. A learner takes H local steps from it, sends what they moved, and
is sent the newest model, for which it waits. So nobody waits for others, and a displacement is of a
model that others have moved meanwhile. Momentum is therefore updated once for as many displacements
as there are learners (delayed Nesterov, arXiv 2401.09135).

With regions there are two levels, as in HALoS (arXiv 2506.04531): each region has a server near its
learners, and servers of regions hand what they moved to a global one without waiting. Ours keeps
what it merged meanwhile on top of the global model, where HALoS takes a mean of both.

We know both from descriptions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from node.trainer.builtin import BuiltinTrainer
from node.trainer.loop import InnerLoop
from node.trainer.model import FragmentView
from protocol.numerics.codecs import F32
from protocol.numerics.payload_sizes import payload_bytes
from simulator.compare.bench import Bench
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import Setting, StepClock

REGION_MBPS = 10_000.0
REGION_LATENCY_S = 0.001
"""Between a server of a region and its learners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousSpec:
    """What tells one of them from another."""

    learning_rate: float = 0.7
    momentum: float = 0.9
    regions: int = 1
    """With 1 there is one server for all."""
    region_learning_rate: float = 1.0
    region_momentum: float = 0.0
    is_dynamic: bool = False
    """Whether a slow learner takes as many local steps fewer, so that all take as long."""


@dataclass(slots=True)
class _Line:
    """A server's link: one transfer at a time, each way."""

    bytes_per_s: float
    latency_s: float
    _free_s: dict[str, float] = field(default_factory=dict)

    def arrives_s(self, way: str, now_s: float, size_bytes: float) -> float:
        """When something arrives that is ready to be sent now."""
        done_s = max(now_s, self._free_s.get(way, 0.0)) + size_bytes / self.bytes_per_s
        self._free_s[way] = done_s
        return done_s + self.latency_s


@dataclass(slots=True)
class Server:
    """A model, and what it does with a displacement."""

    theta: F32
    learning_rate: float
    momentum_coefficient: float
    every: int
    """Displacements between two updates of the momentum: as many as hand in."""
    momentum: F32 = field(init=False)
    taken: int = 0
    _gathered: F32 = field(init=False)

    def __post_init__(self) -> None:
        self.momentum, self._gathered = np.zeros_like(self.theta), np.zeros_like(self.theta)

    def take(self, moved: F32) -> None:
        """Merge one. moved: old minus new."""
        part = moved / np.float32(self.every)
        self._gathered += part
        self.taken += 1
        if self.taken % self.every == 0:
            mu = np.float32(self.momentum_coefficient)
            self.momentum = mu * self.momentum + self._gathered
            self._gathered[:] = 0.0
            part = part + mu * self.momentum
        self.theta = self.theta - np.float32(self.learning_rate) * part


@dataclass(slots=True)
class _Place:
    """A server with its line, and what it owes the one above it."""

    server: Server
    line: _Line
    training: int = 0
    """Learners that have local steps left, or a displacement on its way."""
    synced: F32 | None = None
    """Of a region: its model, but for what was handed up."""
    is_waiting: bool = False
    """For the global model."""


class Asynchronous:
    """One run; the bench's model must be one fragment."""

    def __init__(self, bench: Bench, setting: Setting, spec: AsynchronousSpec) -> None:
        self.bench, self.setting, self.spec = bench, setting, spec
        inner = bench.charter.inner
        self.local_steps = bench.charter.rounds.local_steps
        self.budget = self.left = setting.steps * setting.learners
        """Local steps of all together; who is fast takes more of them."""
        # Each place holds enough for all, since nobody knows how many a learner will take.
        blocks = -(-self.budget * inner.batch_sequences // bench.genesis.data.block_sequences)
        share = -(-blocks // setting.learners)
        self.loops: list[InnerLoop[BuiltinTrainer]] = [
            bench.loop(bench.reader(at * share, blocks), inner) for at in range(setting.learners)
        ]
        self.views = [FragmentView(loop.trainer.model, bench.layout) for loop in self.loops]
        self.clock = StepClock(setting)
        self.now_s = self.work_s = 0.0
        self.bytes = 0
        far = _Line(setting.link_bytes_per_s, setting.latency_s)
        self.top = _Place(self._server(spec.regions if spec.regions > 1 else setting.learners), far)
        self.places = [self.top] * setting.learners
        if spec.regions > 1:
            regions = [self._region(at) for at in range(spec.regions)]
            self.places = [regions[at % spec.regions] for at in range(setting.learners)]
        for place in self.places:
            place.training += 1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def _server(self, every: int) -> Server:
        spec = self.spec
        (first,) = self.bench.first
        return Server(first.copy(), spec.learning_rate, spec.momentum, every)

    def _region(self, at: int) -> _Place:
        learners = len(range(at, self.setting.learners, self.spec.regions))
        (first,) = self.bench.first
        spec = self.spec
        server = Server(first.copy(), spec.region_learning_rate, spec.region_momentum, learners)
        line = _Line(REGION_MBPS * 1e6 / 8, REGION_LATENCY_S)
        return _Place(server, line, synced=first.copy())

    def run(self, tell: Tell) -> Outcome:
        for learner in range(self.setting.learners):
            self._at(0.0, partial(self._train, learner))
        while self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            tell(1.0 - self.left / self.budget)
        made = [self.top.server.theta]
        return Outcome(
            eval_loss=self.bench.heldout_loss(self.loops[0], made),
            tasks=self.bench.task_scores(self.loops[0], made),
            tokens=sum(loop.tokens_total for loop in self.loops),
            bytes=self.bytes,
            virtual_wall_s=self.now_s,
            goodput=self.work_s / (len(self.loops) * self.now_s),
        )

    def _at(self, time_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), event))

    def _sent(self, line: _Line, way: str) -> float:
        """When a whole model, or what it moved, has come over this line."""
        size_bytes = payload_bytes("f32", self.bench.layout.fragments[0].numel)
        self.bytes += size_bytes
        clock_bytes = self.setting.clock_bytes(size_bytes, self.bench.layout.parameters)
        return line.arrives_s(way, self.now_s, clock_bytes)

    def _train(self, learner: int) -> None:
        """H local steps from the model that just came."""
        place, loop = self.places[learner], self.loops[learner]
        if self.left == 0:
            self._stop(place)
            return
        base = place.server.theta
        self.views[learner].write(0, base)
        seconds = 0.0
        for _ in range(min(self._steps_of(learner), self.left)):
            loop.progress = 1.0 - self.left / self.budget
            loop.step()
            self.left -= 1
            seconds += self.clock.step([learner])[0]
        self.work_s += seconds
        local = np.empty_like(base)
        self.views[learner].read(0, local)
        self._at(self.now_s + seconds, partial(self._send, learner, base - local))

    def _steps_of(self, learner: int) -> int:
        """Local steps between two of its displacements."""
        if not self.spec.is_dynamic:
            return self.local_steps
        paces = [self.setting.speed(at).step_s for at in range(self.setting.learners)]
        return max(1, round(self.local_steps * min(paces) / paces[learner]))

    def _send(self, learner: int, moved: F32) -> None:
        arrives_s = self._sent(self.places[learner].line, "in")
        self._at(arrives_s, partial(self._merge, learner, moved))

    def _merge(self, learner: int, moved: F32) -> None:
        place = self.places[learner]
        place.server.take(moved)
        if self.left > 0:
            self._at(self._sent(place.line, "out"), partial(self._train, learner))
        else:
            self._stop(place)
            return
        if place.synced is not None:
            self._hand_up(place)

    def _stop(self, place: _Place) -> None:
        """One of its learners is done."""
        place.training -= 1
        if place.synced is not None:
            self._hand_up(place)

    def _hand_up(self, place: _Place) -> None:
        """A region's displacement goes up once it has one of each of its learners."""
        assert place.synced is not None
        is_due = place.server.taken % place.server.every == 0 or place.training == 0
        moved = place.synced - place.server.theta
        if place.is_waiting or not is_due or not moved.any():
            return
        place.is_waiting = True
        place.synced = place.server.theta
        self._at(self._sent(self.top.line, "in"), partial(self._merge_region, place, moved))

    def _merge_region(self, place: _Place, moved: F32) -> None:
        self.top.server.take(moved)
        model = self.top.server.theta
        self._at(self._sent(self.top.line, "out"), partial(self._come_down, place, model))

    def _come_down(self, place: _Place, model: F32) -> None:
        """What a region merged since it handed up stays, on top of the global model."""
        assert place.synced is not None
        place.server.theta = model + (place.server.theta - place.synced)
        place.synced = model
        place.is_waiting = False
        self._hand_up(place)
