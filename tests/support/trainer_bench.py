"""A learner's trainer port over a real trainer process, without a learner."""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from host.bulk.blob_store import BlobStore
from node.machine.jobs import (
    Deliver,
    Delivered,
    Feed,
    StartTrainer,
    Stepped,
    TrainerReady,
    WakeTrainer,
)
from node.trainer.link import messages
from node.trainer.model import initial_weights, layout_of
from node.trainer_client.client import TrainerPort
from node.trainer_client.fragment_bank import FragmentBank
from protocol.log.records import Span
from protocol.numerics.versions import state_manifests
from protocol.project import encode
from tests.support.builders import project
from tests.support.tiny_project import INNER

WAIT_S = 60.0
BLOCKS = 40


class Bench:
    """A learner's trainer port, with weights, and everything that it noted."""

    def __init__(
        self,
        genesis,
        folder,
        pool,
        *,
        blocks=BLOCKS,
        micro_batch=2,
        ranks=1,
        sharded=False,
        weights=None,
    ):
        self.genesis, self.folder, self.micro_batch = genesis, folder, micro_batch
        self.notes = []
        self.changed = asyncio.Event()
        self.bank = FragmentBank(layout_of(genesis), BlobStore(clock=lambda: 0.0))
        self.bank.charter = project().charter
        for fragment, theta in enumerate(weights or initial_weights(genesis)):
            momentum = np.zeros_like(theta)
            state = state_manifests(theta, momentum).digests
            self.bank.install(fragment, 0, state, theta, momentum)
        self.port = TrainerPort(
            configure=messages.Configure(
                genesis=encode(genesis),
                inner=b"",
                data_cache=str(folder / "cache"),
                data_location=genesis.data.location,
                threads=1,
                device="cpu",
                ranks=ranks,
                sharded=sharded,
            ),
            log_path=folder / "trainer.log",
            suspend_folder=folder / "suspended",
            bank=self.bank,
            pool=pool,
            note=self.note,
            notice=self.notes.append,
            disk_room=lambda: self.disk_bytes_max,
        )
        self.disk_bytes_max = None
        self.blocks = blocks

    def note(self, value):
        self.notes.append(value)
        self.changed.set()

    async def until(self, is_so):
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    @property
    def steps(self):
        return [note.local_step for note in self.notes if isinstance(note, Stepped)]

    @property
    def losses(self):
        return [note.loss for note in self.notes if isinstance(note, Stepped)]

    async def deliver(self, fragment):
        job = Deliver(fragment, 0, is_assign=True, merged_sequence=None)
        return await self.port.deliver(job)

    async def begin(self):
        assert isinstance(
            await self.port.start(StartTrainer(self.micro_batch, INNER)), TrainerReady
        )
        for fragment in range(self.genesis.fragments):
            assert isinstance(await self.deliver(fragment), Delivered)
        self.port.feed(Feed((Span(0, self.blocks, 0),)))
        self.port.begin()

    async def suspend(self, bytes_max=None):
        self.disk_bytes_max = bytes_max
        return await self.port.suspend()

    async def wake(self):
        result = await self.port.wake(WakeTrainer(None, INNER))
        if isinstance(result, TrainerReady):
            self.port.begin()
        return result

    async def weights(self):
        """Every fragment, at the next boundary, by a push's way."""
        found = []
        for fragment, cut in enumerate(self.bank.layout.fragments):
            slot = self.port.live().slot(cut.numel)
            number = fragment

            def ask(job, number=number, slot=slot):
                return messages.Snapshot(job, number, slot.identity, slot.numel)

            await self.port.ask(ask)
            found.append(slot.values.copy())
        return np.concatenate(found)


@contextlib.asynccontextmanager
async def bench(genesis, folder, **options):
    with ThreadPoolExecutor(2) as pool:
        one = Bench(genesis, folder, pool, **options)
        try:
            yield one
        finally:
            await one.port.stop()


def open_files():
    return len(os.listdir("/proc/self/fd"))
