"""What the owner of this machine allows, carried out on a running learner."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from host.files.mapped_arrays import MappedArrays
from host.options import NodeOptions
from host.transport import Transport
from node.governor.budget import Allowance
from node.governor.loop import GovernorLoop
from node.governor.policy import Decision, TrainerFacts
from node.governor.process_usage import OwnProcesses
from node.machine.jobs import CeilingChanged, Governed, MemoryShort
from node.machine.trainer_control import TrainerControl
from node.trainer_client.client import TrainerPort


@dataclass(eq=False)
class OwnerLimits:
    """Tells the governor of the trainer and carries out what it decides."""

    options: NodeOptions
    transport: Transport
    trainer: TrainerPort
    trainer_control: TrainerControl
    mapped: MappedArrays | None
    governor: GovernorLoop = field(init=False)
    _ceiling: int | None = field(init=False)

    def __post_init__(self) -> None:
        traffic = self.transport.traffic
        self.governor = GovernorLoop(
            load=self.options.settings.read,
            begins_with=self.options.settings(),
            trainer=self._facts,
            obey=self._obey,
            notice=self.trainer.notice,
            traffic=lambda: (traffic.up_bytes, traffic.down_bytes),
            folders=self.options.home.kept_by_learners(),
            nameless_bytes=lambda: self.mapped.bytes if self.mapped else 0,
        )
        self._ceiling = self.ram_ceiling()

    def disk_room(self) -> int | None:
        """Bytes of files that a suspended trainer may take; None for whatever the disk has."""
        ceiling = self.governor.settings.limits.disk_bytes_max
        return None if ceiling is None else max(0, ceiling - self.governor.disk_bytes)

    def ram_ceiling(self) -> int | None:
        """Bytes of memory that everything here may hold; None for no limit."""
        return self.governor.settings.limits.ram_bytes_max

    def ram_room(self) -> int | None:
        """Bytes of memory that a new trainer may hold beside what runs now; None for no limit."""
        ceiling = self.governor.settings.limits.ram_bytes_max
        if ceiling is None:
            return None
        # Looked at anew: the last look may have seen a trainer that has ended since.
        return max(0, ceiling - OwnProcesses().look(None).memory_bytes)

    def _facts(self) -> TrainerFacts:
        ready, control = self.trainer.ready, self.trainer_control
        return TrainerFacts(
            device=control.device,
            pid=self.trainer.pid,
            micro_batch=ready.micro_batch if ready else None,
            is_stepping=control.state == "training",
        )

    def _obey(self, decision: Decision) -> None:
        """Hold or release the inner loop, and set how much it may take."""
        ruling = decision.ruling
        because = ruling.because if ruling.is_paused else ""
        if because != self.trainer_control.held_because:
            self.trainer.note(Governed(because))
        if decision.wants_smaller:
            self.trainer.note(MemoryShort(decision.wants_smaller))
        if self._ceiling != (ceiling := self.ram_ceiling()):
            self._ceiling = ceiling
            self.trainer.note(CeilingChanged())
        self.trainer.set_duty(decision.duty_frac)
        self._shape(decision.allowed)
        if self.mapped is not None:
            self.mapped.relax()
        self.transport.relay.limit(self.governor.settings.network.relay_bytes_per_s)

    def _shape(self, allowed: Allowance) -> None:
        """Keep everything that is sent and received to what is allowed."""
        rates, traffic = self.transport.rate_limiter, self.transport.traffic
        now_s = asyncio.get_running_loop().time()
        rates.limit(allowed.up_bytes_per_s, allowed.down_bytes_per_s)
        rates.up.book(traffic.up_bytes, now_s)
        rates.down.book(traffic.down_bytes, now_s)
