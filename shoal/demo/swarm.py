"""The swarm of the demo: a syncer, its learners, and the one that is killed and comes back."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from host.files.home import DaemonRole
from protocol.status import NodeStatus, SyncerStatus
from shoal.common import daemons
from shoal.demo.project import CAST, VICTIM, Learner
from shoal.demo.report import Comeback
from shoal.demo.screen import Screen
from shoal.local_swarm.processes import Child, Deadline, SwarmFailed, is_alive, shown
from shoal.local_swarm.swarm import LocalSwarm
from tui.frames.rates import Rates
from tui.text import fmt
from tui.text.demo_view import DemoNow, LearnerLine

KILL_AT_PROGRESS: Final = 0.45
AWAY_S: Final = 3.0
"""The killed learner starts again after this."""

TRAINER_GONE_S: Final = 10.0
"""A trainer that outlives its daemon for longer than this keeps a device from others."""
OBSERVE_EVERY_S: Final = 0.5
LEAVING_S: Final = 60.0
"""All processes must have ended by themselves this long after the run has."""


class DemoSwarm(LocalSwarm):
    """Watches its processes, kills one, and keeps what each of them said last."""

    def __init__(self, folder: Path, deadline: Deadline, screen: Screen) -> None:
        super().__init__(folder, deadline=deadline)
        self.processes.measures_memory = True
        self.host: SyncerStatus | None = None
        self.nodes: dict[str, NodeStatus] = {}
        """The last status of the newest life of each learner."""
        self.comeback: Comeback | None = None
        self.left_behind: list[str] = []
        self._screen = screen
        self._rates = Rates()
        self._killed_s = 0.0
        self._ended_s: float | None = None
        self._observed_s = -OBSERVE_EVERY_S
        self._is_back_told = False

    def start(self, role: DaemonRole, name: str, *arguments: str) -> Child:
        """Tells the command before it runs."""
        self._screen.tell(f"$ {shown('shoal', *arguments)}")
        return super().start(role, name, *arguments)

    # What happens, in order.

    def join(self, learner: Learner) -> None:
        """Lets a learner join, for the first time or again."""
        duty = ("--duty", str(learner.duty)) if learner.duty < 1 else ()
        self.start_learner(learner.name, *duty)

    def train(self) -> None:
        """Watches until the run is over and every process has ended by itself."""
        self._await(self._is_time_to_kill)
        if not self._is_ended:
            self._kill_victim()
            self._await(lambda: self._since_kill_s() >= AWAY_S or self._is_ended)
            self.join(next(learner for learner in CAST if learner.name == VICTIM))
        self._await(lambda: not self._stays())
        if self.host is None or not self.host.swarm.is_ended:
            raise SwarmFailed("The syncer ended before the token budget was reached.")

    def _is_time_to_kill(self) -> bool:
        victim = self.nodes.get(VICTIM)
        is_due = self.host is not None and self.host.swarm.progress >= KILL_AT_PROGRESS
        is_ready = victim is not None and victim.merged > 0 and victim.trainer_pid is not None
        return (is_due and is_ready) or self._is_ended

    def _kill_victim(self) -> None:
        """SIGKILL for a learner's daemon; its trainer must end without being told."""
        victim, child = self.nodes[VICTIM], self.running[VICTIM]
        assert self.host is not None
        assert victim.trainer_pid is not None
        trainer = _process(victim.trainer_pid)
        self.comeback = Comeback(
            name=VICTIM,
            daemon_pid=child.pid,
            trainer_pid=victim.trainer_pid,
            at_progress=self.host.swarm.progress,
            merged_before=victim.merged,
            first_life=victim,
        )
        self.kill(VICTIM)
        self._killed_s = time.monotonic()
        self._screen.tell(f"$ kill -9 {child.pid}    (the daemon of {VICTIM})", style="bold red")
        while trainer is not None and is_alive(trainer):
            if self._since_kill_s() > TRAINER_GONE_S:
                self._screen.tell(f"its trainer, process {trainer.pid}, still runs", style="red")
                return
            self.processes.wait("the end of a trainer")
        self.comeback.trainer_gone_s = self._since_kill_s()
        gone = fmt.duration(self.comeback.trainer_gone_s)
        self._screen.tell(f"its trainer, process {victim.trainer_pid}, was gone within {gone}")
        self.left_behind = self.processes.left_behind()

    def _since_kill_s(self) -> float:
        return time.monotonic() - self._killed_s

    # Watching.

    def _await(self, is_over: Callable[[], bool]) -> None:
        """However long it takes: the demo has a deadline of its own."""
        self.until(is_over, "the end of training", limit_s=math.inf)

    def on_wait(self) -> None:
        self._check_leaving()
        if time.monotonic() - self._observed_s >= OBSERVE_EVERY_S:
            self._observe()
        self._screen.show(self.now())

    def _check_leaving(self) -> None:
        """SwarmFailed if a process left before the run was over, or stays long after."""
        if not self._is_ended:
            for child in self.running.values():
                if not child.is_running:
                    self._observe()  # The end may have come between two looks.
                    if not self._is_ended:
                        raise child.failure()
            return
        now_s = time.monotonic()
        self._ended_s = self._ended_s or now_s
        stays = self._stays()
        if stays and now_s - self._ended_s > LEAVING_S:
            raise SwarmFailed(
                f"{', '.join(stays)} still runs {LEAVING_S:g} s after the run was over."
            )

    @property
    def _is_ended(self) -> bool:
        return any(
            status is not None and status.swarm.is_ended
            for status in (self.host, *self.nodes.values())
        )

    def _stays(self) -> list[str]:
        return [name for name, child in self.running.items() if child.is_running]

    def _observe(self) -> None:
        """Takes in what the daemons say now; one that just starts or ends says nothing."""
        self._observed_s = time.monotonic()
        statuses, _ = daemons.ask_all(self.home.daemons())
        for status in statuses:
            if isinstance(status, SyncerStatus):
                self.host = status
            elif isinstance(status, NodeStatus) and status.name in self.learners:
                self._on_learner(status)
        self._rates.observe(statuses, time.monotonic())

    def _on_learner(self, status: NodeStatus) -> None:
        back = self.comeback
        if back is not None and status.name == back.name:
            if status.pid == back.daemon_pid:
                return
            self._on_comeback(back, status)
        self.nodes[status.name] = status

    def _on_comeback(self, back: Comeback, status: NodeStatus) -> None:
        """Tells once that weights came, and once that a push of the second life was merged."""
        if not self._is_back_told and status.weights_held == status.project.fragments > 0:
            self._is_back_told = True
            self._screen.tell(
                f"{status.name} holds all {status.weights_held} fragments again: "
                f"{status.weights_from_peers} from learners, {status.weights_from_syncer} from "
                "the syncer"
            )
        if back.merged_again_s is None and status.merged:
            back.merged_again_s = self._since_kill_s()
            after = fmt.duration(back.merged_again_s)
            self._screen.tell(f"what {status.name} trains is merged again, {after} after the kill")

    # Showing.

    def now(self, sentence: str = "") -> DemoNow:
        """What there is to see."""
        if not sentence:
            sentence = self.host.sentence if self.host else "The syncer is starting."
        rate = self._rates.tokens_per_s.get(self.host.key) if self.host else None
        return DemoNow(
            elapsed_s=self._screen.elapsed_s,
            sentence=sentence,
            syncer=self.host,
            learners=[self._line(learner) for learner in CAST] if self.learners else (),
            tokens_per_s=rate,
        )

    def _line(self, learner: Learner) -> LearnerLine:
        status, child = self.nodes.get(learner.name), self.running.get(learner.name)
        word = ""
        if child is None:
            word = "killed" if status is not None else ""
        elif not child.is_running:
            word = "ended"
        elif status is None:
            word = "starting"
        elif child.pid != status.pid:
            word = "rejoining"
        return LearnerLine(learner.name, learner.note, word, status)


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
