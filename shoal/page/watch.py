"""Looks at a syncer for all viewers together: once in a while, and never when nobody looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from host.files.home import Daemon, Home
from host.files.signed_project import OpenedProject, newest_of, read_signed
from protocol.errors import RemoteError, ShoalError, TransientError, UserError
from protocol.status import NodeStatus, SampleStatus, SyncerStatus
from shoal.common import daemons
from shoal.page.drawn_up import page_facts
from shoal.page.render import Drawn, draw
from shoal.project import charter_delivery
from tui.frames.frame import Attached, Frame
from tui.frames.verdict import judge_all

PERIOD_S: Final = 2.0
"""Between two looks."""

PERIOD_S_MAX: Final = 15.0
ANSWER_FRAC: Final = 0.1
"""Of the time, what the syncer's answers may take: a large swarm is asked after less often."""

PROJECT_S: Final = 10.0
"""How old what is known of the project's rules may be."""

SAMPLE_S: Final = 10.0

log = logging.getLogger("shoal.page")


class Seen(NamedTuple):
    """What the last look found."""

    number: int
    """Grows by one with each look."""
    drawn: Drawn


class Watch:
    """The page of one syncer, as new as viewers need it.

    `seen` is for one event loop; looks themselves are made on a thread, and drawn there.
    """

    def __init__(
        self,
        home: Home,
        instance: str,
        *,
        onlooker: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """onlooker: the control socket of a process that looks on in the swarm, where the syncer
        is on another machine; else the syncer of this name in this home is asked."""
        self.looks = 0
        """That were made."""
        self._home = home
        self._daemon = Daemon("syncer", instance, onlooker or home.socket("syncer", instance))
        self._is_far = onlooker is not None
        self._clock = clock
        self._lock = asyncio.Lock()
        self._seen: Seen | None = None
        self._trouble: ShoalError | None = None
        self._next_s = -1e9
        self._status: SyncerStatus | None = None
        self._answered_s = 0.0
        self._answer_s = 0.0
        self._project: OpenedProject | None = None
        self._project_s = -PROJECT_S
        self._sample: SampleStatus | None = None
        self._sample_s = -SAMPLE_S

    async def seen(self) -> Seen:
        """What was found at most `PERIOD_S` ago, or is found now; who comes meanwhile waits for
        the same look. TransientError while the syncer has not answered yet; UserError where what
        lies here of the project cannot be read."""
        async with self._lock:
            now_s = self._clock()
            if now_s >= self._next_s:
                self._seen, self._trouble = None, None
                try:
                    drawn = await asyncio.to_thread(self._look)
                    self._seen = Seen(self.looks, drawn)
                except ShoalError as error:
                    is_early = isinstance(error, TransientError)
                    level = logging.DEBUG if is_early else logging.WARNING
                    log.log(level, "the page cannot be drawn: %s", error)
                    self._trouble = error
                usual_s = min(PERIOD_S_MAX, self._answer_s / ANSWER_FRAC)
                self._next_s = now_s + max(PERIOD_S, usual_s)
            if self._seen is None:
                assert self._trouble is not None, "a look finds something, or why not"
                raise self._trouble
            return self._seen

    def _look(self) -> Drawn:
        self.looks += 1
        now_s, trouble = time.time(), ""
        try:
            asked_s = self._clock()
            status = daemons.ask_status(self._daemon)
            self._answer_s = self._clock() - asked_s
            if isinstance(status, SyncerStatus):
                self._status, self._answered_s = status, now_s
        except (TransientError, UserError, RemoteError) as error:
            log.debug("the syncer does not answer: %s", error)
            trouble = "It does not answer."
        if self._status is None:
            raise TransientError("The syncer of this page has not answered yet.")
        project = self._known_project(self._status)
        label = f"syncer {self._daemon.instance}"
        here = Attached(
            label=label,
            key=self._status.key,
            since_s=self._answered_s,
            answered_s=self._answered_s,
            trouble=trouble,
        )
        frame = Frame(at_s=now_s, statuses=(self._status,), daemons=(here,))
        return draw(
            page_facts(
                self._status,
                project,
                judge_all(frame)[self._status.key],
                at_s=now_s,
                seen_s=self._answered_s,
                sample=self._newest_sample(),
            )
        )

    def _known_project(self, status: SyncerStatus) -> OpenedProject | None:
        """The project under its newest charter here, read again now and then; None where the
        syncer is on another machine and this home does not know the project."""
        now_s, project = self._clock(), bytes.fromhex(status.project.id)
        is_old = now_s - self._project_s >= PROJECT_S
        if self._project is None or self._project.id != project or is_old:
            path = self._home.project_file(project)
            if self._is_far and not path.exists():
                return None
            opened = read_signed(path)
            kept = charter_delivery.kept_charters(self._home, opened)
            self._project, self._project_s = newest_of(opened, *kept), now_s
        return self._project

    def _newest_sample(self) -> SampleStatus | None:
        """What a learner of this project beside the syncer had the model write, if it does."""
        now_s, status = self._clock(), self._status
        if status is None or now_s - self._sample_s < SAMPLE_S:
            return self._sample
        self._sample_s = now_s
        try:
            found, _ = daemons.ask_all(daemons.fitting(self._home, "learner", None))
        except ShoalError as error:
            log.debug("no learner here was asked: %s", error)
            found = []
        samples = [
            one.sample
            for one in found
            if isinstance(one, NodeStatus)
            and one.sample is not None
            and one.project.id == status.project.id
        ]
        self._sample = max(samples, key=lambda one: one.at_s, default=None)
        return self._sample
