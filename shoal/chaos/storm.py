"""Everything at once, at random: `shoal demo --chaos storm`.

Bouts of blows, several in force together, on any process but one learner; after each bout all must
be well again before the next begins. The seed fixes the order of blows, not what real processes
make of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from shoal.chaos.faults import LOOK_S, disk_full, each_engine, engine_held
from shoal.chaos.project import EVALUATOR, LEARNERS, SYNCERS
from shoal.chaos.swarm import ChaosSwarm
from shoal.local_swarm.processes import is_alive
from tui.text import fmt

BOUT_S: Final = 25.0
BLOW_EVERY_S: Final = 3.0
"""Mean time between two blows of a bout."""

HELD_S: Final = (1.0, 15.0)
"""How long what is held is held, and what was killed stays away."""

RESTED_S: Final = 60.0
"""All must be well again this long after a bout."""

RESERVE_S: Final = 150.0
"""Kept for the end of the last bout and for the verdict."""

LEADER_SHARE: Final = 0.3
TARGETS: Final = (*SYNCERS, *(name for name in LEARNERS if name != EVALUATOR))


class Fault(NamedTuple):
    """Something that is broken until it is healed."""

    name: str
    ends_s: float
    heal: Callable[[], None]


class Blow(NamedTuple):
    """One way to do harm. `strike` returns what undoes it."""

    what: str
    strike: Callable[[ChaosSwarm, str, random.Random], Callable[[], None]]
    targets: Sequence[str] = TARGETS
    needs_answer: bool = False
    """Whether it is for daemons that are up. A limit on the length of files, unlike a full disk,
    takes even semaphores from a program that starts."""


def storm(swarm: ChaosSwarm, seed: int) -> None:
    """Bout after bout until the demo's time is nearly over.

    It ends early when all was not well in time after a bout: then that is the verdict.
    """
    rng = random.Random(seed)
    ends_s = swarm.ends_s - RESERVE_S
    bouts, blows, slowest_s, is_well = 0, 0, 0.0, True
    while is_well and time.monotonic() < ends_s:
        bouts += 1
        swarm.screen.tell(f"bout {bouts}", style="bold")
        blows += Bout(swarm, rng).play(min(BOUT_S, ends_s - time.monotonic()))
        ended_s = time.monotonic()
        is_well = swarm.await_well(RESTED_S)
        slowest_s = max(slowest_s, (swarm.well_since_s or time.monotonic()) - ended_s)
        for name in SYNCERS:
            swarm.keep_in_mind(name)
    swarm.screen.tell(
        f"{fmt.plural(blows, 'blow')} in {fmt.plural(bouts, 'bout')}; after a bout all was "
        + (f"well within {slowest_s:.0f} s" if is_well else f"not well: {swarm.trouble()}"),
        style="bold",
    )


class Bout:
    """Some blows, whose faults may overlap; at the end everything is healed."""

    def __init__(self, swarm: ChaosSwarm, rng: random.Random) -> None:
        self._swarm = swarm
        self._rng = rng
        self._faults: list[Fault] = []
        self._is_damaged = False
        """Damage to the disks of two syncers of three may destroy what only they held."""

    def play(self, lasts_s: float) -> int:
        """The number of blows."""
        ends_s, next_s, blows = time.monotonic() + lasts_s, time.monotonic(), 0
        try:
            while time.monotonic() < ends_s:
                self._heal(time.monotonic())
                if time.monotonic() >= next_s:
                    next_s = time.monotonic() + self._rng.expovariate(1 / BLOW_EVERY_S)
                    blows += self._strike()
                self._swarm.go_on(0.5)
        finally:
            self._heal(float("inf"))
        return blows

    def _heal(self, by_s: float) -> None:
        over = [fault for fault in self._faults if fault.ends_s <= by_s]
        self._faults = [fault for fault in self._faults if fault.ends_s > by_s]
        for fault in over:
            fault.heal()

    def _strike(self) -> int:
        """One blow, or a massacre; the number of processes hit."""
        if self._rng.random() < 0.05:
            return sum(self._hit(name, _KILL) for name in SYNCERS)
        if self._rng.random() < 0.03:
            return sum(self._hit(name, _KILL) for name in TARGETS)
        return self._hit(self._target(), self._rng.choice(BLOWS))

    def _target(self) -> str:
        found = self._swarm.leader()
        if found is not None and self._rng.random() < LEADER_SHARE:
            return found[0]
        return self._rng.choice(TARGETS)

    def _hit(self, name: str, blow: Blow) -> bool:
        swarm = self._swarm
        is_free = all(fault.name != name for fault in self._faults) and name in swarm.running
        if not is_free or name not in blow.targets or (blow is _DAMAGE and self._is_damaged):
            return False
        if blow.needs_answer and swarm.ask(name) is None:
            return False
        self._is_damaged |= blow is _DAMAGE
        if name in SYNCERS:
            swarm.keep_in_mind(name)
        swarm.screen.tell(f"{swarm.called(name)}: {blow.what}", style="bold red")
        heal = blow.strike(swarm, name, self._rng)
        self._faults.append(Fault(name, time.monotonic() + self._rng.uniform(*HELD_S), heal))
        return True


# The blows.


def _start_again(swarm: ChaosSwarm, name: str) -> Callable[[], None]:
    return lambda: swarm.start_again(name)


def _kill(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    swarm.kill(name)
    return _start_again(swarm, name)


def _stop(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    process = swarm.process(name)
    swarm.stopped.add(name)
    swarm.cut.add(name)
    process.suspend()

    def go_on() -> None:
        swarm.screen.tell(f"{name} goes on")
        process.resume()
        swarm.stopped.discard(name)
        swarm.cut.discard(name)

    return go_on


def _hold(on_s: float, off_s: float) -> Callable[..., Callable[[], None]]:
    def strike(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
        held = ExitStack()
        if not on_s:
            swarm.cut.add(name)
        held.enter_context(engine_held(swarm.process(name), on_s=on_s, off_s=off_s))

        def release() -> None:
            swarm.screen.tell(f"the network engine of {name} goes on")
            held.close()
            swarm.cut.discard(name)

        return release

    return strike


def _kill_engine(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    each_engine(swarm.process(name), psutil.Process.kill)
    return _nothing


def _fill(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    held = ExitStack()
    held.enter_context(disk_full(swarm.process(name)))

    def free() -> None:
        swarm.screen.tell(f"{name} may write again")
        held.close()

    return free


def _damage(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    """One byte of one file of its store is another, while it is down."""
    swarm.kill(name)
    place = rng.choice(sorted(damageable(swarm.store(name))))
    at = rng.randrange(place.stat().st_size)
    with place.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ rng.randrange(1, 256)]))
    shown = place.relative_to(swarm.store(name))
    swarm.screen.tell(f"byte {at:,} of its {shown} is another one now", style="bold red")
    return _start_again(swarm, name)


def damageable(store: Path) -> Iterator[Path]:
    """The files of tensors and of the log in a syncer's store.

    A damaged ballot or name of the disk is for the project's owner to judge: those are left alone.
    """
    for pattern in ("payloads/*", "checkpoints/[0-9]*/*", "log*"):
        for path in store.glob(pattern):
            if path.is_file() and path.stat().st_size:
                yield path


def _kill_trainer(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    for trainer in _trainers(swarm, name):
        trainer.kill()
    return _nothing


def _stop_trainer(swarm: ChaosSwarm, name: str, rng: random.Random) -> Callable[[], None]:
    stopped = _trainers(swarm, name)
    for trainer in stopped:
        trainer.suspend()

    def go_on() -> None:
        for trainer in stopped:
            if is_alive(trainer):
                trainer.resume()

    return go_on


def _trainers(swarm: ChaosSwarm, name: str) -> list[psutil.Process]:
    """The trainer of this learner, if it has one just now."""
    status = swarm.learner(name)
    if status is None or status.trainer_pid is None or not psutil.pid_exists(status.trainer_pid):
        return []
    return [psutil.Process(status.trainer_pid)]


def _nothing() -> None:
    """It heals itself."""


_VICTIMS: Final = tuple(name for name in LEARNERS if name != EVALUATOR)
_KILL: Final = Blow("SIGKILL", _kill)
_DAMAGE: Final = Blow("SIGKILL, and a byte on its disk is changed", _damage, SYNCERS)
BLOWS: Final = (
    _KILL,
    _KILL,
    Blow("SIGSTOP", _stop),
    Blow("cut off: its network engine is stopped", _hold(0.0, LOOK_S)),
    Blow("slow: its network engine rests 350 of every 500 ms", _hold(0.15, 0.35)),
    Blow("its network engine is killed", _kill_engine),
    Blow("it can write no file", _fill, SYNCERS, needs_answer=True),
    _DAMAGE,
    Blow("its trainer is killed", _kill_trainer, _VICTIMS),
    Blow("its trainer is stopped", _stop_trainer, _VICTIMS),
)
