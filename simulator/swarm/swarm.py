"""A small swarm, and seeded misfortune for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from protocol.numerics.merge import merge_fragment
from protocol.project import Durability, FragmentStrategy, LimitSpec, OuterSpec, RoundSpec, Voter
from simulator.checkers.credit import check_accounts
from simulator.checkers.ledger import Ledger
from simulator.checkers.merging import RejoinChecker, SafetyChecker, check_all
from simulator.stand_ins.backends import Backend, TinyBackend
from simulator.stand_ins.provenance import ProvenanceChecker
from simulator.stand_ins.tiny import TENSOR_ELEMENTS, TENSORS, SimSigner, tiny_project
from simulator.swarm.learners import SimLearner
from simulator.swarm.snapshots import SnapshotChecker
from simulator.swarm.syncers import Notice, SimSyncer
from simulator.swarm.taping import Direct
from simulator.swarm.witnesses import SimWitness
from simulator.virtual.network import NetworkModel
from simulator.virtual.nodes import SpeedModel
from simulator.virtual.world import Host, World

FAULT_KINDS = ("kill-learner", "kill-syncer", "kill-trainer", "cut", "cut-syncers", "disk-full")


@dataclass(slots=True)
class Swarm:
    """A world with syncers and some learners."""

    world: World
    syncers: list[SimSyncer]
    learners: list[SimLearner]
    checker: SafetyChecker
    ledger: Ledger
    rejoins: RejoinChecker
    witnesses: list[SimWitness]
    sets: ProvenanceChecker | None = None
    """Who compares sets of local steps, where weights are that."""
    cuts: SnapshotChecker | None = None
    """Who judges snapshots, where there are any."""

    @property
    def syncer(self) -> SimSyncer:
        """The one that leads, else the first."""
        leading = [one for one in self.syncers if one.is_up and one.syncer.raft.is_leading]
        return leading[0] if leading else self.syncers[0]

    def check(self) -> None:
        """Raise Violation if anything that must hold does not."""
        check_all(self.ledger, self.learners)
        check_accounts(self.ledger, self.syncers, self.world.facts)

    @property
    def merges(self) -> int:
        return len(self.ledger.merges)


def build_swarm(
    seed: int,
    *,
    syncers: int = 1,
    steps_s: tuple[float, ...] = (0.3, 0.3, 0.9),
    rounds: RoundSpec | None = None,
    outer: OuterSpec | None = None,
    limits: LimitSpec | None = None,
    network: NetworkModel | None = None,
    durability: Durability = "standby",
    moments: Literal["fresh", "peer"] = "fresh",
    speeds: tuple[SpeedModel, ...] | None = None,
    backend: Backend | None = None,
    tensors_of: tuple[int, int] = (TENSORS, TENSOR_ELEMENTS),
    fragments: int = 4,
    join_s: float | None = None,
    witnesses: int = 0,
    tape: Callable[[SimSyncer | SimLearner], Direct] | None = None,
    strategy: FragmentStrategy = "balanced",
) -> Swarm:
    """Booted syncers, and one learner for each local-step time or speed, joining in turn.

    join_s: within this time, else one every half second. tape: of each life of a host.
    """
    world = World(seed, network)
    names = ["syncer", *(f"syncer-{number}" for number in range(1, syncers))]
    signers = [SimSigner(name) for name in names]
    watching = [SimSigner(f"witness-{number}") for number in range(witnesses)]
    tiny = tiny_project(
        signers[0].key,
        rounds=rounds,
        outer=outer,
        limits=limits,
        voters=_voters(signers, watching),
        durability=durability,
        moments=moments,
        fragments=fragments,
        tensors_of=tensors_of,
        strategy=strategy,
    )
    tensors = backend or TinyBackend()
    ledger, notices = Ledger(tiny.charter), dict[bytes, Notice]()
    hosts = [
        SimSyncer(world, tiny, signer, ledger=ledger, notices=notices, backend=tensors, name=name)
        for signer, name in zip(signers, names, strict=True)
    ]
    models = speeds or tuple(SpeedModel(step_s) for step_s in steps_s)
    checker = SafetyChecker(world, ledger)
    learners = [
        SimLearner(world, tiny, hosts, number=number, speed=speed, backend=tensors)
        for number, speed in enumerate(models)
    ]
    voters = [
        SimWitness(world, tiny, signer, ledger=ledger, name=f"witness-{number}")
        for number, signer in enumerate(watching)
    ]
    swarm = Swarm(world, hosts, learners, checker, ledger, RejoinChecker(world), voters)
    _record(swarm, tape, tensors)
    _boot([*hosts, *voters], learners, join_s)
    return swarm


def _record(
    swarm: Swarm, tape: Callable[[SimSyncer | SimLearner], Direct] | None, tensors: Backend
) -> None:
    for host in swarm.syncers:
        host.tape = tape
    for learner in swarm.learners:
        # Sets of local steps are put together otherwise than any replay would.
        learner.tape = tape if tensors.merge is merge_fragment else None


def _voters(syncers: list[SimSigner], witnesses: list[SimSigner]) -> tuple[Voter, ...]:
    return (
        *(Voter(signer.key, "syncer", 50 - number) for number, signer in enumerate(syncers)),
        *(Voter(signer.key, "witness", 0) for signer in witnesses),
    )


def _boot(voters: list[Host], learners: list[SimLearner], join_s: float | None) -> None:
    """Start the voters at once, and the learners one after the other."""
    for host in voters:
        host.boot()
    apart_s = 0.5 if join_s is None else join_s / len(learners)
    for number, learner in enumerate(learners):
        learner.world.after(1.0 + apart_s * number, learner.revive)


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
        syncer = chance.choice(swarm.syncers)
        told.append(f"{time_s:6.1f} {kind} {learner.name} {syncer.name} for {away_s:.1f} s")
        _schedule(swarm, kind, learner, syncer, time_s, away_s)
        time_s += chance.expovariate(1 / every_s)
    return told


def _schedule(
    swarm: Swarm, kind: str, learner: SimLearner, syncer: SimSyncer, time_s: float, away_s: float
) -> None:
    world = swarm.world

    def crash(host: SimLearner | SimSyncer) -> None:
        if host.is_up:
            host.crash()
            world.after(away_s, host.revive)

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
        case "cut-syncers":
            for other in swarm.syncers:
                if other is not syncer:
                    world.at(
                        time_s,
                        lambda o=other: world.partition(o.key, syncer.key, for_s=away_s),  # type: ignore[misc]
                    )
        case _:
            world.at(time_s, fill_disk)
