"""The daemon's side of optimizer state between learners: copies, blobs, checks, and their memory.

At most one snapshot is offered and one is held for the own trainer: 8 bytes per parameter each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from host.bulk.blob_store import BlobStore
from node.download.locator import Locator
from node.machine import jobs
from node.machine.moments import check_moments, chunk_lengths, moments_numel, pieces, steps_of
from node.trainer_client.client import TrainerPort
from protocol.errors import MalformedPayload, RemoteError
from protocol.fragments import Fragment, Layout
from protocol.machine import Failed, JobResult
from protocol.numerics.outer import digest

F32 = NDArray[np.float32]


@dataclass(slots=True)
class MomentsPort:
    """Both directions of one learner."""

    locator: Locator
    trainer: TrainerPort
    on_fault: Callable[[bytes, RemoteError], None]
    _offered: list[bytes] = field(default_factory=list)
    _held: list[F32] = field(default_factory=list)
    _wish: int = 0
    """Grows with every fetch and with every `forget`: an older fetch ends at its next blob."""

    @property
    def layout(self) -> Layout:
        return self.trainer.bank.layout

    @property
    def blob_store(self) -> BlobStore:
        return self.trainer.bank.blob_store

    async def run_job(self, job: jobs.MomentsJob) -> JobResult:
        """Carry out a job of either side."""
        match job:
            case jobs.FindDonors():
                return jobs.DonorsFound(tuple(await self.locator.donors_or_none()))
            case jobs.FetchMoments():
                return await self._fetch(job)
            case jobs.InstallMoments():
                return await self._install()
            case jobs.CaptureMoments():
                return await self._capture()

    def forget(self) -> None:
        """Let go of what was fetched, and of what is being fetched."""
        self._wish += 1
        self._held = []

    def withdraw(self) -> None:
        """Let go of the snapshot; transfers under way keep their bytes."""
        offered, self._offered = self._offered, []
        for name in offered:
            self.blob_store.drop(name)

    # Inside.

    async def _capture(self) -> JobResult:
        self.withdraw()
        numels = [moments_numel(fragment) for fragment in self.layout.fragments]
        copies = await self.trainer.capture_moments(numels)
        if copies is None:
            return Failed("the trainer ended")
        for copied in copies:
            for blob in pieces(copied):
                name = await self.trainer.in_pool(partial(digest, blob))
                self.blob_store.put(name, blob)
                self._offered.append(name)
        return jobs.MomentsCaptured(tuple(self._offered))

    async def _fetch(self, job: jobs.FetchMoments) -> JobResult:
        self.forget()
        wish = self._wish
        names = iter(job.blobs)
        held: list[F32] = []
        try:
            sizes = [4 * moments_numel(fragment) for fragment in self.layout.fragments]
            wanted = sum(len(chunk_lengths(size)) for size in sizes)
            if len(job.blobs) != wanted:
                raise MalformedPayload(f"{len(job.blobs)} blobs of moments instead of {wanted}")
            for fragment in self.layout.fragments:
                values = await self._fetch_one(job.donor, fragment, names)
                if wish != self._wish:
                    return Failed("no longer wanted")
                check = partial(check_moments, fragment, values, job.inner)
                await self.trainer.in_pool(check)
                held.append(values)
        except RemoteError as error:
            self.on_fault(job.donor, error)
            return Failed(str(error))
        if wish != self._wish:
            return Failed("no longer wanted")
        self._held = held
        return jobs.MomentsFetched()

    async def _fetch_one(self, donor: bytes, fragment: Fragment, names: Iterator[bytes]) -> F32:
        """A fragment's array, its blobs put together where they belong."""
        values = np.empty(moments_numel(fragment), np.float32)
        room = values.view(np.uint8).data
        first = 0
        for length in chunk_lengths(values.nbytes):
            into = room[first : first + length]
            await self.locator.transport.fetch(donor, next(names), length, into=into)
            first += length
        return values

    async def _install(self) -> JobResult:
        held, self._held = self._held, []
        if len(held) != len(self.layout.fragments):
            return Failed("the moments are gone")
        for fragment, values in zip(self.layout.fragments, held, strict=True):
            if not await self.trainer.install_moments(fragment.index, values):
                return Failed("the trainer ended")
        return jobs.MomentsInstalled(steps_of(self.layout, held))
