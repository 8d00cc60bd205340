"""A swarm of processes that is watched: what each daemon said last, shown while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from host.files.home import DaemonRole
from protocol.status import NodeStatus, SyncerStatus
from shoal.common import daemons
from shoal.demo.project import Learner
from shoal.demo.screen import Screen
from shoal.local_swarm import processes
from shoal.local_swarm.processes import Child, Deadline, SwarmFailed, shown
from shoal.local_swarm.swarm import LocalSwarm
from tui.frames.frame import Frame
from tui.frames.history import History, sample
from tui.frames.rates import Rates
from tui.frames.traffic import Traffic
from tui.text.election import leads
from tui.views.demo import DemoNow, LearnerLine

OBSERVE_EVERY_S: Final = 0.5
LEAVING_S: Final = 60.0
"""All processes must have ended by themselves this long after the run has."""


class Act(NamedTuple):
    """A part of the story."""

    what: str
    """What is happening, in one sentence."""
    why: str
    """Why that matters, in one or two."""


class WatchedSwarm(LocalSwarm):
    """Tells every command before it runs, and keeps what each process said last."""

    def __init__(
        self,
        folder: Path,
        deadline: Deadline,
        screen: Screen,
        cast: Sequence[Learner],
        *,
        spawn: processes.Spawn = processes.spawn,
    ) -> None:
        """cast: the learners that are shown."""
        super().__init__(folder, deadline=deadline, spawn=spawn)
        self.processes.import_once()
        self.host: SyncerStatus | None = None
        """What the leading syncer said last, or a standby while nobody leads."""
        self.nodes: dict[str, NodeStatus] = {}
        """The last status of the newest life of each learner."""
        self._screen = screen
        self._cast = cast
        self._rates = Rates()
        self._history, self._traffic = History(), Traffic()
        self.act = Act("", "")
        self._ended_s: float | None = None
        self._observed_s = -OBSERVE_EVERY_S

    def start(self, role: DaemonRole, name: str, *arguments: str) -> Child:
        """Tells the command before it runs."""
        self._screen.tell(f"$ {shown('shoal', *arguments)}")
        return super().start(role, name, *arguments)

    def join(self, learner: Learner, *options: str) -> None:
        """Lets a learner join, for the first time or again."""
        duty = ("--duty", str(learner.duty)) if learner.duty < 1 else ()
        self.start_learner(learner.name, *duty, *options)

    def finish(self) -> None:
        """Watches until the run is over and every process has ended by itself."""
        self.watch(lambda: not self._stays())
        if self.host is None or not self.host.swarm.is_ended:
            raise SwarmFailed("The syncer ended before the token budget was reached.")

    def watch(self, is_over: Callable[[], bool]) -> None:
        """However long it takes: the demo has a deadline of its own."""
        self.until(is_over, "the end of training", limit_s=math.inf)

    def on_wait(self) -> None:
        self._check_leaving()
        if time.monotonic() - self._observed_s >= OBSERVE_EVERY_S:
            self._observe()
        self._screen.show(self.now())

    def _check_leaving(self) -> None:
        """SwarmFailed if a process left before the run was over, or stays long after."""
        if not self.is_ended:
            for child in self.running.values():
                if not child.is_running:
                    self._observe()  # The end may have come between two looks.
                    if not self.is_ended:
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
    def is_ended(self) -> bool:
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
        syncers = [status for status in statuses if isinstance(status, SyncerStatus)]
        if syncers:
            # A standby knows the log, so it tells how the run goes while nobody leads.
            self._on_host(max(syncers, key=lambda one: (leads(one), one.swarm.term)))
        for status in statuses:
            if isinstance(status, NodeStatus) and status.name in self.learners:
                self._on_learner(status)
        self._rates.observe(statuses, time.monotonic())
        now_s = time.time()
        self._history.add(sample(Frame(at_s=now_s, statuses=tuple(statuses))))
        self._traffic.observe(self.host if self.host and leads(self.host) else None, now_s)

    def _on_host(self, status: SyncerStatus) -> None:
        self.host = status

    def _on_learner(self, status: NodeStatus) -> None:
        self.nodes[status.name] = status

    # Showing.

    def now(self, sentence: str = "", why: str = "") -> DemoNow:
        """What there is to see; without a sentence, the act that is played."""
        if not sentence:
            said = self.host.sentence if self.host else "The syncer is starting."
            sentence, why = self.act if self.act.what else Act(said, "")
        rate = self._rates.tokens_per_s.get(self.host.key) if self.host else None
        return DemoNow(
            elapsed_s=self._screen.elapsed_s,
            sentence=sentence,
            why=why,
            syncer=self.host,
            learners=[self._line(learner) for learner in self._cast] if self.learners else (),
            tokens_per_s=rate,
            history=self._history,
            moving=tuple(self._traffic.moving(time.time())),
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
