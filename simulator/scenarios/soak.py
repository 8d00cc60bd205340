"""A day of an owner who cannot decide, and what the daemons' own machines hold afterwards.

Two learners and a syncer in virtual time. The first learner's daemon lives through all of it, the
second's is killed now and then. Owners pause, resume, pause for a while; batteries, hot processors,
programs and hours of the week hold local steps through the real politeness; trainers are killed,
run out of memory, and streams break. At the end of every hour everybody trains in peace for a
while, and then what can be reached from the machines, banks and shelves is counted: whatever grows
from hour to hour grows for ever in a daemon that stays installed.
"""

from __future__ import annotations

import gc
import random
import sys
import types
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from host.files.local_settings import LimitSettings, Settings, WhenSettings
from node.governor.accelerators import DeviceReading
from node.governor.governor import Reading
from node.governor.policy import Policy, TrainerFacts
from node.governor.process_usage import Own
from node.governor.sensors import Look
from node.machine.jobs import Governed, PauseAsked, ResumeAsked
from protocol.machine import Note
from protocol.project import LimitSpec
from protocol.trace import PushSettled
from simulator.hosts.learner import SimLearner
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.virtual.world import Host, World

HOUR_S: Final = 3600.0
LOOK_S: Final = 5.0
"""Between two looks of the politeness; daemons look every second."""

CALM_S: Final = 600.0
"""At the end of each hour, so that what is counted is the same moment of every hour."""

STEPS_S: Final = (3.0, 4.0)
EVALUATE_EVERY: Final = 5
"""Often enough for the curve to be full, and thinned, within half a day."""

TOKENS_MAX: Final = 10**12
SETTINGS: Final = Settings(
    when=WhenSettings(
        hours=("mon-sun 00:00-23:50",), busy_programs=("game",), temperature_c_max=80.0
    ),
    limits=LimitSettings(cpu_percent=60.0, ram_free_bytes_min=1 << 30),
)


class Owner:
    """One person, their machine's sensors, and what they do to a learner, drawn from a seed."""

    def __init__(self, host: SimLearner, seed: int) -> None:
        self.host = host
        self.chance = random.Random(f"owner {host.name} {seed}")
        self.policy = Policy(SETTINGS, cores=2)
        self.counts: Counter[str] = Counter()
        self._because = ""
        self._held: dict[str, float] = {}
        """Causes that the sensors show, and until when."""

    def begin(self) -> None:
        self._look()

    def hour(self, begins_s: float) -> None:
        """Plans what happens until the calm at the end of the hour that begins then."""
        world, chance = self.host.world, self.chance
        for _ in range(chance.randrange(6, 14)):
            world.at(begins_s + chance.uniform(0.0, HOUR_S - CALM_S), self._something)
        world.at(begins_s + HOUR_S - CALM_S, self.relent)

    def relent(self) -> None:
        """Nothing is in the way any more, and nothing is switched off."""
        self._held.clear()
        self.host.revive()
        self.host.take(Note(ResumeAsked()))

    def _something(self) -> None:
        doing = self.chance.choice(
            ("pause", "pause a while", "resume", "game", "battery", "heat", "kill-trainer", "oom")
        )
        self.counts[doing] += 1
        host, world = self.host, self.host.world
        match doing:
            case "pause":
                host.take(Note(PauseAsked(None)))
            case "pause a while":
                host.take(Note(PauseAsked(self.chance.uniform(1.0, 900.0))))
            case "resume":
                host.take(Note(ResumeAsked()))
            case "kill-trainer" | "oom":
                host.lose_trainer(is_out_of_memory=doing == "oom")
            case _:
                self._held[doing] = world.now_s + self.chance.uniform(5.0, 400.0)

    def _look(self) -> None:
        world = self.host.world
        world.after(LOOK_S, self._look)
        if not self.host.is_up:
            self._because = ""
            return
        decision = self.policy.decide(self._reading(world), self._facts(), 0)
        because = decision.ruling.because if decision.ruling.is_paused else ""
        if because != self._because:
            self._because = because
            self.host.take(Note(Governed(because)))

    def _reading(self, world: World) -> Look:
        now_s = world.now_s
        shown = {cause for cause, until_s in self._held.items() if until_s > now_s}
        minute = int(now_s // 60)
        return Look(
            reading=Reading(
                weekday=minute // 1440 % 7,
                minute=minute % 1440,
                on_battery="battery" in shown,
                temperature_c=90.0 if "heat" in shown else 50.0,
                apps=frozenset({"game"} & shown),
                memory_free_bytes=8 << 30,
            ),
            devices=(DeviceReading(device="cpu", model="virtual"),),
            own=Own(cpu_s=now_s / 2, trainer_cpu_s=now_s / 4, memory_bytes=1 << 28),
            at_s=now_s,
            absent=(),
            owner="X11",
        )

    def _facts(self) -> TrainerFacts:
        trainer_control = self.host.learner.trainer_control
        return TrainerFacts(
            device=trainer_control.device, is_stepping=trainer_control.state == "training"
        )


@dataclass(frozen=True, slots=True)
class Held:
    """What can be reached from the parts of one daemon at the end of an hour."""

    objects: int
    total_bytes: int
    by_type: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Hour:
    """One hour of the soak."""

    number: int
    merges: int
    held: dict[str, Held]
    """By host."""
    life: dict[str, int]
    """How often each host was started."""


class Soak:
    """Runs hour after hour."""

    def __init__(self, seed: int, *, steps_s: tuple[float, float] = STEPS_S) -> None:
        limits = LimitSpec(TOKENS_MAX, 256, EVALUATE_EVERY, 8, 60.0, 64)
        self.swarm: Swarm = build_swarm(seed, steps_s=steps_s, limits=limits)
        self.chance = random.Random(f"soak {seed}")
        self.owners = [Owner(host, seed) for host in self.swarm.learners]
        self.hours: list[Hour] = []
        for owner in self.owners:
            owner.begin()

    def run_hour(self) -> Hour:
        """The next hour, and what is held at its end."""
        swarm, world, chance = self.swarm, self.swarm.world, self.chance
        number = len(self.hours)
        begins_s = number * HOUR_S
        for owner in self.owners:
            owner.hour(begins_s)
        second, syncer = swarm.learners[1], swarm.syncers[0]
        for _ in range(5):
            at_s = begins_s + chance.uniform(0.0, HOUR_S - 2 * CALM_S)
            world.at(at_s, second.crash)
            world.at(at_s + chance.uniform(1.0, 120.0), second.revive)
        broken = chance.choice(swarm.learners)
        at_s = begins_s + chance.uniform(0.0, HOUR_S - 2 * CALM_S)
        world.at(at_s, lambda: world.partition(broken.key, syncer.key, for_s=20.0))
        world.run(begins_s + HOUR_S)
        # The simulator's own memory, of no use here but for what the accounts are compared with.
        world.facts[:] = [one for one in world.facts if isinstance(one[2], PushSettled)]
        hosts: dict[str, list[object]] = {
            "syncer": [syncer.machine, syncer.bank, syncer.blob_store]
        }
        for owner in self.owners:
            host = owner.host
            hosts[host.name] = [host.learner, host.bank, host.blob_store, owner.policy]
        everybody: list[Host] = [swarm.syncers[0], *swarm.learners]
        hour = Hour(
            number=number + 1,
            merges=swarm.merges,
            held={name: held_by(roots) for name, roots in hosts.items()},
            life={host.name: host.life for host in everybody},
        )
        self.hours.append(hour)
        return hour


NOT_OURS: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.MethodType,
    types.FrameType,
)
"""Shared by the whole program, or a way out of the parts that are counted."""


def held_by(roots: Iterable[object]) -> Held:
    """Every object that can be reached from `roots`, but for code and the simulator's own."""
    seen: set[int] = set()
    waiting = list(roots)
    kinds: Counter[str] = Counter()
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, NOT_OURS):
            continue
        kind = type(one)
        if kind.__module__.startswith("simulator."):
            continue
        seen.add(id(one))
        kinds[f"{kind.__module__}.{kind.__qualname__}"] += 1
        total += one.nbytes if isinstance(one, np.ndarray) else sys.getsizeof(one)
        waiting.extend(gc.get_referents(one))
        if isinstance(one, dict):
            waiting.extend(one)  # Keys that are text are no referents of a dictionary.
    return Held(len(seen), total, dict(kinds))


def grown(hours: list[Hour], host: str) -> list[tuple[str, float]]:
    """Types of which a host holds more and more, and by how many an hour; the fastest first.

    A type counts if there are more of it in every hour of the last third than in any of the third
    before, by more than one an hour and a fiftieth: what is kept of late comes and goes.
    """
    third = len(hours) // 3
    late, before = hours[-third:], hours[-2 * third : -third]
    found = []
    for kind in {kind for hour in late for kind in hour.held[host].by_type}:
        now, then = (
            [hour.held[host].by_type.get(kind, 0) for hour in part] for part in (late, before)
        )
        per_hour = (float(np.median(now)) - float(np.median(then))) / third
        if min(now) > max(then) and per_hour > 1.0 and np.median(now) > 1.02 * np.median(then):
            found.append((kind, per_hour))
    return sorted(found, key=lambda one: -one[1])
