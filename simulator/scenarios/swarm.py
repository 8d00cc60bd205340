"""A small swarm, put together and started: its hosts, and who judges them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Literal

from msgspec import structs

from protocol import project
from protocol.numerics.merge import merge_fragment
from protocol.snapshots.manifest import Manifest
from simulator.checkers.claims import check_claims_are_covered, check_honest_claims
from simulator.checkers.credit import check_accounts, check_progress, check_tallies
from simulator.checkers.ledger import Ledger
from simulator.checkers.mergers import MergerChecker
from simulator.checkers.merging import RejoinChecker, SafetyChecker, check_all
from simulator.checkers.provenance import ProvenanceChecker
from simulator.checkers.snapshots import SnapshotChecker
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import Notice, SimSyncer
from simulator.hosts.tape import Direct
from simulator.hosts.witness import SimWitness
from simulator.stand_ins.backends import Backend
from simulator.stand_ins.tiny import (
    TENSOR_ELEMENTS,
    TENSORS,
    SimSigner,
    charter_envelope,
    tiny_project,
)
from simulator.virtual.network import NetworkModel
from simulator.virtual.nodes import SpeedModel
from simulator.virtual.world import Host, World


@dataclass(slots=True)
class Swarm:
    """A world with syncers and some learners."""

    world: World
    syncers: list[SimSyncer]
    learners: list[SimLearner]
    checker: SafetyChecker
    ledger: Ledger
    rejoins: RejoinChecker
    mergers: MergerChecker
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
        check_honest_claims(self.world.facts)
        check_claims_are_covered(self.ledger, self.syncers[0].tiny.genesis.data)
        check_progress(self.ledger, self.syncers)
        check_tallies(self.ledger)
        self.mergers.check()

    @property
    def merges(self) -> int:
        return len(self.ledger.merges)

    # Snapshots.

    def judge_snapshots(self) -> None:
        """From now on."""
        self.cuts = SnapshotChecker(self.world, self.ledger, self.learners, self.sets)

    def take_snapshot(self) -> None:
        """Ask whoever leads for a snapshot."""
        if self.syncer.is_up:
            self.syncer.take_snapshot()

    def revise(self, **changes: object) -> project.Charter:
        """The owner signs the next revision, and every syncer that is up gets it."""
        former = self.syncer.syncer.setup.charter
        charter = structs.replace(former, **{"revision": former.revision + 1, **changes})
        envelope = charter_envelope(self.syncer.tiny, charter)
        for syncer in self.syncers:
            if syncer.is_up:
                syncer.take_charter(envelope)
        return charter

    def restore(self, manifest: Manifest) -> project.Charter:
        """The owner goes back to a snapshot: a new epoch behind its record. The charter signed."""
        assert self.cuts is not None, "snapshots are judged"
        host, tiny = self.syncer, self.syncer.tiny
        former = host.syncer.setup.charter
        charter = structs.replace(
            former,
            revision=former.revision + 1,
            epoch=former.epoch + 1,
            origin=project.Origin(manifest.index, manifest.head, manifest.snapshot),
        )
        self.world.owner_epoch = charter.epoch
        self.ledger.void_behind(manifest.index, charter)
        self.checker.void_behind(manifest.index)
        if self.sets is not None:
            self.sets.go_back(manifest.clock.versions)
        cut = self.cuts.cuts[manifest.snapshot]
        for learner in self.learners:
            part = learner.parts.disk.get(manifest.snapshot)
            reads = part.trainer.reads if part is not None else cut.reads[learner.key]
            del learner.reads[reads:]
        envelope = charter_envelope(tiny, charter)
        for syncer in self.syncers:
            if syncer.is_up:
                syncer.take_charter(envelope)
            else:
                syncer.disk.charter = envelope
        return charter


def build_swarm(
    seed: int,
    *,
    syncers: int = 1,
    steps_s: tuple[float, ...] = (0.3, 0.3, 0.9),
    rounds: project.RoundSpec | None = None,
    outer: project.OuterSpec | None = None,
    limits: project.LimitSpec | None = None,
    network: NetworkModel | None = None,
    durability: project.Durability = "standby",
    moments: Literal["fresh", "peer"] = "fresh",
    speeds: tuple[SpeedModel, ...] | None = None,
    backend: Backend | None = None,
    tensors_of: tuple[int, int] = (TENSORS, TENSOR_ELEMENTS),
    fragments: int = 4,
    join_s: float | None = None,
    witnesses: int = 0,
    tape: Callable[[SimSyncer | SimLearner], Direct] | None = None,
    strategy: project.FragmentStrategy = "balanced",
    admission: project.AdmissionRule = "open",
    shard_blocks: int = 0,
    batches: tuple[int, ...] = (),
    world: World | None = None,
) -> Swarm:
    """Booted syncers, and one learner for each local-step time or speed, joining in turn.

    join_s: within this time, else one every half second. tape: of each life. batches: of each one.
    world: theirs; None for a plain one.
    """
    world = world or World(seed, network)
    signers = [SimSigner(f"syncer-{number}" if number else "syncer") for number in range(syncers)]
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
        admission=admission,
        shard_blocks=shard_blocks,
        batch_sequences_max=max(batches, default=0),
    )
    tensors, ledger, notices = backend or Backend(), Ledger(tiny.charter), dict[bytes, Notice]()
    make = partial(SimSyncer, world, tiny, observer=ledger.add, notices=notices, backend=tensors)
    hosts = [make(one, name=one.name) for one in signers]
    learners = [
        SimLearner(world, tiny, hosts, number=at, speed=one, backend=tensors, batch_sequences=batch)
        for at, (one, batch) in enumerate(zip_longest(speeds or map(SpeedModel, steps_s), batches))
    ]
    watch = partial(SimWitness, world, tiny, observer=ledger.add)
    checks = _judged(world, ledger)
    swarm = Swarm(world, hosts, learners, *checks, [watch(one, name=one.name) for one in watching])
    _record(swarm, tape, tensors)
    _boot([*hosts, *swarm.witnesses], learners, join_s)
    return swarm


def _judged(
    world: World, ledger: Ledger
) -> tuple[SafetyChecker, Ledger, RejoinChecker, MergerChecker]:
    """Who watches from the start."""
    return SafetyChecker(world, ledger), ledger, RejoinChecker(world), MergerChecker(world, ledger)


def _record(
    swarm: Swarm, tape: Callable[[SimSyncer | SimLearner], Direct] | None, tensors: Backend
) -> None:
    for host in swarm.syncers:
        host.tape = tape
    for learner in swarm.learners:
        # Sets of local steps are put together otherwise than any replay would.
        learner.tape = tape if tensors.merge is merge_fragment else None


def _voters(syncers: list[SimSigner], witnesses: list[SimSigner]) -> tuple[project.Voter, ...]:
    return (
        *(project.Voter(signer.key, "syncer", 50 - at) for at, signer in enumerate(syncers)),
        *(project.Voter(signer.key, "witness", 0) for signer in witnesses),
    )


def _boot(voters: list[Host], learners: list[SimLearner], join_s: float | None) -> None:
    """Start the voters at once, and the learners one after the other."""
    for host in voters:
        host.boot()
    apart_s = 0.5 if join_s is None else join_s / len(learners)
    for number, learner in enumerate(learners):
        learner.world.after(1.0 + apart_s * number, learner.revive)
