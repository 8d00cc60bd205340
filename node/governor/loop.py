"""The daemon's side of the governor: looks at the machine every second and passes on what follows.

Sensors are read on a thread of their own, for some of them block. Settings are read anew with every
few looks, so that a change counts without a restart.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from host.files.local_settings import Settings
from node.governor.disk_usage import tree_bytes
from node.governor.policy import Decision, Policy, TrainerFacts
from node.governor.sensors import Look, Seldom, Sensors
from protocol.errors import UserError

LOOK_S: Final = 1.0
SETTINGS_EVERY_S: Final = 2.0
FILES_EVERY_S: Final = 30.0
RATE_LOOKS: Final = 10
"""Rates are means over so many looks."""


@dataclass(slots=True)
class GovernorLoop:
    """Behaves on one machine, for one learner."""

    load: Callable[[], Settings]
    """The settings in force; UserError if they cannot be read."""
    trainer: Callable[[], TrainerFacts]
    obey: Callable[[Decision], None]
    """Carries a decision out; called on the event loop after every look."""
    notice: Callable[[str], None]
    traffic: Callable[[], tuple[int, int]]
    """Bytes sent and received so far."""
    begins_with: Settings | None = None
    """Where the first may be unreadable; None: `load` is asked at once."""
    folders: Iterable[Path] = ()
    """Where files are kept."""
    nameless_bytes: Callable[[], int] = lambda: 0
    """In files that lie in no folder any more."""
    policy: Policy = field(init=False)
    look: Look | None = None
    """The newest one."""
    decision: Decision | None = None
    disk_bytes: int = 0
    _traffic: deque[tuple[float, int, int]] = field(
        default_factory=lambda: deque(maxlen=RATE_LOOKS)
    )
    _sensors: Sensors | None = None
    _trouble: str = ""

    def __post_init__(self) -> None:
        self.policy = Policy(self.begins_with or self.load(), cores=os.cpu_count() or 1)

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self.policy.settings

    @property
    def rates(self) -> tuple[float, float]:
        """Bytes per second sent and received lately."""
        if len(self._traffic) < 2:
            return 0.0, 0.0
        (from_s, up, down), (to_s, up_now, down_now) = self._traffic[0], self._traffic[-1]
        seconds = max(to_s - from_s, 1e-3)
        return (up_now - up) / seconds, (down_now - down) / seconds

    async def run(self) -> None:
        """Looks and decides until it is cancelled."""
        loop = asyncio.get_running_loop()
        settings = Seldom(self._reload, SETTINGS_EVERY_S, loop.time)
        files = Seldom(self._file_bytes, FILES_EVERY_S, loop.time)
        with ThreadPoolExecutor(1, thread_name_prefix="sensors") as pool:
            while True:
                settings.get()
                facts = self.trainer()
                self.look = await loop.run_in_executor(pool, self._look, facts)
                if self.settings.limits.disk_bytes_max is not None:
                    self.disk_bytes, _ = await loop.run_in_executor(pool, files.get)
                self.decision = self.policy.decide(self.look, facts, self.disk_bytes)
                self._traffic.append((loop.time(), *self.traffic()))
                self.obey(self.decision)
                await asyncio.sleep(LOOK_S)

    def _file_bytes(self) -> int:
        return tree_bytes(self.folders) + self.nameless_bytes()

    def _look(self, facts: TrainerFacts) -> Look:
        if self._sensors is None:
            self._sensors = Sensors()  # Loads the drivers' libraries.
        return self._sensors.read(
            apps=self.settings.when.busy_programs,
            wants_owner=self.policy.wants_owner,
            trainer_pid=facts.pid,
            device=facts.device,
        )

    def _reload(self) -> None:
        """Takes up what the owner changed; what cannot be read leaves the former in force."""
        try:
            settings = self.load()
        except UserError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.notice(f"{error} The previous settings stay in force.")
            return
        self._trouble = ""
        if settings != self.settings:
            self.policy.change(settings)
