"""Suspending a running trainer, and waking a suspended one, step by step.

Nothing is lost on the way: until the suspended state is complete the trainer has it, and until the
woken trainer has it the files do.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.machine.jobs import NotRestored, TrainerLost, TrainerReady, TrainerSuspended, WakeTrainer
from node.trainer.link import messages
from node.trainer_client.suspended_trainer import ROOM_LEFT_BYTES, SuspendedTrainer, suspended_bytes
from protocol.errors import TransientError
from protocol.machine import Failed, JobResult
from protocol.project import InnerSpec

if TYPE_CHECKING:
    from node.trainer_client.client import TrainerPort

END_S: Final = 1.0
"""A trainer that has answered `Suspended` has nothing left to do but to end."""


async def suspend(port: TrainerPort, folder: Path, bytes_max: int | None) -> JobResult:
    """The trainer ends, its state is in files; or it holds, and the answer says why it is there.

    bytes_max: what the files may take, None for whatever the disk has.
    """
    process = port.live()
    process.send(messages.Pause())
    port.clock.pause()
    needed = suspended_bytes(port.bank.layout)
    if bytes_max is not None and needed > bytes_max:
        return Failed(f"its state takes {_mib(needed)} and limits.disk_bytes_max leaves too little")
    async with port.gate.closed():
        micro_batch = port.ready.micro_batch if port.ready else 1
        make = partial(_make, port, folder, micro_batch, needed)
        suspended = await port.in_pool(make)
        if not isinstance(suspended, SuspendedTrainer):
            return Failed(suspended)
        if not process.is_running:
            suspended.close()
            return Failed("the trainer ended")
        port.suspended = suspended
        try:
            answers = _ask_for_everything(port, suspended)
            process.expect_end()
            *done, last = [await answer for answer in answers]
            if isinstance(last, messages.Suspended) and all(
                isinstance(one, messages.Done) for one in done
            ):
                suspended.state = last.state
        finally:
            if suspended.state is None:
                port.suspended = None
                suspended.close()
        await process.stop(END_S)
        if suspended.state is None:
            port.note(TrainerLost(False, "it ended while it was being suspended"))
            return Failed("the trainer ended")
    return TrainerSuspended()


async def wake(port: TrainerPort, job: WakeTrainer, inner: InnerSpec) -> JobResult:
    """A new trainer goes on where the suspended one stood; or the state stays where it is."""
    suspended = port.suspended
    if suspended is None or suspended.state is None:
        return TrainerLost(False, "its suspended state is gone")
    result = await port.launch(job.micro_batch or suspended.micro_batch, inner)
    if not isinstance(result, TrainerReady):
        return result
    async with port.gate.closed():
        if port.suspended is not suspended:
            return TrainerLost(False, "its suspended state is gone")
        if not await _is_restored(port, suspended, suspended.state):
            ended = port.ended
            if ended is not None and ended.oom:
                return Failed(ended.message)  # No fault of the state.
            return NotRestored("the trainer ended before it had its state")
        port.suspended = None
        process = port.live()
        for span in suspended.fed:
            process.send(messages.Blocks(((span.start, span.stop),), span.skip))
        if port.progress is not None:
            process.send(messages.SetProgress(port.progress))
        suspended.close()
    port.clock.go_on()
    return result


async def _is_restored(
    port: TrainerPort, suspended: SuspendedTrainer, state: messages.LoopState
) -> bool:
    """Whether the trainer took up all of it."""
    try:
        done = await asyncio.gather(*_give_everything(port, suspended, state))
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
    port: TrainerPort, suspended: SuspendedTrainer
) -> list[Awaitable[messages.Event]]:
    process = port.live()
    answers = []
    for kind, slots in (
        (messages.Snapshot, suspended.theta),
        (messages.CaptureMoments, suspended.moments),
    ):
        for fragment, slot in enumerate(slots):
            lent = process.lend(slot)
            answers.append(
                port.ask(partial(kind, fragment=fragment, slot=lent.identity, numel=lent.numel))
            )
    return [*answers, port.ask(messages.Suspend)]


def _give_everything(
    port: TrainerPort, suspended: SuspendedTrainer, state: messages.LoopState
) -> list[Awaitable[messages.Event]]:
    process = port.live()
    answers = []
    for kind, slots in (
        (messages.Assign, suspended.theta),
        (messages.InstallMoments, suspended.moments),
    ):
        for fragment, slot in enumerate(slots):
            lent = process.lend(slot)
            answers.append(
                port.ask(partial(kind, fragment=fragment, slot=lent.identity, numel=lent.numel))
            )
    return [*answers, port.ask(lambda number: messages.Restore(number, state))]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
