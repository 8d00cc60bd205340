"""Simulated learners and syncers: the daemons' machines and banks, with virtual IO around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from node.assembly import Assembly
from node.bank import FragmentBank
from node.host.shelf import Shelf
from node.jobs import (
    Advance,
    Advanced,
    BeginSteps,
    Capture,
    Captured,
    Deliver,
    Delivered,
    Evaluate,
    EvaluatedLoss,
    Feed,
    FetchState,
    FindSeat,
    Freeze,
    HoldSteps,
    ReleaseSteps,
    ReplaceTrainer,
    SeatFound,
    Settle,
    StartTrainer,
    Starved,
    StateFetched,
    Stepped,
    Thaw,
    TrainerLost,
    TrainerReady,
)
from node.learner import LearnerMachine
from node.shared import LearnerSetup
from protocol.errors import CorruptState, MalformedPayload
from protocol.fragments import Layout, build_layout
from protocol.machine import Failed, Note, Start
from protocol.messages import Certificate, Envelope
from protocol.numerics.codecs import NonFinite
from protocol.project import encode
from protocol.records import FragmentMerged
from protocol.signing import seal
from protocol.state import SwarmState
from simulator.fetching import SimFetcher
from simulator.tiny import (
    SimSigner,
    TinyProject,
    TinyTrainer,
    sim_verify,
    tiny_target,
    tiny_weights,
)
from simulator.world import Host, World
from syncer_node.bank import MergeBank
from syncer_node.jobs import (
    Adopt,
    Append,
    Appended,
    CheckpointWritten,
    FetchPush,
    Forget,
    InitialiseWeights,
    Keep,
    Merge,
    Merged,
    PushFetched,
    PushRefused,
    WeightsMade,
    WriteCheckpoint,
)
from syncer_node.recovery import recertify, refold
from syncer_node.setup import Recovered, SyncerSetup
from syncer_node.syncer import SyncerMachine

FSYNC_S = 0.004
MERGE_S = 0.02
TRAINER_START_S = 5.0


@dataclass(slots=True)
class SimDisk:
    """What survives a crash of the syncer."""

    records: list[bytes] = field(default_factory=list)
    certificates: dict[int, Certificate] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    has_weights: bool = False
    is_full: bool = False


@dataclass(slots=True)
class MergeCache:
    """Merges decoded from the disk so far; the checkers look at them often."""

    seen: int = 0
    merges: list[FragmentMerged] = field(default_factory=list)


class SimSyncer(Host):
    """A syncer in virtual time."""

    def __init__(self, world: World, tiny: TinyProject, signer: SimSigner) -> None:
        super().__init__(world, signer.key, "syncer")
        self.tiny = tiny
        self.signer = signer
        self.layout = build_layout(
            tiny.genesis.model.tensors, tiny.genesis.strategy, tiny.genesis.fragments
        )
        self.disk = SimDisk()
        self.merge_cache = MergeCache()
        self.shelf = Shelf(clock=lambda: self.world.now_s)
        self.bank: MergeBank
        self.syncer: SyncerMachine

    def build(self) -> SyncerMachine:
        self.shelf = Shelf(clock=lambda: self.world.now_s)
        self.bank = MergeBank(self.layout, self.tiny.charter, self.shelf)
        setup = SyncerSetup(
            project=self.tiny.project,
            genesis=self.tiny.genesis,
            charter=self.tiny.charter,
            charter_envelope=charter_envelope(self.tiny),
            layout_digest=self.layout.digest,
            numels=tuple(fragment.numel for fragment in self.layout.fragments),
            signer=self.signer,
            verify=sim_verify,
            wall_offset_s=1.7e9,
        )
        self.syncer = SyncerMachine(setup, self._recover())
        return self.syncer

    def _recover(self) -> Recovered:
        """Fold what the disk has: records that were stored count as committed with one voter."""
        recovered = Recovered(SwarmState(self.tiny.genesis.data.block_sequences))
        if self.disk.has_weights:
            self._initialise()
        voters = self.tiny.charter.voters
        for index, encoded in enumerate(self.disk.records, 1):
            entry = recertify(encoded, self.disk.certificates.get(index), self.signer, voters)
            assert entry is not None, "the only voter can certify what it stored"
            recovered.recent.append(entry)

        def replay(merged: FragmentMerged) -> None:
            payload = self.disk.payloads[merged.payload]
            self.bank.replay(merged, payload)

        refold(recovered.state, self.disk.records, replay)
        for fragment in recovered.state.fragments:
            recovered.origins[fragment.record_index] = recovered.recent[fragment.record_index - 1]
        return recovered

    def _initialise(self) -> WeightsMade:
        made = []
        for fragment in self.layout.fragments:
            theta = tiny_weights(fragment.numel, fragment.index)
            made.append(self.bank.initialise(fragment.index, 0, theta, np.zeros_like(theta)))
        self.disk.has_weights = True
        return WeightsMade(tuple(made))

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job, world = start.job, self.world
        match job:
            case InitialiseWeights():
                world.after(2.0, lambda: answer(self._initialise()))
            case FetchPush():
                world.after(
                    2 * world.delay_s(job.header.payload_bytes), lambda: answer(self._fetch(job))
                )
            case Merge():
                world.after(MERGE_S, lambda: answer(self._merge(job)))
            case Append():
                world.after(FSYNC_S, lambda: answer(self._append(job)))
            case WriteCheckpoint():
                world.after(FSYNC_S, lambda: answer(CheckpointWritten(job.index)))

    def act(self, action: object) -> None:
        match action:
            case Adopt(fragment, version):
                self.bank.adopt(fragment, version)
            case Forget(pushes):
                for push in pushes:
                    self.bank.forget_push(push)
            case Keep(entry, index):
                self.disk.certificates[index] = entry.certificate

    def _fetch(self, job: FetchPush) -> object:
        peer = self.world.hosts[job.peer]
        if not isinstance(peer, SimLearner) or not self.world.can_reach(self, peer):
            return Failed("unreachable")
        blob = peer.shelf.get(job.header.digest)
        if blob is None:
            return Failed("not held")
        push = (job.peer, job.header.incarnation, job.header.sequence)
        try:
            self.bank.keep_push(push, job.header.fragment, bytes(blob))
        except MalformedPayload as error:
            return PushRefused(error.reason, str(error))
        return PushFetched()

    def _merge(self, job: Merge) -> object:
        if self.disk.is_full:
            return Failed("disk full")
        outcome = self.bank.merge(job)
        self.disk.payloads[outcome.payload_digest] = outcome.payload
        return Merged(
            payload=outcome.payload_digest,
            payload_bytes=len(outcome.payload),
            state=outcome.state,
            norms=outcome.norms,
            scales=outcome.scales,
            seconds=MERGE_S,
        )

    def _append(self, job: Append) -> object:
        if self.disk.is_full:
            return Failed("disk full")
        if job.index != len(self.disk.records) + 1:
            return Failed("an earlier record is not stored yet")
        self.disk.records.append(job.record)
        return Appended(job.index)


class SimLearner(Host):
    """A volunteer in virtual time."""

    def __init__(
        self, world: World, tiny: TinyProject, syncer: SimSyncer, *, number: int, step_s: float
    ) -> None:
        name = f"learner-{number}"
        signer = SimSigner(name)
        super().__init__(world, signer.key, name)
        self.tiny = tiny
        self.syncer_host = syncer
        self.signer = signer
        self.step_s = step_s
        self.layout: Layout = syncer.layout
        self.chance = random.Random(f"{name} {world.seed}")
        self.shelf = Shelf(clock=lambda: self.world.now_s)
        self.bank: FragmentBank
        self.fetcher: SimFetcher
        self.trainer: TinyTrainer | None = None
        self.learner: LearnerMachine
        self.reads: list[tuple[int, int, int]] = []
        """(life, position, sequence) of everything any of its trainers read."""

    def build(self) -> LearnerMachine:
        self.shelf = Shelf(clock=lambda: self.world.now_s)
        self.bank = FragmentBank(self.layout, self.shelf)
        self.trainer = None
        life = self.life
        self.fetcher = SimFetcher(
            self.world,
            random.Random(f"donors {self.name} {self.world.seed} {life}"),
            is_alive=lambda: self.life == life,
            donors=self._announced,
            reach=self._reach,
            newest=lambda fragment: self.learner.shared.state.fragments[fragment].version,
        )
        setup = LearnerSetup(
            project=self.tiny.project,
            genesis=self.tiny.genesis,
            layout_digest=self.layout.digest,
            name=self.name,
            agent="simulator",
            incarnation=self.life,
            evaluates=True,
            micro_batch=None,
            signer=self.signer,
            verify=sim_verify,
            rng=random.Random(f"back-off {self.name} {self.world.seed} {self.life}"),
        )
        self.learner = LearnerMachine(setup)
        return self.learner

    def lose_trainer(self, *, is_out_of_memory: bool = False) -> None:
        """The trainer process dies; the daemon lives."""
        if self.is_up and self.trainer is not None:
            self.trainer = None
            self.bank.trainer_lost()
            self.take(Note(TrainerLost(is_out_of_memory, "killed")))

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job, world = start.job, self.world
        match job:
            case FindSeat():
                found = SeatFound(self.syncer_host.key, charter_envelope(self.tiny))
                world.after(2 * world.delay_s(), lambda: answer(found))
            case FetchState():
                numel = self.layout.fragments[job.fragment].numel
                self.fetcher.fetch(job, numel, lambda got: answer(self._install(job, got)))
            case Advance():
                delay_s = 2 * world.delay_s(job.merged.payload_bytes)
                world.after(delay_s, lambda: answer(self._advance(job)))
            case StartTrainer():
                world.after(TRAINER_START_S, lambda: answer(self._start_trainer()))
            case Deliver():
                self._command(lambda trainer: answer(self._deliver(job, trainer)), answer)
            case Capture():
                self._command(lambda trainer: answer(self._capture(job, trainer)), answer)
            case Evaluate():
                world.after(1.0, lambda: answer(self._evaluate(job)))

    def act(self, action: object) -> None:
        match action:
            case Freeze(index, fragment):
                self.bank.freeze(index, fragment)
            case Thaw(index):
                self.bank.thaw(index)
            case Settle(fragment, sequence, outcome):
                self.bank.settle(fragment, sequence, is_merged=outcome == "merged")
            case Feed(spans):
                if self.trainer is not None:
                    self.trainer.spans.extend(spans)
                    self._step()
            case ReplaceTrainer():
                self.world.after(0.1, self.lose_trainer)
            case HoldSteps() | ReleaseSteps():
                if self.trainer is not None:
                    self.trainer.is_held = isinstance(action, HoldSteps)
                    self._step()
            case BeginSteps():
                if self.trainer is not None:
                    self.trainer.is_begun = True
                    self.trainer.ready_s = self.world.now_s
                    self._step()

    def _donors(self) -> list[SimLearner | SimSyncer]:
        others: list[SimLearner | SimSyncer] = [
            host
            for host in self.world.hosts.values()
            if isinstance(host, SimLearner)
            and host is not self
            and self.world.can_reach(self, host)
        ]
        self.chance.shuffle(others)
        if self.world.can_reach(self, self.syncer_host):
            others.append(self.syncer_host)
        return others

    def _announced(self) -> tuple[list[bytes], bytes]:
        """Learners that say they hold weights, and the syncer."""
        learners = [
            host.key
            for host in self.world.hosts.values()
            if isinstance(host, SimLearner)
            and host is not self
            and host.is_up
            and host.learner.keeping.is_held
        ]
        return learners, self.syncer_host.key

    def _reach(self, key: bytes) -> Shelf | None:
        host = self.world.hosts[key]
        assert isinstance(host, SimLearner | SimSyncer)
        return host.shelf if self.world.can_reach(self, host) else None

    def _install(self, job: FetchState, got: Assembly | str) -> object:
        if isinstance(got, str):
            return Failed(got)
        self.bank.charter = self.learner.shared.charter
        self.bank.install(job.fragment, job.version, job.state, *got.arrays())
        return StateFetched(tuple(got.sources.items()))

    def _advance(self, job: Advance) -> object:
        for donor in reversed(self._donors()):
            payload = donor.shelf.get(job.merged.payload)
            if payload is not None:
                try:
                    self.bank.advance(job.merged, bytes(payload))
                except CorruptState as error:
                    return Failed(str(error))
                return Advanced()
        return Failed("no donor holds the payload")

    def _start_trainer(self) -> object:
        inner, data = self.tiny.charter.inner, self.tiny.genesis.data
        self.trainer = TinyTrainer(
            sizes=[fragment.numel for fragment in self.layout.fragments],
            tokens_per_step=inner.batch_sequences * data.sequence_tokens,
            sequences_per_step=inner.batch_sequences,
            block_sequences=data.block_sequences,
            step_s=self.step_s,
            chance=random.Random(self.chance.random()),
        )
        return TrainerReady("virtual", inner.batch_sequences)

    def _command(
        self, action: Callable[[TinyTrainer], None], answer: Callable[[object], None]
    ) -> None:
        trainer = self.trainer
        if trainer is None:
            self.world.after(0.0, lambda: answer(Failed("no trainer")))
            return
        self.world.after(0.0, lambda: trainer.command(lambda: action(trainer)))

    def _deliver(self, job: Deliver, trainer: TinyTrainer) -> object:
        delivery = self.bank.deliver(
            job.fragment, is_assign=job.is_assign, merged_sequence=job.merged_sequence
        )
        local = trainer.theta[job.fragment]
        if delivery.is_assign or local is None:
            trainer.theta[job.fragment] = delivery.values.copy()
        else:
            trainer.theta[job.fragment] = local + delivery.values
        return Delivered(delivery.version, trainer.local_step, trainer.tokens)

    def _capture(self, job: Capture, trainer: TinyTrainer) -> object:
        local = trainer.theta[job.fragment]
        if local is None:
            return Failed("not delivered")
        try:
            push = self.bank.push(job.fragment, job.sequence, local)
        except NonFinite:
            return Failed("non-finite")
        return Captured(
            base_version=push.base_version,
            digest=push.digest,
            payload_bytes=push.payload_bytes,
            local_step=trainer.local_step,
            tokens=trainer.tokens,
            cursor=trainer.cursor(),
        )

    def _evaluate(self, job: Evaluate) -> object:
        loss = distance(self.bank.frozen(job.index))
        return EvaluatedLoss(loss, 128, 1.0)

    def _step(self) -> None:
        trainer = self.trainer
        if trainer is None or trainer.is_stepping:
            return
        if not trainer.can_step():
            if trainer.is_begun and not trainer.is_held:
                self.take(Note(Starved()))
            return
        seconds, life = trainer.begin_step(), self.life

        def end() -> None:
            if self.life != life or self.trainer is not trainer:
                return
            before = len(trainer.read)
            loss = trainer.end_step(seconds)
            self.reads += [(life, *read) for read in trainer.read[before:]]
            trainer.boundary()
            self.take(
                Note(
                    Stepped(
                        local_step=trainer.local_step,
                        tokens=trainer.tokens,
                        loss=loss,
                        step_s=seconds,
                        work_s=trainer.work_s,
                        alive_s=self.world.now_s - trainer.ready_s,
                        cursor=trainer.cursor(),
                    )
                )
            )
            self._step()

        self.world.after(seconds, end)


def charter_envelope(tiny: TinyProject) -> Envelope:
    """The charter as its owner signed it."""
    return seal("charter", tiny.project, encode(tiny.charter), tiny.owner)


def distance(fragments: list[NDArray[np.float32]]) -> float:
    """Mean squared distance of a model to the target: the held-out loss of tiny models."""
    return float(
        np.mean([np.mean((v - tiny_target(v.size, at)) ** 2) for at, v in enumerate(fragments)])
    )
