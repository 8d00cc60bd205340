"""Tapes of simulated syncers, written at once and in the simulation's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from host.tape.tape_file import TapeLabel, TapeWriter
from protocol.tape import Frame, Role
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import SimSyncer


@dataclass(slots=True)
class Direct:
    """Writes at once."""

    writer: TapeWriter
    stopped: str = ""

    @property
    def is_running(self) -> bool:
        return not self.stopped

    @property
    def state_every_bytes(self) -> int:
        return self.writer.state_every_bytes

    def put(self, frame: Callable[[], Frame], size: int, *, is_urgent: bool = False) -> None:
        self.writer.put(frame())

    def stop(self, reason: str) -> None:
        self.stopped = reason


class SwarmTape:
    """The tapes of a swarm: a folder for each host, files for each of its lives."""

    def __init__(self, folder: Path, *, mib_max: int = 1024) -> None:
        """mib_max: what the tape of one host may take."""
        self.folder = folder
        self.mib_max = mib_max
        self._made: list[Direct] = []

    def of(self, host: SimSyncer | SimLearner) -> Direct:
        """The tape of the life that this host begins."""
        role: Role = "syncer" if isinstance(host, SimSyncer) else "learner"
        label = TapeLabel(host.tiny.project, role, host.key, host.name, "simulated")
        life = host.life.to_bytes(8, "big")
        wall_s = 1.0 + host.world.now_s
        folder = self.folder / host.name
        writer = TapeWriter(folder, label, life, mib_max=self.mib_max, wall_s=wall_s)
        self._made.append(Direct(writer))
        return self._made[-1]

    def close(self) -> str:
        """End all of them; why one had stopped before, else nothing."""
        for sink in self._made:
            sink.writer.close(sink.stopped)
        return next((sink.stopped for sink in self._made if sink.stopped), "")
