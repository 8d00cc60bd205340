"""What the owner of this machine allows, carried out on a running learner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from host.transport import Transport
from node.governor.budget import Allowance
from node.governor.loop import GovernorLoop
from node.governor.policy import Decision, TrainerFacts
from node.governor.process_usage import OwnProcesses
from node.machine.jobs import (
    Governed,
    MemoryShort,
    StartTrainer,
    SuspendTrainer,
    TrainerReady,
    WakeTrainer,
)
from node.trainer_client.suspend import suspend, wake
from protocol.machine import JobResult, Note

if TYPE_CHECKING:
    from node.daemon.learner_daemon import LearnerDaemon


def guest_of(daemon: LearnerDaemon) -> GovernorLoop:
    """The part of the daemon that looks after this machine; its machine must exist."""
    options, traffic = daemon.options, daemon.transport.traffic
    return GovernorLoop(
        load=options.settings,
        trainer=lambda: trainer_facts(daemon),
        obey=lambda decision: obey(daemon, decision),
        notice=daemon.notice,
        traffic=lambda: (traffic.up_bytes, traffic.down_bytes),
        folders=options.home.kept_by_learners(),
    )


def trainer_facts(daemon: LearnerDaemon) -> TrainerFacts:
    """What politeness has to know of the trainer."""
    ready, trainer_control = daemon.trainer.ready, daemon.machine.trainer_control
    return TrainerFacts(
        device=trainer_control.device,
        pid=daemon.trainer.pid,
        micro_batch=ready.micro_batch if ready else None,
        is_stepping=trainer_control.state == "training",
    )


def obey(daemon: LearnerDaemon, decision: Decision) -> None:
    """Hold or release the inner loop, and set how much it may take."""
    ruling = decision.ruling
    because = ruling.because if ruling.is_paused else ""
    if because != daemon.machine.trainer_control.held_because:
        daemon.driver.take(Note(Governed(because)))
    if decision.wants_smaller:
        daemon.driver.take(Note(MemoryShort(decision.wants_smaller)))
    daemon.trainer.set_duty(decision.duty_frac)
    _shape(daemon.transport, decision.allowed)
    daemon.transport.relay.limit(daemon.guest.settings.network.relay_bytes_per_s)


def _shape(transport: Transport, allowed: Allowance) -> None:
    """Keep everything that is sent and received to what is allowed."""
    rate_limiter, traffic, now_s = (
        transport.rate_limiter,
        transport.traffic,
        asyncio.get_running_loop().time(),
    )
    rate_limiter.limit(allowed.up_bytes_per_s, allowed.down_bytes_per_s)
    rate_limiter.up.book(traffic.up_bytes, now_s)
    rate_limiter.down.book(traffic.down_bytes, now_s)


async def trainer_job(
    daemon: LearnerDaemon, job: StartTrainer | SuspendTrainer | WakeTrainer
) -> JobResult:
    """Start a trainer, free its memory, or let it go on where it stood."""
    charter = daemon.machine.context.charter
    assert charter is not None, "a trainer runs under a charter"
    match job:
        case StartTrainer():
            ready = await daemon.trainer.start(job, charter.inner)
            if not isinstance(ready, TrainerReady):
                return ready
            return await daemon.parts.restore(ready, charter.inner)
        case SuspendTrainer():
            folder = daemon.options.home.suspended(daemon.options.instance)
            return await suspend(daemon.trainer, folder, suspend_room(daemon))
        case WakeTrainer():
            return await wake(daemon.trainer, job, charter.inner)


def suspend_room(daemon: LearnerDaemon) -> int | None:
    """Bytes of files that a suspended trainer may take; None for whatever the disk has."""
    ceiling = daemon.guest.settings.limits.disk_bytes_max
    return None if ceiling is None else max(0, ceiling - daemon.guest.disk_bytes)


def trainer_room(guest: GovernorLoop) -> int | None:
    """Bytes of memory that a new trainer may hold beside what runs now; None for no limit."""
    ceiling = guest.settings.limits.ram_bytes_max
    if ceiling is None:
        return None
    # Looked at anew: the last look may have seen a trainer that has ended since.
    return max(0, ceiling - OwnProcesses().look(None).memory_bytes)
