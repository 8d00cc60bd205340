"""A small swarm, and seeded misfortune for it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from protocol.project import LimitSpec, OuterSpec, RoundSpec
from simulator.checkers import RejoinChecker, SafetyChecker, check_all
from simulator.hosts import SimLearner, SimSyncer
from simulator.tiny import SimSigner, tiny_project
from simulator.world import NetworkModel, World

FAULT_KINDS = ("kill-learner", "kill-syncer", "kill-trainer", "cut", "disk-full")


@dataclass(slots=True)
class Swarm:
    """A world with one syncer and some learners."""

    world: World
    syncer: SimSyncer
    learners: list[SimLearner]
    checker: SafetyChecker
    rejoins: RejoinChecker

    def check(self) -> None:
        """Raise Violation if anything that must hold does not."""
        check_all(self.syncer, self.learners)

    @property
    def merges(self) -> int:
        return self.syncer.syncer.state.global_step


def build_swarm(
    seed: int,
    *,
    steps_s: tuple[float, ...] = (0.3, 0.3, 0.9),
    rounds: RoundSpec | None = None,
    outer: OuterSpec | None = None,
    limits: LimitSpec | None = None,
    network: NetworkModel | None = None,
    moments: Literal["fresh", "peer"] = "fresh",
) -> Swarm:
    """A booted syncer, and one learner for each local-step time, joining one after the other."""
    world = World(seed, network)
    signer = SimSigner("syncer")
    tiny = tiny_project(signer.key, rounds=rounds, outer=outer, limits=limits, moments=moments)
    syncer = SimSyncer(world, tiny, signer)
    checker = SafetyChecker(world, syncer)
    learners = [
        SimLearner(world, tiny, syncer, number=number, step_s=step_s)
        for number, step_s in enumerate(steps_s)
    ]
    syncer.boot()
    for number, learner in enumerate(learners):
        world.after(1.0 + 0.5 * number, learner.boot)
    return Swarm(world, syncer, learners, checker, RejoinChecker(world, syncer))


def afflict(swarm: Swarm, seed: int, *, until_s: float, every_s: float = 12.0) -> list[str]:
    """Draw faults from the seed and schedule them; everything is healed at `until_s`.

    Some kinds are left out altogether in each seed, so that rare combinations get their turn.
    """
    chance = random.Random(f"faults {seed}")
    kinds = [kind for kind in FAULT_KINDS if chance.random() < 0.7] or [FAULT_KINDS[0]]
    told: list[str] = []
    time_s = 15.0
    while time_s < until_s:
        kind = chance.choice(kinds)
        learner = chance.choice(swarm.learners)
        away_s = min(chance.uniform(0.5, 20.0), until_s - time_s)
        told.append(f"{time_s:6.1f} {kind} {learner.name} for {away_s:.1f} s")
        _schedule(swarm, kind, learner, time_s, away_s)
        time_s += chance.expovariate(1 / every_s)
    return told


def _schedule(swarm: Swarm, kind: str, learner: SimLearner, time_s: float, away_s: float) -> None:
    world, syncer = swarm.world, swarm.syncer

    def crash(host: SimLearner | SimSyncer) -> None:
        if host.is_up:
            host.crash()
            world.after(away_s, lambda: None if host.is_up else host.boot())

    def fill_disk() -> None:
        syncer.disk.is_full = True
        world.after(away_s, lambda: setattr(syncer.disk, "is_full", False))

    match kind:
        case "kill-learner":
            world.at(time_s, lambda: crash(learner))
        case "kill-syncer":
            world.at(time_s, lambda: crash(syncer))
        case "kill-trainer":
            world.at(time_s, learner.lose_trainer)
        case "cut":
            world.at(time_s, lambda: world.partition(learner.key, syncer.key, for_s=away_s))
        case _:
            world.at(time_s, fill_disk)
