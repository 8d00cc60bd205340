"""The swarm of the demo, and the learner in it that is killed and comes back."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import psutil

from protocol.status import NodeStatus
from shoal.demo.project import CAST, VICTIM
from shoal.demo.report import Comeback
from shoal.demo.screen import Screen
from shoal.demo.watched import Act, WatchedSwarm
from shoal.local_swarm.processes import Deadline, is_alive
from tui.text import fmt

KILL_AT_PROGRESS: Final = 0.45
AWAY_S: Final = 3.0
"""The killed learner starts again after this."""

TRAINER_GONE_S: Final = 10.0
"""A trainer that outlives its daemon for longer than this keeps a device from others."""


TOGETHER: Final = Act(
    f"{len(CAST)} learners train one model together.",
    "Each takes local steps alone and hands in a piece of the model now and then, so a slow line "
    "or a slow machine holds nobody up.",
)
KILLED: Final = Act(
    f"{VICTIM} was killed, without a word to anybody.",
    "The others train on: no merge waits for one machine, so nobody can stop a run.",
)
BACK: Final = Act(
    f"{VICTIM} is back and takes its weights from the other learners.",
    "Whoever joins, late or again, is on the newest version before its first local step.",
)
COUNTS: Final = Act(
    f"What {VICTIM} trains is merged again.",
    "Its death cost the swarm what it had not handed in yet, and nothing else.",
)
ENDED: Final = Act(
    "The run is complete.", "Every process ends by itself, and nothing is left behind."
)


class DemoSwarm(WatchedSwarm):
    """Kills one of its learners, and sees it come back."""

    def __init__(self, folder: Path, deadline: Deadline, screen: Screen) -> None:
        super().__init__(folder, deadline, screen, CAST)
        self.processes.measures_memory = True
        self.comeback: Comeback | None = None
        self.left_behind: list[str] = []
        self._killed_s = 0.0
        self._is_back_told = False

    # What happens, in order.

    def train(self) -> None:
        """Watches until the run is over and every process has ended by itself."""
        self.act = TOGETHER
        self.watch(self._is_time_to_kill)
        if not self.is_ended:
            self._kill_victim()
            self.watch(lambda: self._since_kill_s() >= AWAY_S or self.is_ended)
            self.act = BACK
            self.join(next(learner for learner in CAST if learner.name == VICTIM))
        self.finish()

    def _is_time_to_kill(self) -> bool:
        victim = self.nodes.get(VICTIM)
        is_due = self.host is not None and self.host.swarm.progress >= KILL_AT_PROGRESS
        is_ready = victim is not None and victim.merged > 0 and victim.trainer_pid is not None
        return (is_due and is_ready) or self.is_ended

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
        self.act = KILLED
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

    def on_wait(self) -> None:
        if self.is_ended:
            self.act = ENDED
        super().on_wait()

    def _on_learner(self, status: NodeStatus) -> None:
        back = self.comeback
        if back is not None and status.name == back.name:
            if status.pid == back.daemon_pid:
                return
            self._on_comeback(back, status)
        super()._on_learner(status)

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
            self.act = COUNTS
            after = fmt.duration(back.merged_again_s)
            self._screen.tell(f"what {status.name} trains is merged again, {after} after the kill")


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
