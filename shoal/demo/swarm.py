"""The swarm of the demo: a learner is killed and comes back, and then the leader is killed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import psutil

from protocol.status import NodeStatus, SyncerStatus
from shoal.demo.project import CAST, VICTIM, VOTERS
from shoal.demo.report import Comeback, Succession
from shoal.demo.screen import Screen
from shoal.demo.watched import Act, WatchedSwarm
from shoal.local_swarm.processes import Deadline, is_alive, shown
from shoal.local_swarm.swarm import is_near
from tui.text import fmt
from tui.text.election import leads

KILL_AT_PROGRESS: Final = 0.3
KILL_LEADER_AT_PROGRESS: Final = 0.65
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
LEADERLESS: Final = Act(
    "{leader}, the syncer that led, was killed, without a word to anybody.",
    "Learners go on with their local steps. The other voters have the whole log, and elect.",
)
ELECTED: Final = Act(
    "{follower} was elected and leads now.",
    "Every merge is in a log that most voters keep before anybody trains on it, so none was lost.",
)
ENDED: Final = Act(
    "The run is complete.", "Every process ends by itself, and nothing is left behind."
)


class DemoSwarm(WatchedSwarm):
    """Kills one of its learners and sees it come back, then the leader and sees another elected."""

    def __init__(self, folder: Path, deadline: Deadline, screen: Screen) -> None:
        super().__init__(folder, deadline, screen, CAST)
        self.processes.measures_memory = True
        self.comeback: Comeback | None = None
        self.succession: Succession | None = None
        self.leaders: dict[str, SyncerStatus] = {}
        """What each syncer said last of those that led, in the order in which they did."""
        self.left_behind: list[str] = []
        self._killed_s = 0.0
        self._is_back_told = False

    # What happens, in order.

    def open(self) -> None:
        """Starts everybody."""
        _, second, witness = VOTERS
        self.start_first("--exit-when-done")
        self.start_syncer(second, "--exit-when-done")
        self.start_witness(witness)
        for learner in CAST:
            self.join(learner)

    def train(self) -> None:
        """Watches until the run is over and every process has ended."""
        self.act = TOGETHER
        self.watch(self._is_time_to_kill)
        if not self.is_ended:
            self._kill_victim()
            self.watch(lambda: self._since_kill_s() >= AWAY_S or self.is_ended)
            self.act = BACK
            self.join(next(learner for learner in CAST if learner.name == VICTIM))
        self.watch(self._is_time_to_kill_the_leader)
        if not self.is_ended:
            self._kill_leader()
        self.finish()

    def finish(self) -> None:
        """A witness cannot know that nobody needs it any more, so it is told, last of all."""
        *_, witness = VOTERS
        self.watch(lambda: self.is_ended and self._stays() == [witness])
        self._screen.tell(f"$ {shown('shoal', 'stop', '--instance', witness)}")
        self.tell(witness, "stop")
        super().finish()

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

    def _is_time_to_kill_the_leader(self) -> bool:
        """Not before the killed learner is back: one thing after the other can be followed."""
        host, back = self.host, self.comeback
        is_due = host is not None and host.swarm.progress >= KILL_LEADER_AT_PROGRESS
        is_back = back is None or back.merged_again_s is not None
        is_ready = host is not None and leads(host) and self._is_followed(host)
        return (is_due and is_back and is_ready) or self.is_ended

    @staticmethod
    def _is_followed(leader: SyncerStatus) -> bool:
        """Whether each of the other voters is here and up to date."""
        return leader.seat is not None and all(is_near(voter) for voter in leader.seat.voters)

    def _kill_leader(self) -> None:
        """SIGKILL for the syncer that leads; nobody starts it again."""
        host = self.host
        assert host is not None
        child = self.running[host.name]
        self.succession = Succession(host.name, host.swarm.progress, host.swarm.global_step)
        self.act = _with(LEADERLESS, leader=host.name)
        self.kill(host.name)
        self._killed_s = time.monotonic()
        self._screen.tell(
            f"$ kill -9 {child.pid}    (the daemon of {host.name}, the leader)", style="bold red"
        )

    def _since_kill_s(self) -> float:
        return time.monotonic() - self._killed_s

    # Watching.

    def on_wait(self) -> None:
        if self.is_ended:
            self.act = ENDED
        super().on_wait()

    def _on_host(self, status: SyncerStatus) -> None:
        super()._on_host(status)
        if not leads(status):
            return
        self.leaders[status.name] = status
        change = self.succession
        if change is None or status.name == change.leader:
            return
        if change.follower is None:
            change.follower, change.elected_s = status.name, self._since_kill_s()
            change.merges_kept = status.swarm.global_step
            self.act = _with(ELECTED, follower=status.name)
            after = fmt.duration(change.elected_s)
            self._screen.tell(
                f"{status.name} leads, {after} after the kill, with all of the "
                f"{change.merges_kept:,} merges; {change.leader} had told of {change.merges_told:,}"
            )
        elif change.merged_again_s is None and status.swarm.global_step > change.merges_kept:
            change.merged_again_s = self._since_kill_s()

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


def _with(act: Act, **names: str) -> Act:
    """The act with these names in it."""
    return Act(act.what.format(**names), act.why)


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
