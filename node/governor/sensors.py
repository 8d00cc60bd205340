"""The machine's sensors, read together: processor, memory, battery, heat, programs, its owner.

Everything here blocks a little and some of it for seconds, so it runs on a thread of its own. What
changes slowly or costs much is read less often. Readings that this machine does not give are named.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

import psutil

from node.governor import owner_input
from node.governor.accelerators import Amd, DeviceReading, Nvidia
from node.governor.governor import Reading
from node.governor.owner_input import OwnerInput
from node.governor.process_usage import Own, OwnProcesses

PROGRAMS_EVERY_S: Final = 5.0
OWNER_EVERY_S: Final = 3.0

_PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")

T = TypeVar("T")


class Seldom(Generic[T]):
    """An answer that is asked for anew only after a while."""

    def __init__(self, ask: Callable[[], T], every_s: float, clock: Callable[[], float]) -> None:
        self._ask, self._every_s, self._clock = ask, every_s, clock
        self._kept: tuple[float, T] | None = None

    def get(self) -> tuple[T, float]:
        """The answer, and how many seconds ago it was given."""
        now_s = self._clock()
        if self._kept is None or now_s - self._kept[0] >= self._every_s:
            self._kept = now_s, self._ask()
        asked_s, answer = self._kept
        return answer, now_s - asked_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything at one moment."""

    reading: Reading
    devices: tuple[DeviceReading, ...]
    own: Own
    at_s: float
    """Monotonic."""
    absent: tuple[str, ...]
    """Readings that this machine does not give, and why."""
    owner: str
    """How the owner's input is known, or why not."""


class Sensors:
    """Reads one machine; for one thread at a time."""

    def __init__(
        self,
        *,
        nvidia: Nvidia | None = None,
        amd: Amd | None = None,
        owner: Callable[[], OwnerInput] = owner_input.look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvidia = nvidia or Nvidia()
        self._amd = amd or Amd()
        self._clock = clock
        self._own = OwnProcesses(clock)
        self._owner = Seldom(owner, OWNER_EVERY_S, clock)
        self._programs = Seldom(_programs, PROGRAMS_EVERY_S, clock)
        psutil.cpu_percent()  # The first answer is void: it measures from here.

    def read(
        self,
        *,
        apps: Iterable[str] = (),
        wants_owner: bool = False,
        trainer_pid: int | None = None,
        device: str = "",
    ) -> Look:
        """One look. apps: names of programs to look for. device: the trainer's, for its heat."""
        now_s, wall = self._clock(), datetime.now()
        memory, heat, battery = psutil.virtual_memory(), _processor_heat(), _battery()
        processor = DeviceReading(
            device="cpu",
            model=f"{os.cpu_count() or 1} cores",
            temperature_c=heat,
            busy_frac=psutil.cpu_percent() / 100.0,
            memory_used_bytes=memory.total - memory.available,
            memory_bytes=memory.total,
        )
        devices = (processor, *self._nvidia.read(), *self._amd.read())
        hot = _hottest(devices, device)
        owner, idle_s = OwnerInput(None, "not asked: no setting depends on it"), None
        if wants_owner:
            owner, ago_s = self._owner.get()
            idle_s = None if owner.idle_s is None else owner.idle_s + ago_s
        wanted = {one.lower(): one for one in apps}
        running = self._programs.get()[0] if wanted else frozenset()
        return Look(
            reading=Reading(
                weekday=wall.weekday(),
                minute=60 * wall.hour + wall.minute,
                on_battery=battery,
                owner_idle_s=idle_s,
                temperature_c=hot.temperature_c if hot else None,
                hottest="" if hot is None else "the processor" if hot is processor else hot.device,
                apps=frozenset(name for low, name in wanted.items() if low in running),
                memory_free_bytes=memory.available,
            ),
            devices=devices,
            own=self._own.look(trainer_pid),
            at_s=now_s,
            absent=tuple(self._absent(heat, battery, owner)),
            owner=owner.way,
        )

    def _absent(self, heat: float | None, battery: bool | None, owner: OwnerInput) -> Iterable[str]:
        """What this machine does not tell, in words."""
        yield from (one.absence for one in (self._nvidia, self._amd) if one.absence)
        if sys.platform == "darwin":
            yield "Apple: only root can read the accelerator's temperature and load"
        if heat is None:
            yield "processor temperature: the kernel names no sensor"
        if battery is None:
            yield "battery: there is none"
        if owner.idle_s is None:
            yield f"owner's input: {owner.way}"


def _processor_heat() -> float | None:
    """The hottest sensor of the processor; where none is named so, of the board."""
    read = getattr(psutil, "sensors_temperatures", None)
    chips = read() if read is not None else {}
    named = [one for chip in _PROCESSOR_CHIPS for one in chips.get(chip, ())]
    found = named or chips.get("acpitz", [])
    return max((float(one.current) for one in found), default=None)


def _battery() -> bool | None:
    """Whether the machine runs on battery; None where there is none."""
    read = getattr(psutil, "sensors_battery", None)
    state = read() if read is not None else None
    return None if state is None or state.power_plugged is None else not state.power_plugged


def _hottest(devices: tuple[DeviceReading, ...], used: str) -> DeviceReading | None:
    """The hottest of the processor and the trainer's devices; None without a reading."""
    names = {"cpu", *(f"{one}:0" if one == "cuda" else one for one in used.split(","))}
    found = [one for one in devices if one.temperature_c is not None and one.device in names]
    return max(found, key=lambda one: one.temperature_c or 0.0, default=None)


def _programs() -> frozenset[str]:
    """Names of all programs that run, in small letters."""
    names = set()
    for process in psutil.process_iter(["name"]):
        name = (process.info["name"] or "").lower()
        names |= {name, name.removesuffix(".exe")}
    return frozenset(names)
