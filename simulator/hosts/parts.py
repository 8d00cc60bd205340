"""Parts of snapshots in virtual time: what a simulated learner keeps on its disk, and takes up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from node.machine import jobs
from node.machine.context import EpochStart
from node.machine.snapshot_part import PartState
from node.trainer_client.fragment_bank import Standing
from protocol.log.records import Span
from protocol.machine import Failed, Job
from protocol.messages import Cursor
from protocol.numerics.codecs import F32
from simulator.stand_ins.provenance import ProvenanceTrainer
from simulator.stand_ins.tiny import TinyTrainer

if TYPE_CHECKING:
    from simulator.hosts.learner import SimLearner

WRITE_S = 0.5


@dataclass(frozen=True, slots=True)
class TrainerCopy:
    """All that a trainer in virtual time goes on from."""

    number: int
    """Which of its host's trainers it is."""
    theta: tuple[F32, ...]
    moments: tuple[F32, ...]
    local_step: int
    tokens: int
    spans: tuple[Span, ...]
    end: Cursor
    noise: dict[str, Any]
    slots: tuple[int, ...]
    reads: int
    """How much its host had read."""

    @classmethod
    def of(cls, trainer: TinyTrainer, number: int, reads: int) -> TrainerCopy:
        theta = [values for values in trainer.theta if values is not None]
        assert len(theta) == len(trainer.theta), "only a trainer that steps is copied"
        return cls(
            number=number,
            theta=tuple(values.copy() for values in theta),
            moments=tuple(values.copy() for values in trainer.moments),
            local_step=trainer.local_step,
            tokens=trainer.tokens,
            spans=tuple(trainer.spans),
            end=trainer.cursor(),
            noise=trainer.noise_state(),
            slots=tuple(trainer.slots) if isinstance(trainer, ProvenanceTrainer) else (),
            reads=reads,
        )

    def give(self, trainer: TinyTrainer) -> None:
        """The trainer becomes what the copied one was."""
        trainer.theta = [values.copy() for values in self.theta]
        trainer.moments = [values.copy() for values in self.moments]
        trainer.local_step, trainer.tokens = self.local_step, self.tokens
        trainer.spans = deque(self.spans)
        trainer.go_on(self.end, self.noise)
        if isinstance(trainer, ProvenanceTrainer):
            trainer.slots = list(self.slots)


@dataclass(frozen=True, slots=True)
class SimPart:
    """One part on a disk."""

    state: PartState
    trainer: TrainerCopy
    standing: tuple[Standing, ...]
    digest: bytes
    taken_up: int = -1
    """The last epoch in which it was gone on from."""


@dataclass(slots=True)
class SimParts:
    """One learner's; the parts survive its crashes."""

    host: SimLearner
    disk: dict[int, SimPart] = field(default_factory=dict)
    is_full: bool = False
    loaded: SimPart | None = None
    start: EpochStart | None = None
    """How the next life begins."""
    cuts: list[Callable[[int], None]] = field(default_factory=list)
    """Told the snapshot at the very cut."""
    restores: list[Callable[[SimPart], None]] = field(default_factory=list)
    """Told the part when a trainer has taken one up."""
    _cut: tuple[TrainerCopy, tuple[Standing, ...]] | None = None
    _bases: dict[int, Standing] = field(default_factory=dict)

    def begin_life(self) -> EpochStart | None:
        """How this life begins; the one after it begins as any."""
        start, self.start = self.start, None
        if start is None or start.part is None:
            self.loaded = None
        standing = self.loaded.standing if self.loaded is not None else ()
        self._cut, self._bases = None, dict(enumerate(standing))
        return start

    def run_job(self, job: Job, answer: Callable[[object], None]) -> None:
        world = self.host.world
        match job:
            case jobs.CutPart(snapshot):
                self.host.command(lambda trainer: answer(self._make_cut(snapshot, trainer)), answer)
            case jobs.WritePart():
                world.after(WRITE_S, lambda: answer(self._write(job)))
            case jobs.LoadPart():
                world.after(WRITE_S, lambda: answer(self._load(job)))
            case _:
                raise AssertionError(f"nothing here carries out {type(job).__name__}")

    def _make_cut(self, snapshot: int, trainer: TinyTrainer) -> object:
        host = self.host
        copied = TrainerCopy.of(trainer, host.trainer_number, len(host.reads))
        self._cut = (copied, tuple(host.bank.standing()))
        for look in self.cuts:
            look(snapshot)
        return jobs.PartCut(trainer.local_step, trainer.tokens)

    def _write(self, job: jobs.WritePart) -> object:
        if self.is_full or self._cut is None:
            return Failed("the disk is full")
        (trainer, standing), self._cut = self._cut, None
        digest = blake3(msgspec.msgpack.encode(job.state)).digest()
        kept = {job.state.snapshot, *job.kept}
        self.disk[job.state.snapshot] = SimPart(job.state, trainer, standing, digest)
        self.disk = {at: part for at, part in self.disk.items() if at in kept}
        return jobs.PartWritten(digest, sum(values.nbytes for values in trainer.theta))

    def _load(self, job: jobs.LoadPart) -> object:
        part = self.disk.get(job.snapshot)
        if part is None:
            return Failed("the part is missing")
        if part.taken_up >= job.epoch:
            return Failed(f"the part was already used in epoch {job.epoch}")
        self.disk[job.snapshot] = self.loaded = replace(part, taken_up=job.epoch)
        return jobs.PartLoaded(part.digest)

    def next_start(self, start: EpochStart | None) -> None:
        """The machine asked to be built anew."""
        if start is not None and self.loaded is not None:
            start = replace(start, part=self.loaded.state, digest=self.loaded.digest)
        self.start = start

    def restore(self, trainer: TinyTrainer, ready: jobs.TrainerReady) -> jobs.TrainerReady:
        """Give the part to a trainer that just became ready, if there is one."""
        part, self.loaded = self.loaded, None
        if part is None:
            return ready
        host = self.host
        part.trainer.give(trainer)
        host.trainer_number = part.trainer.number
        for at, standing in enumerate(part.standing):
            host.bank.take_up(at, standing)
        for look in self.restores:
            look(part)
        size = trainer.block_sequences
        unread = sum((span.stop - span.start) * size - span.skip for span in trainer.spans)
        return replace(ready, unread=unread, local_step=trainer.local_step, tokens=trainer.tokens)

    def install(self, job: jobs.FetchState) -> jobs.StateFetched | None:
        """Take this very version from the part, if that had it."""
        standing = self._bases.pop(job.fragment, None)
        if standing is None:
            return None
        base, bank = standing.base, self.host.bank
        if (base.version, base.state) != (job.version, job.state):
            return None
        bank.install(job.fragment, job.version, job.state, base.theta, base.momentum)
        return jobs.StateFetched(())
