"""The swarm of the demo: a syncer, its learners, and the one that is killed and comes back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from host.addresses import claim_port
from host.files.home import Home
from protocol.status import NodeStatus, SyncerStatus
from shoal.common import daemons
from shoal.demo.processes import Child, Children, DemoFailed, is_alive, shown
from shoal.demo.project import CAST, VICTIM, Learner
from shoal.demo.report import Comeback
from shoal.demo.screen import Screen
from tui.frames.rates import Rates
from tui.text import fmt
from tui.text.demo_view import DemoNow, LearnerLine

LOOPBACK: Final = "127.0.0.1"
KILL_AT_PROGRESS: Final = 0.45
AWAY_S: Final = 3.0
"""The killed learner starts again after this."""

TRAINER_GONE_S: Final = 10.0
"""A trainer that outlives its daemon for longer than this keeps a device from others."""
OBSERVE_EVERY_S: Final = 0.5
LEAVING_S: Final = 60.0
"""All processes must have ended by themselves this long after the run has."""


class Swarm:
    """Starts the processes, watches them, kills one, and keeps what each of them said last."""

    def __init__(self, children: Children, screen: Screen, home: Home, project: Path) -> None:
        self.syncer: SyncerStatus | None = None
        self.learners: dict[str, NodeStatus] = {}
        """The last status of the newest life of each learner."""
        self.comeback: Comeback | None = None
        self.left_behind: list[str] = []
        self._children = children
        self._screen = screen
        self._home = home
        self._project = project
        self._host: Child | None = None
        self._joined: dict[str, Child] = {}
        self._rates = Rates()
        self._killed_s = 0.0
        self._ended_s: float | None = None
        self._observed_s = -OBSERVE_EVERY_S
        self._is_back_told = False

    # What happens, in order.

    def open(self) -> None:
        """Runs the syncer and waits for its join link."""
        port = claim_port(LOOPBACK, 0)
        address = f"/ip4/{LOOPBACK}/tcp/{port}"
        arguments = ["syncer", "run", self._project.name, "--listen", LOOPBACK]
        arguments += [
            "--port",
            str(port),
            "--host-address",
            address,
            "--exit-when-done",
            "--log-text",
        ]
        self._screen.tell(f"$ {shown('shoal', *arguments)}")
        self._host = self._children.start("syncer", "shoal", *arguments)
        self._until(lambda: bool(self.syncer and self.syncer.join_link), "starting the syncer")

    def join(self, learner: Learner) -> None:
        """Lets a learner join, for the first time or again."""
        assert self.syncer is not None
        name = learner.name
        arguments = ["join", self.syncer.join_link, "--instance", name, "--name", name]
        arguments += ["--listen", LOOPBACK, "--device", "cpu", "--threads", "1", "--log-text"]
        if learner.duty < 1:
            arguments += ["--duty", str(learner.duty)]
        self._screen.tell(f"$ {shown('shoal', *arguments)}")
        self._joined[name] = self._children.start(name, "shoal", *arguments)

    def train(self) -> None:
        """Watches until the run is over and every process has ended by itself."""
        self._until(self._is_time_to_kill, "training")
        if not self._is_ended:
            self._kill()
            self._until(
                lambda: time.monotonic() - self._killed_s >= AWAY_S or self._is_ended, "training"
            )
            self.join(next(learner for learner in CAST if learner.name == VICTIM))
        self._until(lambda: not self._running(), "training")
        if self.syncer is None or not self.syncer.swarm.is_ended:
            raise DemoFailed("The syncer ended before the token budget was reached.")

    def _is_time_to_kill(self) -> bool:
        victim = self.learners.get(VICTIM)
        is_due = self.syncer is not None and self.syncer.swarm.progress >= KILL_AT_PROGRESS
        is_ready = victim is not None and victim.merged > 0 and victim.trainer_pid is not None
        return (is_due and is_ready) or self._is_ended

    def _kill(self) -> None:
        """SIGKILL for a learner's daemon; its trainer must end without being told."""
        victim, child = self.learners[VICTIM], self._joined[VICTIM]
        assert self.syncer is not None
        assert victim.trainer_pid is not None
        trainer = _process(victim.trainer_pid)
        self.comeback = Comeback(
            name=VICTIM,
            daemon_pid=child.pid,
            trainer_pid=victim.trainer_pid,
            at_progress=self.syncer.swarm.progress,
            merged_before=victim.merged,
            first_life=victim,
        )
        self._children.kill(child)
        self._killed_s = time.monotonic()
        self._screen.tell(f"$ kill -9 {child.pid}    (the daemon of {VICTIM})", style="bold red")
        while trainer is not None and is_alive(trainer):
            if self._since_kill_s() > TRAINER_GONE_S:
                self._screen.tell(f"its trainer, process {trainer.pid}, still runs", style="red")
                return
            self._children.wait("waiting for a trainer to end")
        self.comeback.trainer_gone_s = self._since_kill_s()
        gone = fmt.duration(self.comeback.trainer_gone_s)
        self._screen.tell(f"its trainer, process {victim.trainer_pid}, was gone within {gone}")
        self.left_behind = self._children.left_behind()

    def _since_kill_s(self) -> float:
        return time.monotonic() - self._killed_s

    # Watching.

    def _until(self, is_over: Callable[[], bool], doing: str) -> None:
        while not is_over():
            self._children.wait(doing)
            self._children.check()
            self._check_leaving()
            if time.monotonic() - self._observed_s >= OBSERVE_EVERY_S:
                self._observe()
            self._screen.show(self.now())

    def _check_leaving(self) -> None:
        """DemoFailed if a process left before the run was over, or stays long after."""
        if not self._is_ended:
            for child in (self._host, *self._joined.values()):
                if child is not None and not child.is_running and not child.is_stray:
                    self._observe()  # The end may have come between two looks.
                    if not self._is_ended:
                        raise child.failure()
            return
        now_s = time.monotonic()
        self._ended_s = self._ended_s or now_s
        stays = [child.name for child in self._running()]
        if stays and now_s - self._ended_s > LEAVING_S:
            raise DemoFailed(
                f"{', '.join(stays)} still runs {LEAVING_S:g} s after the run was over."
            )

    @property
    def _is_ended(self) -> bool:
        return any(
            status is not None and status.swarm.is_ended
            for status in (self.syncer, *self.learners.values())
        )

    def _running(self) -> list[Child]:
        children = (self._host, *self._joined.values())
        return [child for child in children if child is not None and child.is_running]

    def _observe(self) -> None:
        """Takes in what the daemons say now; one that just starts or ends says nothing."""
        self._observed_s = time.monotonic()
        statuses, _ = daemons.ask_all(self._home.daemons())
        for status in statuses:
            if isinstance(status, SyncerStatus):
                self.syncer = status
            elif isinstance(status, NodeStatus) and status.name in self._joined:
                self._on_learner(status)
        self._rates.observe(statuses, time.monotonic())

    def _on_learner(self, status: NodeStatus) -> None:
        back = self.comeback
        if back is not None and status.name == back.name:
            if status.pid == back.daemon_pid:
                return
            self._on_comeback(back, status)
        self.learners[status.name] = status

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
            sentence = self.syncer.sentence if self.syncer else "The syncer is starting."
        rate = self._rates.tokens_per_s.get(self.syncer.key) if self.syncer else None
        return DemoNow(
            elapsed_s=self._screen.elapsed_s,
            sentence=sentence,
            syncer=self.syncer,
            learners=[self._line(learner) for learner in CAST] if self._joined else (),
            tokens_per_s=rate,
        )

    def _line(self, learner: Learner) -> LearnerLine:
        status, child = self.learners.get(learner.name), self._joined.get(learner.name)
        word = ""
        if child is not None and child.is_stray:
            word = "killed"
        elif child is not None and not child.is_running:
            word = "ended"
        elif status is None:
            word = "starting"
        elif child is not None and child.pid != status.pid:
            word = "rejoining"
        return LearnerLine(learner.name, learner.note, word, status)


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
