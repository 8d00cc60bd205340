"""Three syncers and three learners on this machine, watched closely while things are done to them.

Each daemon is asked by a thread of its own, so that one that hangs hides nothing about the others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from host.addresses import claim_port
from host.files.home import Daemon, DaemonRole, Home
from protocol.errors import TransientError
from protocol.log.records import FragmentMerged, Record, record_hash
from protocol.status import DaemonStatus, NodeStatus, SyncerStatus
from protocol.wire import decode
from shoal.chaos.observations import LeaderSeen, MergeSeen, Recording, StepSeen
from shoal.chaos.project import DUTY, EVALUATOR, LEARNERS, SYNCERS
from shoal.common import daemons
from shoal.demo.processes import Child, Children, DemoFailed, shown
from shoal.demo.screen import Screen
from syncer_node.storage.voter_files import VoterFiles
from tui.text import fmt

LOOPBACK: Final = "127.0.0.1"
ASK_EVERY_S: Final = 0.1
FRESH_S: Final = 1.5
"""A status that is older says nothing about now."""

LINE_EVERY_S: Final = 5.0
LAG_MAX: Final = 8
"""Records that a standby, and merges that a learner, may be behind while all is well: what comes
and goes within a moment."""

STEADY_S: Final = 1.0
"""All must be well for as long before it is believed."""

MERGED_WITHIN_S: Final = 4.0


class Heard(NamedTuple):
    """What a daemon said last."""

    at_s: float
    status: DaemonStatus


class Certified(NamedTuple):
    """A record that a majority had signed."""

    digest: bytes
    is_merge: bool


class Swarm:
    """The processes and what they say. One thread acts; the others only listen."""

    def __init__(self, children: Children, screen: Screen, home: Home, project: Path) -> None:
        self.record = Recording()
        self.screen = screen
        self.children = children
        self.running: dict[str, Child] = {}
        self.cut: set[str] = set()
        """Syncers that nobody can reach, whatever they say here."""
        self.stopped: set[str] = set()
        """Daemons that are stopped, so that asking them is idle."""
        self.to_keep: dict[int, Certified] = {}
        """By index, every record that was seen certified on a disk: none may ever be lost."""
        self.project_id = b""
        self._home = home
        self._project = project
        self._ports: dict[str, int] = {}
        self._link = ""
        self._heard: dict[str, Heard] = {}
        self._lock = threading.Lock()
        self._heard_of: set[str] = set()
        self._is_over = threading.Event()
        self._line_s = -LINE_EVERY_S
        self._well_since_s: float | None = None

    # Processes.

    def open(self) -> None:
        """Starts everything, and the threads that listen."""
        self.start_syncer(SYNCERS[0])
        threads = [threading.Thread(target=self._listen, args=(name,)) for name in _everybody()]
        for thread in threads:
            thread.daemon = True
            thread.start()
        self.until(self._has_link, "starting the first syncer")
        for name in SYNCERS[1:]:
            self.start_syncer(name)
        for name in LEARNERS:
            self.start_learner(name)

    def close(self) -> None:
        """Nobody listens any more."""
        self._is_over.set()

    def start_syncer(self, name: str) -> None:
        """A syncer, for the first time or again, with the same key and disk."""
        port = self._ports.setdefault(name, claim_port(LOOPBACK, 0))
        arguments = ["syncer", "run", self._project.name, "--instance", name]
        arguments += ["--listen", LOOPBACK, "--port", str(port), "--log-text"]
        if self._link and name != SYNCERS[0]:
            arguments += ["--join", self._link]
        self._start(name, arguments)

    def start_learner(self, name: str) -> None:
        """A learner, for the first time or again."""
        arguments = ["join", self._link, "--instance", name, "--name", name, "--listen", LOOPBACK]
        arguments += ["--device", "cpu", "--threads", "1", "--duty", str(DUTY), "--log-text"]
        if name != EVALUATOR:
            arguments += ["--no-evaluate"]
        self._start(name, arguments)

    def _start(self, name: str, arguments: list[str]) -> None:
        self.screen.tell(f"$ {shown('shoal', *arguments)}", style="dim")
        self.running[name] = self.children.start(name, "shoal", *arguments)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        child = self.running.pop(name)
        self.screen.tell(f"$ kill -9 {child.pid}    ({self.called(name)})", style="bold red")
        self.children.kill(child)
        with self._lock:
            self._heard.pop(name, None)

    def process(self, name: str) -> psutil.Process:
        """The daemon. DemoFailed if it is gone."""
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
        daemon = self._daemon(name)
        while not self._is_over.wait(ASK_EVERY_S):
            child = self.running.get(name)
            if child is None or name in self.stopped:
                continue
            with contextlib.suppress(TransientError):
                status = daemons.ask_status(daemon)
                if status.pid == child.pid:
                    self._hear(name, status)

    def _hear(self, name: str, status: DaemonStatus) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._heard[name] = Heard(now_s, status)
            self._heard_of.add(name)
            if isinstance(status, NodeStatus) and status.trainer_pid is not None:
                seen = StepSeen(
                    now_s, status.local_step, status.work_s, status.alive_s, status.trainer_pid
                )
                self.record.see_step(name, seen)

    def _daemon(self, name: str) -> Daemon:
        role: DaemonRole = "syncer" if name in SYNCERS else "learner"
        return Daemon(role, name, self._home.socket(role, name))

    def heard(self, name: str) -> DaemonStatus | None:
        """What a daemon said last, unless that is too long ago."""
        with self._lock:
            heard = self._heard.get(name)
        if heard is None or time.monotonic() - heard.at_s > FRESH_S:
            return None
        return heard.status

    def syncer(self, name: str) -> SyncerStatus | None:
        """The same, of a syncer."""
        status = self.heard(name)
        return status if isinstance(status, SyncerStatus) else None

    def learner(self, name: str) -> NodeStatus | None:
        """The same, of a learner."""
        status = self.heard(name)
        return status if isinstance(status, NodeStatus) else None

    def leader(self) -> tuple[str, SyncerStatus] | None:
        """The syncer that serves learners, of the highest term, of those that can be reached."""
        found = [
            (name, status)
            for name in SYNCERS
            if name not in self.cut and (status := self.syncer(name)) is not None
        ]
        serving = [one for one in found if one[1].phase == "training"]
        return max(serving, key=lambda one: one[1].swarm.term, default=None)

    def _has_link(self) -> bool:
        first = self.syncer(SYNCERS[0])
        self._link = first.join_link if first is not None else ""
        if first is not None:
            self.project_id = bytes.fromhex(first.project.id)
        return bool(self._link)

    # Waiting.

    def until(
        self, is_over: Callable[[], bool], doing: str, *, patience_s: float | None = None
    ) -> bool:
        """Looks and tells until it is over; whether it was within the patience."""
        ends_s = None if patience_s is None else time.monotonic() + patience_s
        while not is_over():
            if ends_s is not None and time.monotonic() > ends_s:
                return False
            self.children.wait(doing)
            self.children.check()
            self._look()
        return True

    def go_on(self, seconds: float, doing: str) -> None:
        """Looks and tells for so long."""
        self.until(lambda: False, doing, patience_s=seconds)

    def _look(self) -> None:
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
            return "is killed" if name in self._heard_of else "to come"
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
        if found is None:
            return "nobody leads"
        name, leader = found
        seat, here = leader.seat, SYNCERS
        for other in here:
            if other in self.cut or other in self.stopped or self.syncer(other) is None:
                return f"syncer {other} is away"
        for row in seat.voters if seat is not None else ():
            if not row.is_self and (not row.is_here or row.lag is None or row.lag > LAG_MAX):
                return f"{name} waits for voter {row.key[:8]}"
        last = self.record.merges[-1].at_s if self.record.merges else 0.0
        if time.monotonic() - last > MERGED_WITHIN_S or leader.merges_here == 0:
            return f"{name} does not merge"
        for one in LEARNERS:
            status = self.learner(one)
            if status is None or status.state != "training" or status.local_step == 0:
                return f"learner {one} does not train"
            if leader.swarm.global_step - status.swarm.global_step > LAG_MAX:
                return f"learner {one} is behind"
        return ""

    # The log on a disk.

    def store(self, name: str) -> Path:
        """Where this syncer keeps its files."""
        return self._home.syncer_store(self.project_id, name)

    def certified(self, name: str) -> dict[int, Certified]:
        """Every record on this syncer's disk that is certified there, by index."""
        files = VoterFiles(self.store(name))
        floor, count = files.floor.index, files.certified - files.floor.index
        found = {}
        for at, frame in enumerate(files.log.frames()):
            if at >= count:
                break
            is_merge = isinstance(decode(frame, Record).body, FragmentMerged)
            found[floor + at + 1] = Certified(record_hash(frame), is_merge)
        return found

    def keep_in_mind(self, name: str) -> None:
        """What is certified on this syncer's disk now must be everywhere in the end."""
        for index, record in self.certified(name).items():
            self.to_keep.setdefault(index, record)

    def floor(self, name: str) -> int:
        """The index behind which this syncer's log begins: what is before it is in its state."""
        return VoterFiles(self.store(name)).floor.index


def _everybody() -> tuple[str, ...]:
    return (*SYNCERS, *LEARNERS)


def check_settled(settled: bool, swarm: Swarm) -> None:
    """DemoFailed if the swarm never came to work in the first place."""
    if not settled:
        raise DemoFailed(f"The swarm did not come to work: {swarm.trouble()}.")
