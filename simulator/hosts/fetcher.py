"""Downloads of weights in virtual time: the planner that the daemon uses, with virtual IO."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from node.download.assemblies import Assemblies
from node.download.assembly import Assembly
from node.download.planner import Ask, Planner, Trouble
from node.machine.jobs import FetchState

if TYPE_CHECKING:
    from simulator.hosts.learner import SimLearner

LOOK_EVERY_S = 0.25
KNOW_EVERY_S = 5.0


class SimFetcher:
    """All downloads of one life of a learner."""

    def __init__(self, host: SimLearner) -> None:
        self.host, self.world, self.life = host, host.world, host.life
        rng = random.Random(f"donors {host.name} {self.world.seed} {self.life}")
        self.planner = Planner(rng, host.key)
        self.assemblies = Assemblies()
        self._answers: dict[int, Callable[[Assembly | str], None]] = {}
        self._known_s = -KNOW_EVERY_S

    def fetch(self, job: FetchState, numel: int, answer: Callable[[Assembly | str], None]) -> None:
        """Answers once, with the complete state or the reason why there is none."""
        assembly = self.assemblies.begin(job, numel)
        was_idle = self.planner.is_idle
        self.planner.want(assembly)
        self._answers[job.fragment] = answer
        if was_idle:
            self.world.after(0.0, self._tick)

    def _tick(self) -> None:
        if self.host.life != self.life or self.planner.is_idle:
            return
        if self.world.now_s - self._known_s >= KNOW_EVERY_S:
            self._known_s = self.world.now_s
            learners, joiners = self.host.announced()
            leader = self.host.learner.context.leader
            self.planner.know(learners, leader, self.world.now_s, joiners)
        self._look()
        self.world.after(LOOK_EVERY_S, self._tick)

    def _look(self) -> None:
        planner, now_s = self.planner, self.world.now_s
        fragments = self.host.learner.context.state.fragments
        for fragment in self._answers:
            planner.supersede(fragment, fragments[fragment].version)
        for assembly, trouble in planner.ended(now_s):
            answer = self._answers.pop(assembly.fragment)
            # Told later: an answer may ask for the next download.
            self.world.after(0.0, partial(answer, assembly if trouble is None else trouble))
        planner.cancelled()
        for ask in planner.asks(now_s):
            delay_s = self.world.transfer_s(ask.donor, self.host.key, ask.length)
            self.world.after(delay_s, partial(self._finish, ask))

    def _finish(self, ask: Ask) -> None:
        if self.host.life != self.life:
            return
        now_s, given = self.world.now_s, self.host.given_by(ask.donor, ask.digest)
        match given:
            case None:
                self.planner.failed(ask.number, Trouble.GONE, "unreachable", now_s)
            case int(held_sections):
                self.planner.failed(ask.number, Trouble.NOT_HELD, "not held", now_s, held_sections)
            case chunk:
                self.planner.received(ask.number, ask.length, now_s)
                self.planner.arrived(ask.number, chunk, now_s)
        self._look()
