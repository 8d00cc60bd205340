"""Parking a running trainer, and waking a parked one, step by step.

Nothing is lost on the way: until the parked state is complete the trainer has it, and until the
woken trainer has it the files do.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.machine.jobs import NotRestored, TrainerLost, TrainerParked, TrainerReady, WakeTrainer
from node.trainer.link import messages
from node.trainer_client.suspended_trainer import ROOM_LEFT_BYTES, SuspendedTrainer, parked_bytes
from protocol.errors import TransientError
from protocol.machine import Failed, JobResult
from protocol.project import InnerSpec

if TYPE_CHECKING:
    from node.trainer_client.client import TrainerPort

END_S: Final = 1.0
"""A trainer that has answered `Parked` has nothing left to do but to end."""


async def park(port: TrainerPort, folder: Path, bytes_max: int | None) -> JobResult:
    """The trainer ends, its state is in files; or it holds, and the answer says why it is there.

    bytes_max: what the files may take, None for whatever the disk has.
    """
    process = port.live()
    process.send(messages.Pause())
    port.clock.pause()
    needed = parked_bytes(port.bank.layout)
    if bytes_max is not None and needed > bytes_max:
        return Failed(f"its state takes {_mib(needed)} and limits.disk_bytes_max leaves too little")
    async with port.gate.closed():
        micro_batch = port.ready.micro_batch if port.ready else 1
        make = partial(_make, port, folder, micro_batch, needed)
        parked = await port.in_pool(make)
        if not isinstance(parked, SuspendedTrainer):
            return Failed(parked)
        if not process.is_running:
            parked.close()
            return Failed("the trainer ended")
        port.parked = parked
        try:
            answers = _ask_for_everything(port, parked)
            process.expect_end()
            *done, last = [await answer for answer in answers]
            if isinstance(last, messages.Parked) and all(
                isinstance(one, messages.Done) for one in done
            ):
                parked.state = last.state
        finally:
            if parked.state is None:
                port.parked = None
                parked.close()
        await process.stop(END_S)
        if parked.state is None:
            port.note(TrainerLost(False, "it ended while it was being parked"))
            return Failed("the trainer ended")
    return TrainerParked()


async def wake(port: TrainerPort, job: WakeTrainer, inner: InnerSpec) -> JobResult:
    """A new trainer goes on where the parked one stood; or the state stays where it is."""
    parked = port.parked
    if parked is None or parked.state is None:
        return TrainerLost(False, "its parked state is gone")
    result = await port.launch(job.micro_batch or parked.micro_batch, inner)
    if not isinstance(result, TrainerReady):
        return result
    async with port.gate.closed():
        if port.parked is not parked:
            return TrainerLost(False, "its parked state is gone")
        if not await _is_restored(port, parked, parked.state):
            ended = port.ended
            if ended is not None and ended.oom:
                return Failed(ended.message)  # No fault of the state.
            return NotRestored("the trainer ended before it had its state")
        port.parked = None
        process = port.live()
        for span in parked.fed:
            process.send(messages.Blocks(((span.start, span.stop),), span.skip))
        if port.progress is not None:
            process.send(messages.SetProgress(port.progress))
        parked.close()
    port.clock.go_on()
    return result


async def _is_restored(
    port: TrainerPort, parked: SuspendedTrainer, state: messages.LoopState
) -> bool:
    """Whether the trainer took up all of it."""
    try:
        done = await asyncio.gather(*_give_everything(port, parked, state))
    except TransientError:
        return False  # It ended in the middle of being told.
    return all(isinstance(one, messages.Done) for one in done)


def _make(port: TrainerPort, folder: Path, micro_batch: int, needed: int) -> SuspendedTrainer | str:
    """Room on disk, or why there is none."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < needed + ROOM_LEFT_BYTES:
            return f"its state takes {_mib(needed)} and the disk has {_mib(free)} left"
        return SuspendedTrainer.make(port.bank.layout, folder, micro_batch)
    except (OSError, MemoryError) as error:
        return f"its state cannot be written: {error}"


def _ask_for_everything(
    port: TrainerPort, parked: SuspendedTrainer
) -> list[Awaitable[messages.Event]]:
    process = port.live()
    answers = []
    for kind, slots in (
        (messages.Snapshot, parked.theta),
        (messages.CaptureMoments, parked.moments),
    ):
        for fragment, slot in enumerate(slots):
            lent = process.lend(slot)
            answers.append(
                port.ask(partial(kind, fragment=fragment, slot=lent.identity, numel=lent.numel))
            )
    return [*answers, port.ask(messages.Park)]


def _give_everything(
    port: TrainerPort, parked: SuspendedTrainer, state: messages.LoopState
) -> list[Awaitable[messages.Event]]:
    process = port.live()
    answers = []
    for kind, slots in ((messages.Assign, parked.theta), (messages.InstallMoments, parked.moments)):
        for fragment, slot in enumerate(slots):
            lent = process.lend(slot)
            answers.append(
                port.ask(partial(kind, fragment=fragment, slot=lent.identity, numel=lent.numel))
            )
    return [*answers, port.ask(lambda number: messages.Restore(number, state))]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
