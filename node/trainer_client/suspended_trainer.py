"""A paused trainer's whole state in files, and what is done to it meanwhile.

A suspended trainer is no process: its weights, moments and counters lie in files without names,
which vanish with the daemon. Commands that a running trainer would carry out at its next boundary
are carried out on the files, so that a paused learner stays current and still hands in what it did.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.machine.moments import moments_numel
from node.trainer.link.messages import LoopState
from node.trainer.link.shared_memory import Slot
from node.trainer_client.fragment_bank import Delivery
from protocol.fragments import Layout
from protocol.log.records import Span

F32 = NDArray[np.float32]

ROOM_LEFT_BYTES: Final = 256 << 20
"""Suspending leaves at least so much of a disk free for everybody else."""


def suspended_bytes(layout: Layout) -> int:
    """What a suspended trainer takes on disk."""
    return sum(4 * (one.numel + moments_numel(one)) for one in layout.fragments)


def mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


@dataclass(slots=True)
class SuspendedTrainer:
    """Weights and moments in files, the rest in memory."""

    theta: Sequence[Slot]
    moments: Sequence[Slot]
    micro_batch: int
    state: LoopState | None = None
    """Known once the trainer has answered."""
    fed: list[Span] = field(default_factory=list)
    """Blocks leased meanwhile."""
    is_emptied: bool = False
    """The blocks that it had went to others."""

    @classmethod
    def make(cls, layout: Layout, folder: Path, micro_batch: int) -> SuspendedTrainer:
        """Room for a trainer's state. MemoryError if there is none on the disk. Blocks."""
        made: list[Slot] = []
        numels = [one.numel for one in layout.fragments]
        numels += [moments_numel(one) for one in layout.fragments]
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number, numel in enumerate(numels):
                made.append(Slot.in_file(number, numel, folder / f"{number}.f32"))
        except OSError as error:
            raise MemoryError(f"the directory {folder} cannot be made: {error}") from error
        finally:
            if len(made) < len(numels):
                for slot in made:
                    slot.close()
        count = len(layout.fragments)
        return cls(made[:count], made[count:], micro_batch)

    def apply(self, fragment: int, delivery: Delivery) -> None:
        """What the inner loop would do with a delivery. Blocks."""
        slot = self.theta[fragment]
        if not delivery.is_assign:
            np.add(slot.values, delivery.values, out=slot.values)
        elif delivery.kept_frac:
            kept = np.float32(delivery.kept_frac)
            np.multiply(slot.values, kept, out=slot.values)
            np.add(slot.values, delivery.values * (np.float32(1.0) - kept), out=slot.values)
        else:
            np.copyto(slot.values, delivery.values)
        slot.relax()

    def drop_fed(self) -> None:
        """What it had to read, and what was leased since, is leased to others now."""
        self.fed.clear()
        self.is_emptied = True

    def state_with_fed(self) -> LoopState:
        """What it goes on from, with the blocks leased meanwhile behind those it had."""
        assert self.state is not None, "the gate is closed until the state is here"
        fed = tuple((span.start, span.stop, span.skip) for span in self.fed)
        had = () if self.is_emptied else self.state.ranges
        return msgspec.structs.replace(self.state, ranges=(*had, *fed))

    def close(self) -> None:
        """Frees the files."""
        for slot in (*self.theta, *self.moments):
            slot.close()


def room_for(layout: Layout, folder: Path, micro_batch: int) -> SuspendedTrainer | str:
    """Room on disk for a trainer's state, or why there is none. Blocks."""
    needed = suspended_bytes(layout)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < needed + ROOM_LEFT_BYTES:
            return f"its state takes {mib(needed)} and the disk has {mib(free)} left"
        return SuspendedTrainer.make(layout, folder, micro_batch)
    except (OSError, MemoryError) as error:
        return f"its state cannot be written: {error}"


class Gate:
    """Many pass at a time, or one closes it: what is inside has left by then, others wait."""

    def __init__(self) -> None:
        self._inside = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """While it is open."""
        await self._until_open()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._tell()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Alone."""
        await self._until_open()
        self._is_closed = True
        try:
            while self._inside:
                await self._changed.wait()
            yield
        finally:
            self._is_closed = False
            self._tell()

    async def _until_open(self) -> None:
        while self._is_closed:
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
