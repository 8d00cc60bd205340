"""The daemon's side of parts of snapshots: copy, write, check, and give them back to a trainer.

Copies are made by reference or in shared memory at one boundary; writing and hashing run on the
thread pool, so that neither the event loop nor the inner loop waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from host.files import snapshot_files as files
from host.options import NodeOptions
from node.machine import jobs
from node.machine.context import EpochStart, Tally
from node.machine.learner import LearnerMachine
from node.machine.moments import moments_numel
from node.machine.snapshot_part import BaseState, PartState
from node.trainer.link.messages import LoopState
from node.trainer_client.client import TrainerPort
from node.trainer_client.fragment_bank import Held, Standing
from protocol.errors import CorruptState, TransientError
from protocol.log.records import Span
from protocol.machine import Failed, JobResult
from protocol.project import InnerSpec
from protocol.snapshots.manifest import FileSum, stamp

TAKEN_UP: Final = "taken-up"
"""File beside a part: the last epoch in which it was gone on from."""

F32 = NDArray[np.float32]


class PartMeta(Struct, frozen=True, array_like=True):
    """What a part's `meta` holds."""

    state: PartState
    loop: LoopState
    bases: tuple[BaseState, ...]
    arrays: FileSum


class TakenUp(Struct, frozen=True, array_like=True):
    """A part is gone on from at most once in an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """A part in memory, on its way to the next machine and its trainer."""

    meta: PartMeta
    arrays: dict[str, F32]
    digest: bytes


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a daemon's machine begins with; nothing but for an epoch that begins at a snapshot."""

    start: EpochStart | None = None
    loaded: LoadedPart | None = None
    paused_until_s: float | None = None
    """What the owner of this machine said to the one before."""
    tally: Tally | None = None
    """What the daemon did before."""

    def hold(self, machine: LearnerMachine) -> None:
        """A pause and what the daemon did outlive the machine that was there."""
        machine.trainer_control.paused_until_s = self.paused_until_s
        if self.tally is not None:
            machine.context.tally = self.tally

    @property
    def incarnation(self) -> int:
        """Of the part: its session goes on, with the blocks leased to it. 0 without a part."""
        part = self.start.part if self.start is not None else None
        return part.incarnation if part is not None else 0


@dataclass(slots=True)
class _Cut:
    """A copy that waits to be written."""

    arrays: F32
    loop: LoopState
    standing: list[Standing]


def held_parts(options: NodeOptions) -> tuple[int, ...]:
    """Snapshots of which there is a part here."""
    return tuple(files.held(options.home.parts(options.link.project, options.instance)))


@dataclass(slots=True)
class PartsPort:
    """One learner's parts."""

    folder: Path
    project: bytes
    key: bytes
    trainer: TrainerPort
    block_sequences: int
    loaded: LoadedPart | None = None
    """To go on from; taken by the first trainer."""
    feed: Callable[[jobs.Feed], None] | None = None
    """Gives a trainer leased text once its shards are here; None where nothing is waited for."""
    _cut: _Cut | None = None
    _bases: dict[int, tuple[BaseState, F32, F32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files.clear_partial(self.folder)
        if self.loaded is not None:
            arrays = self.loaded.arrays
            for at, base in enumerate(self.loaded.meta.bases):
                self._bases[at] = (base, arrays[f"theta.{at:04d}"], arrays[f"momentum.{at:04d}"])

    def next_beginning(self, former: LearnerMachine) -> Beginning:
        """How the next machine begins: with what was loaded, if it was."""
        start = former.snapshot_participant.next_start
        if start is not None and self.loaded is not None:
            start = replace(start, part=self.loaded.meta.state, digest=self.loaded.digest)
        until_s = former.trainer_control.paused_until_s
        return Beginning(start, self.loaded, until_s, former.context.tally)

    async def run_job(self, job: jobs.PartJob) -> JobResult:
        """Carry out one job. Raises TransientError or CorruptState."""
        match job:
            case jobs.CutPart():
                return await self._make_cut()
            case jobs.WritePart():
                cut, self._cut = self._cut, None
                if cut is None:
                    return Failed("the copy is gone")
                return await self.trainer.in_pool(lambda: self._write(job, cut))
            case jobs.LoadPart():
                return await self.trainer.in_pool(lambda: self._load(job))

    # Taking one.

    async def _make_cut(self) -> JobResult:
        event = await self.trainer.cut_part(self._numel())
        if event is None:
            return Failed("the trainer ended")
        values, loop = event
        self._cut = _Cut(values, loop, self.trainer.bank.standing())
        return jobs.PartCut(loop.local_step, loop.tokens_total)

    def _numel(self) -> int:
        fragments = self.trainer.bank.layout.fragments
        return sum(one.numel + moments_numel(one) for one in fragments)

    def _write(self, job: jobs.WritePart, cut: _Cut) -> JobResult:
        arrays: dict[str, F32] = {"trainer": cut.arrays}
        for at, one in enumerate(cut.standing):
            arrays[f"theta.{at:04d}"] = one.base.theta
            arrays[f"momentum.{at:04d}"] = one.base.momentum
            if one.residual is not None:
                arrays[f"residual.{at:04d}"] = one.residual
            sequence = job.state.local_fragments[at].merged_sequence
            if sequence is not None and sequence in one.merged:
                arrays[f"merged.{at:04d}"] = one.merged[sequence]
        snapshot = job.state.snapshot
        size = sum(values.nbytes for values in arrays.values())
        partial = files.begin(self.folder, snapshot, size)
        summed = files.write_arrays(partial, arrays)
        bases = tuple(BaseState(one.base.version, one.base.state) for one in cut.standing)
        digest = files.seal_file(partial / files.META, PartMeta(job.state, cut.loop, bases, summed))
        files.finish(partial, snapshot)
        files.keep_only(self.folder, {snapshot, *job.kept})
        return jobs.PartWritten(digest, summed.size_bytes)

    # Going on from one.

    def _load(self, job: jobs.LoadPart) -> JobResult:
        place = self.folder / stamp(job.snapshot)
        meta, digest = files.open_sealed(place / files.META, PartMeta)
        if (meta.state.project, meta.state.learner) != (self.project, self.key):
            raise CorruptState(f"{place} is a part of another project or another learner")
        used = place / TAKEN_UP
        if used.exists() and files.open_sealed(used, TakenUp)[0].epoch >= job.epoch:
            return Failed(f"the part was already used in epoch {job.epoch}")
        arrays = files.read_arrays(place, meta.arrays)
        # Before anything is done with it: what is handed in once must not be handed in again.
        files.seal_file(used, TakenUp(job.epoch))
        self.loaded = LoadedPart(meta, arrays, digest)
        return jobs.PartLoaded(digest)

    async def restore(self, ready: jobs.TrainerReady, inner: InnerSpec) -> jobs.TrainerReady:
        """Give the part to a trainer that just became ready, if there is one and it fits."""
        loaded, self.loaded = self.loaded, None
        if loaded is None:
            return ready
        meta, arrays = loaded.meta, loaded.arrays
        loop, trouble = meta.loop, ""
        if self.feed is not None:
            loop = msgspec.structs.replace(loop, ranges=())
        if not _of_any_batch(meta.state.inner).trains_as(_of_any_batch(inner)):
            trouble = "the project's training settings have changed"
        elif arrays["trainer"].size != self._numel():
            trouble = "it belongs to a model of another size"
        elif not await self.trainer.restore_part(arrays["trainer"], loop):
            raise TransientError("the trainer ended")
        if trouble:
            self.trainer.notice(f"the snapshot's part was not restored: {trouble}")
            return ready
        for at, base in enumerate(meta.bases):
            theta, momentum = arrays[f"theta.{at:04d}"], arrays[f"momentum.{at:04d}"]
            sequence = meta.state.local_fragments[at].merged_sequence
            merged = arrays.get(f"merged.{at:04d}")
            standing = Standing(
                Held(base.version, theta, momentum, base.state),
                arrays.get(f"residual.{at:04d}"),
                {sequence: merged} if sequence is not None and merged is not None else {},
            )
            self.trainer.bank.take_up(at, standing)
        if self.feed is not None and meta.loop.ranges:
            self.feed(jobs.Feed(tuple(Span(*one) for one in meta.loop.ranges)))
        unread = sum(
            (stop - start) * self.block_sequences - skip for start, stop, skip in meta.loop.ranges
        )
        return replace(
            ready,
            unread=unread,
            local_step=meta.loop.local_step,
            tokens=meta.loop.tokens_total,
        )

    def base(self, job: jobs.FetchState) -> tuple[F32, F32] | None:
        """This very version, if the part had it: nothing has to be fetched."""
        found = self._bases.pop(job.fragment, None)
        if found is None or (found[0].version, found[0].state) != (job.version, job.state):
            return None
        return found[1], found[2]


def _of_any_batch(inner: InnerSpec) -> InnerSpec:
    """The same but for the batch, which the owner of a machine may change between two starts."""
    return msgspec.structs.replace(inner, batch_sequences=1, batch_sequences_max=0)
