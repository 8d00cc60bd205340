"""Carries out what the syncer's machine asks for: transfers, merges, the disk.

Merging runs on threads, everything about the disk on one thread of its own in the order it was
asked for, so that the event loop only ever moves small things.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, TypeVarTuple, Unpack

from blake3 import blake3

from host.bulk.giving import SYNCER_AHEAD_S, Giving
from host.files.home import BEGUN
from host.hedged_fetch import fetch_from
from host.network.blobs import FETCHES_MAX
from host.network.leader_discovery import holders_of_all, learners_topic
from host.runtime.compute_pool import Cores, give_way
from host.transport import Transport
from protocol import first_weights
from protocol.errors import CorruptState, MalformedPayload, TransientError
from protocol.ids import short
from protocol.log.records import StateDigests
from protocol.log.restoring import States
from protocol.machine import Failed, Job, JobResult
from protocol.messages import PushHeader
from protocol.numerics.buffers import F32, empty_bytes
from protocol.numerics.warm_up import warm_up
from syncer_node.daemon.array_fetcher import ArrayFetcher
from syncer_node.machine import jobs
from syncer_node.storage.checkpoints import CheckpointStore
from syncer_node.storage.merge_bank import MergeBank
from syncer_node.storage.store import Store
from syncer_node.storage.tape_recorder import PayloadTape

log = logging.getLogger("shoal.syncer")

MERGES_AT_ONCE = 2
SOURCES_ASKED_MAX = 8
STRANGERS_FETCHED_MAX = FETCHES_MAX // 2
"""Payloads fetched at once of learners of which nothing was merged yet: however many keys announce
some and never send them, those who do find a turn."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True, kw_only=True)
class JobExecutor:
    """The hands of one syncer."""

    transport: Transport
    store: Store
    bank: MergeBank
    disk: CheckpointStore
    disk_pool: Executor
    """The disk's own thread."""
    cores: Cores
    project: bytes
    kept_marks: Callable[[], set[int]]
    other_syncers: Callable[[], list[bytes]]
    payloads: PayloadTape | None = None
    giving: Giving = field(default_factory=lambda: Giving(ahead_s=SYNCER_AHEAD_S))
    """Merged payloads to learners."""
    arrays: ArrayFetcher = field(init=False)
    merge_pool: Executor = field(init=False)
    check_pool: Executor = field(init=False)
    """What arrives is checked beside merges: behind one, a push would miss its pull's deadline."""
    _strangers: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(STRANGERS_FETCHED_MAX)
    )

    def __post_init__(self) -> None:
        self.arrays = ArrayFetcher(self.transport, self.store.root / BEGUN)
        self.merge_pool = ThreadPoolExecutor(
            MERGES_AT_ONCE, thread_name_prefix="merge", initializer=give_way
        )
        self.merge_pool.submit(warm_up)
        self.check_pool = ThreadPoolExecutor(1, thread_name_prefix="check", initializer=give_way)

    def close(self) -> None:
        """Wait for what is under way; nothing remains half done."""
        self.merge_pool.shutdown(wait=True, cancel_futures=True)
        self.check_pool.shutdown(wait=True, cancel_futures=True)
        self.cores.close()
        self.disk_pool.shutdown(wait=True, cancel_futures=True)
        self.store.close()

    async def run_job(self, job: Job) -> JobResult:
        """Carry out one job."""
        match job:
            case jobs.FetchPush():
                return await self._fetch_push(job)
            case jobs.Merge():
                return await self._merge(job)
            case jobs.TakeMerge():
                return await self._take(job)
            case jobs.FetchPayload():
                return await self._fetch_payload(job)
            case jobs.FetchWeights():
                return await self._fetch_weights(job)
            case jobs.RepairFragment():
                return await self._repair(job)
            case jobs.HoldCheckpoint():
                return await self._hold(job.checkpoint, job.states)
            case jobs.FetchRestored(_, leader, restored):
                kept = await self._keep_restored(leader, restored.checkpoint, restored.fragments)
                return kept if isinstance(kept, jobs.PayloadNotWritten) else jobs.PayloadKept()
            case jobs.Replay(made) | jobs.Restore(made):
                await self._on_disk(self.disk.replay, made)
                return jobs.Replayed()
            case jobs.WriteCheckpoint(index, summary):
                checkpoint = self.disk.capture(index, summary)
                if self.disk.averages is not None:  # After all versions that are in it.
                    self.disk.averages.keep(index, summary.head, self.store.checkpoints)
                await self._on_disk(self.disk.write_checkpoint, checkpoint, self.kept_marks())
                await self._on_disk(self.arrays.tidy)
                return jobs.CheckpointWritten(index)
        return await self._on_disk(self._keep, job)

    def _keep(self, job: Job) -> JobResult:
        """What only concerns the disk."""
        match job:
            case jobs.InitialiseWeights():
                return jobs.WeightsMade(self.disk.initialise())
            case jobs.LoadWeights():
                self.disk.initialise()
                return jobs.Replayed()
            case jobs.WriteSnapshot(snapshot):
                return self.disk.snapshots.write(snapshot)
            case jobs.KeepSnapshot():
                return self.disk.snapshots.keep(job)
        return self.store.voter.carry_out(job)

    def may_give(self, to: bytes, payload: bytes, size: int, *, is_voter: bool) -> bool:
        """Whether to send a merged payload, or a piece of it, now. Voters do not wait."""
        self.giving.measured(self.transport.rate_limiter.up.bytes_per_s)
        return self.giving.may_give(to, payload, size, time.monotonic(), is_owed=is_voter)

    def cut_snapshot(self, cut: jobs.CutSnapshot) -> None:
        """Hold on to the versions of now, for a snapshot."""
        checkpoint = self.disk.capture(cut.summary.index, cut.summary)
        self.disk.snapshots.cut(cut.snapshot, checkpoint)

    async def _on_disk(self, work: Callable[[Unpack[Ts]], T], *given: *Ts) -> T:
        """Run on the disk's own thread; work is done in the order it is handed over."""
        return await asyncio.get_running_loop().run_in_executor(self.disk_pool, work, *given)

    # Merging.

    async def _fetch_push(self, job: jobs.FetchPush) -> JobResult:
        header = job.header
        push = (job.peer, header.incarnation, header.sequence)
        turn = contextlib.nullcontext() if job.is_proven else self._strangers
        try:
            async with asyncio.timeout(job.left_s), turn:
                payload = await self.transport.fetch(
                    job.source or job.peer,
                    header.digest,
                    header.payload_bytes,
                    into=empty_bytes(header.payload_bytes).data,
                    is_checked=False,
                )
            keep = partial(self._check_and_keep, push, header, payload)
            await asyncio.get_running_loop().run_in_executor(self.check_pool, keep)
        except MalformedPayload as error:
            return jobs.PushRefused(error.reason, str(error))
        except TimeoutError:
            return Failed("it did not come before the pull's deadline")
        if self.payloads is not None:
            self.payloads.keep_push(job, payload)
        return jobs.PushFetched()

    def _check_and_keep(
        self, push: jobs.PushId, header: PushHeader, payload: bytes | memoryview
    ) -> None:
        """On the thread for that. Raises MalformedPayload."""
        if blake3(payload).digest() != header.digest:
            raise MalformedPayload(
                f"the bytes do not match {short(header.digest)}, which it signed"
            )
        self.bank.keep_push(push, header.fragment, payload, header.codec)

    async def _merge(self, job: jobs.Merge) -> JobResult:
        started_s = time.monotonic()
        if self.payloads is not None:
            self.payloads.keep_base(job.fragment, self.bank)
        try:
            outcome = await asyncio.get_running_loop().run_in_executor(
                self.merge_pool, self.bank.merge, job
            )
        except CorruptState as error:
            return Failed(str(error))
        name, payload = outcome.payload_digest, outcome.payload
        await self._on_disk(self.store.write_payload, job.fragment, job.version, name, payload)
        return jobs.Merged(
            payload=name,
            payload_bytes=len(payload),
            state=outcome.state,
            norms=outcome.norms,
            scales=outcome.scales,
            cosines=outcome.cosines,
            trusts=outcome.trusts,
            shares=outcome.shares,
            tensors=outcome.tensors,
            tensors_clipped=outcome.tensors_clipped,
            expected=outcome.expected,
            repeats=outcome.repeats,
            echoes=outcome.echoes,
            novelties=outcome.novelties,
            seconds=time.monotonic() - started_s,
            up_bytes_per_s=self.transport.rate_limiter.up.bytes_per_s,
            up_backlog_s=self.giving.backlog_s(time.monotonic()),
        )

    async def _take(self, job: jobs.TakeMerge) -> JobResult:
        """What a merger merged, fetched from it and computed again as far as that can be."""
        merge, result = job.merge, job.result
        sources = [result.merger] if result.merger is not None else []
        wanted = [(result.payload, result.payload_bytes)]
        (payload,) = await fetch_from(self.transport, sources, wanted)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self.merge_pool, self.bank.take, merge, result, payload
            )
        except CorruptState as error:
            return Failed(str(error))
        place = (merge.fragment, merge.version, result.payload)
        await self._on_disk(self.store.write_payload, *place, payload)
        return jobs.MergeTaken()

    # Keeping up, and getting back what was lost.

    async def _fetch_payload(self, job: jobs.FetchPayload) -> JobResult:
        merged = job.merged
        place = (merged.fragment, merged.version, merged.payload)
        if merged.merger == self.transport.key:
            with contextlib.suppress(CorruptState):
                await self._on_disk(self.store.read_payload, *place)
                return jobs.PayloadKept()  # Merged here.
        wanted = [(merged.payload, merged.payload_bytes)]
        sources = await self._sources(job.leader)
        if merged.merger in sources:
            sources = [merged.merger, *(key for key in sources if key != merged.merger)]
        (payload,) = await fetch_from(self.transport, sources, wanted)
        try:
            await self._on_disk(self.store.write_payload, *place, bytes(payload))
        except TransientError as error:
            return jobs.PayloadNotWritten(str(error))
        return jobs.PayloadKept()

    async def _fetch_weights(self, job: jobs.FetchWeights) -> JobResult:
        """Version 0 of every fragment, kept as the first checkpoint."""
        genesis = self.disk.project.genesis
        if wrong := first_weights.trouble(genesis, dict(enumerate(job.fragments))):
            raise TransientError(f"the leader began with other weights: {wrong}")
        sources = await self._sources(job.leader)
        theta, momentum = [], []
        for fragment, state in enumerate(job.fragments):
            one, other = await self._fetch_state(sources, fragment, state)
            theta.append(one)
            momentum.append(other)
        await self._on_disk(self.disk.keep_first, theta, momentum)
        await self._on_disk(self.arrays.done, job.fragments)
        return jobs.PayloadKept()

    async def _hold(self, checkpoint: int, states: States) -> JobResult:
        """The weights of a checkpoint, kept and ready in memory."""
        kept = await self._keep_restored(None, checkpoint, states)
        if isinstance(kept, jobs.PayloadNotWritten):
            return kept
        if self.bank.held_checkpoint != checkpoint:
            await self._on_disk(self.bank.hold_checkpoint, checkpoint, *kept)
        return jobs.PayloadKept()

    async def _keep_restored(
        self, leader: bytes | None, checkpoint: int, states: States
    ) -> tuple[list[F32], list[F32]] | jobs.PayloadNotWritten:
        """The weights of a checkpoint from this disk or, by their digests, from others; kept."""
        here = await self._on_disk(self.disk.checkpoint_of, checkpoint, states)
        if here is not None:
            theta, momentum = here.theta, here.momentum
        else:
            sources = await self._sources(leader)
            pairs = [await self._fetch_state(sources, at, state) for at, state in enumerate(states)]
            theta, momentum = [one for one, _ in pairs], [one for _, one in pairs]
        try:
            await self._on_disk(self.disk.keep_restored, checkpoint, theta, momentum)
        except TransientError as error:
            return jobs.PayloadNotWritten(str(error))
        await self._on_disk(self.arrays.done, states)
        return theta, momentum

    def offer_checkpoint(self, offered: jobs.OfferCheckpoint) -> None:
        """Let others fetch the weights of a checkpoint that is on this disk. Disk thread."""
        if not offered.checkpoint:
            self.bank.let_checkpoint_go()
            return
        found = self.disk.checkpoint_of(offered.checkpoint, offered.states)
        if found is not None and self.bank.held_checkpoint != offered.checkpoint:
            self.bank.hold_checkpoint(offered.checkpoint, found.theta, found.momentum)

    async def _repair(self, job: jobs.RepairFragment) -> JobResult:
        newest = job.newest
        sources = await self._sources(job.leader)
        theta, momentum = await self._fetch_state(sources, job.fragment, newest.state)
        self.bank.initialise(job.fragment, newest.version, theta, momentum)
        await self._on_disk(self.arrays.done, [newest.state])
        return jobs.Repaired()

    async def _fetch_state(
        self, sources: list[bytes], fragment: int, state: StateDigests
    ) -> tuple[F32, F32]:
        size_bytes = 4 * self.bank.layout.fragments[fragment].numel
        return await self.arrays.state(sources, state, size_bytes)

    async def _sources(self, leader: bytes | None) -> list[bytes]:
        """Who might have it: the leader, the other syncers, then learners."""
        sources = [leader] if leader is not None else []
        sources += [key for key in self.other_syncers() if key not in sources]
        try:
            found = await self.transport.lookup(learners_topic(self.project))
        except TransientError as error:
            log.info("learners cannot be looked up: %s", error)
            found = {}
        sources += [key for key in holders_of_all(found) if key not in sources]
        return [key for key in sources if key != self.transport.key][:SOURCES_ASKED_MAX]
