"""Three syncers and three learners on this machine, watched closely while things are done to them.

Each daemon is asked by a thread of its own, so that one that hangs hides nothing about the others.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from host.files.home import DaemonRole
from protocol.status import DaemonStatus, NodeStatus
from shoal.chaos.observations import LeaderSeen, MergeSeen, Recording, StepSeen
from shoal.chaos.project import DUTY, EVALUATOR, LEARNERS, SYNCERS
from shoal.demo.screen import Screen
from shoal.local_swarm.processes import Child, Deadline, SwarmFailed, shown
from shoal.local_swarm.swarm import LAG_MAX, Certified, LocalSwarm
from tui.text import fmt

ASK_EVERY_S: Final = 0.1
FRESH_S: Final = 1.5
"""A status that is older says nothing about now."""

LINE_EVERY_S: Final = 5.0
STEADY_S: Final = 1.0
"""All must be well for as long before it is believed."""

MERGED_WITHIN_S: Final = 4.0


class Heard(NamedTuple):
    """What a daemon said last."""

    at_s: float
    status: DaemonStatus


class ChaosSwarm(LocalSwarm):
    """The processes and what they say. One thread acts; the others only listen."""

    def __init__(self, folder: Path, deadline: Deadline, screen: Screen) -> None:
        super().__init__(folder, deadline=deadline)
        self.processes.import_once()
        self.record = Recording()
        self.ends_s = deadline.ends_s
        self.screen = screen
        self.cut: set[str] = set()
        """Syncers that nobody can reach, whatever they say here."""
        self.stopped: set[str] = set()
        """Daemons that are stopped, so that asking them is idle."""
        self.to_keep: dict[int, Certified] = {}
        """By index, every record that was seen certified on a disk: none may ever be lost."""
        self._heard: dict[str, Heard] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._line_s = -LINE_EVERY_S
        self._well_since_s: float | None = None

    # Processes.

    def open(self) -> None:
        """Starts everything, and the threads that listen."""
        for name in (*SYNCERS, *LEARNERS):
            threading.Thread(target=self._listen, args=(name,), daemon=True).start()
        self.start_first()
        for name in SYNCERS[1:]:
            self.start_syncer(name)
        for name in LEARNERS:
            self.start_rested(name)

    def close(self) -> list[str]:
        """Nobody listens any more."""
        self._is_over.set()
        return super().close()

    def start_rested(self, name: str) -> None:
        """A learner that rests most of the time."""
        evaluates = () if name == EVALUATOR else ("--no-evaluate",)
        self.start_learner(name, "--duty", str(DUTY), *evaluates)

    def start_again(self, name: str) -> None:
        """Whoever it is."""
        if name in SYNCERS:
            self.start_syncer(name)
        else:
            self.start_rested(name)

    def start(self, role: DaemonRole, name: str, *arguments: str) -> Child:
        """Tells the command before it runs."""
        self.screen.tell(f"$ {shown('shoal', *arguments)}", style="dim")
        return super().start(role, name, *arguments)

    def kill(self, name: str) -> Child:
        pid = self.running[name].pid
        self.screen.tell(f"$ kill -9 {pid}    ({self.called(name)})", style="bold red")
        child = super().kill(name)
        with self._lock:
            self._heard.pop(name, None)
        return child

    def process(self, name: str) -> psutil.Process:
        """The daemon. SwarmFailed if it is gone."""
        try:
            return psutil.Process(self.running[name].pid)
        except psutil.NoSuchProcess:
            raise self.running[name].failure() from None

    def called(self, name: str) -> str:
        """The name of a daemon with what it is."""
        if name in LEARNERS:
            return f"learner {name}"
        found = self.leader()
        return f"syncer {name}, the leader" if found and found[0] == name else f"syncer {name}"

    # Listening.

    def _listen(self, name: str) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            child = self.running.get(name)
            if child is None or name in self.stopped:
                continue
            status = super().ask(name)
            if status is not None and status.pid == child.pid:
                self._hear(name, status)

    def _hear(self, name: str, status: DaemonStatus) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._heard[name] = Heard(now_s, status)
            if isinstance(status, NodeStatus) and status.trainer_pid is not None:
                seen = StepSeen(
                    now_s, status.local_step, status.work_s, status.alive_s, status.trainer_pid
                )
                self.record.see_step(name, seen)

    def ask(self, name: str) -> DaemonStatus | None:
        """What it said last, unless that is too long ago or nobody can reach it."""
        with self._lock:
            heard = self._heard.get(name)
        if heard is None or name in self.cut or time.monotonic() - heard.at_s > FRESH_S:
            return None
        return heard.status

    # Waiting.

    def go_on(self, seconds: float) -> None:
        """Looks and tells for so long."""
        self.within(seconds, lambda: False, "the end of a fault")

    def await_well(self, limit_s: float) -> bool:
        """Looks and tells until all is well; whether it was in time."""
        return bool(self.within(limit_s, self.is_well, "a swarm that is well"))

    def on_wait(self) -> None:
        now_s, found = time.monotonic(), self.leader()
        name, term = (found[0], found[1].swarm.term) if found else ("", 0)
        with self._lock:
            self.record.see_leader(LeaderSeen(now_s, name, term))
            if found is not None:
                self.record.see_merges(MergeSeen(now_s, term, found[1].swarm.global_step))
                self.record.see_curve(found[1].swarm.curve)
        self.is_well()
        if now_s - self._line_s >= LINE_EVERY_S:
            self._line_s = now_s
            self.screen.tell(self.line(), style="" if found else "yellow")

    def line(self) -> str:
        """The state of things: who leads, merges, held-out loss, local steps."""
        found = self.leader()
        steps = "  ".join(f"{name} {self._steps(name)}" for name in LEARNERS)
        if found is None:
            return f"nobody leads   {steps}"
        name, status = found
        losses = [loss for _, _, loss in status.swarm.curve]
        return (
            f"{name} leads in term {status.swarm.term}   "
            f"{fmt.plural(status.swarm.global_step, 'merge')}   "
            f"held-out {fmt.loss(losses[-1] if losses else None)}   {steps}"
        )

    def _steps(self, name: str) -> str:
        if name not in self.running:
            return "is killed" if name in self.learners else "to come"
        status = self.learner(name)
        if status is None:
            return "starting"
        tail = "" if status.state == "training" else f" ({status.state})"
        return f"{status.local_step:,}{tail}" if status.local_step else status.state

    # Whether all is well.

    def is_well(self) -> bool:
        """Whether for a moment now everybody has been here, and training or up to date."""
        why = self.trouble()
        now_s = time.monotonic()
        if why:
            self._well_since_s = None
            return False
        if self._well_since_s is None:
            self._well_since_s = now_s
        return now_s - self._well_since_s >= STEADY_S

    @property
    def well_since_s(self) -> float | None:
        """Since when everything has been well."""
        return self._well_since_s

    def trouble(self) -> str:
        """What is not well, in words; empty if all is."""
        found = self.leader()
        if found is None or (why := super().trouble()):
            return why if found else "nobody leads"
        name, leader = found
        last = self.record.merges[-1].at_s if self.record.merges else 0.0
        if time.monotonic() - last > MERGED_WITHIN_S or leader.merges_here == 0:
            return f"{name} does not merge"
        for one in LEARNERS:
            status = self.learner(one)
            if status is None or leader.swarm.global_step - status.swarm.global_step > LAG_MAX:
                return f"learner {one} is behind"
        return ""

    def keep_in_mind(self, name: str) -> None:
        """What is certified on this syncer's disk now must be everywhere in the end."""
        for index, record in self.certified(name).items():
            self.to_keep.setdefault(index, record)


def check_settled(settled: bool, swarm: ChaosSwarm) -> None:
    """SwarmFailed if the swarm never came to work in the first place."""
    if not settled:
        raise SwarmFailed(f"The swarm did not start to work: {swarm.trouble()}.")
