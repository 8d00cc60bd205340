"""The whole swarm, for whoever looks at a learner: what its leader says of it, on request.

A learner follows the log and so knows who contributed what, but not who trains now, how fast, and
what a round waits for. While somebody asks the control verb `swarm`, the leader is asked for a
report now and then, no faster than `REPORT_BYTES_PER_S` on average.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from node.daemon.observer import read_report
from protocol import limits
from protocol.errors import MalformedMessage, TransientError
from protocol.status import SyncerStatus

PERIOD_S_MIN = 2.0
UNANSWERED_S = 10.0
"""After this long another request goes out: a leader to whom too many look drops some."""

WAIT_S_MAX = 2.0


class SwarmView:
    """The newest report of the leader, and when the next may be asked for."""

    def __init__(
        self,
        project: bytes,
        *,
        ask: Callable[[], bool],
        on_fault: Callable[[MalformedMessage], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """ask: sends a request to the leader; whether there is one. now: seconds, steady."""
        self._project = project.hex()
        self._ask = ask
        self._on_fault = on_fault
        self._now = now
        self._newest: SyncerStatus | None = None
        self._number = 0
        self._taken_s = 0.0
        self._size_bytes = 0
        self._asked_s: float | None = None
        self._is_waiting = False
        self._came = asyncio.Event()

    @property
    def period_s(self) -> float:
        """Seconds from one request to the next."""
        return max(PERIOD_S_MIN, self._size_bytes / limits.REPORT_BYTES_PER_S)

    def take(self, report: bytes) -> None:
        """A report came; one that nobody asked for, or that cannot be read, counts as a fault."""
        if self._asked_s is None:
            self._on_fault(MalformedMessage("a report that nobody asked for"))
            return
        if not self._is_waiting:
            return  # The answer to a request that was repeated: it is not worth reading.
        self._is_waiting = False
        try:
            told = read_report(report)
            if told.project.id != self._project:
                raise MalformedMessage("the syncer's report is about another project")
        except MalformedMessage as error:
            self._on_fault(error)
            return
        self._newest, self._taken_s = told, self._now()
        self._number += 1
        self._size_bytes = len(report)
        self._came.set()

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The control verb `swarm`: the newest report, how old it is, and how often one comes.

        `wait_s` in the request: for how long to wait for a new one. `seen`: number of the report
        that the asker has, which is not sent again. TransientError while there is none.
        """
        self._came.clear()
        number = self._number
        if self._look() and (wait_s := _wait_s(request)):
            try:
                async with asyncio.timeout(wait_s):
                    while self._number == number:
                        await self._came.wait()
            except TimeoutError:
                pass  # What is known is told with its age.
        if self._newest is None:
            raise TransientError("The leading syncer has not said yet how the swarm is.")
        is_seen = request.get("seen") == self._number
        return {
            "number": self._number,
            "age_s": self._now() - self._taken_s,
            "period_s": self.period_s,
            "status": None if is_seen else msgspec.to_builtins(self._newest),
        }

    def _look(self) -> bool:
        """Ask the leader if it is time; whether an answer may be under way."""
        now_s = self._now()
        pause_s = UNANSWERED_S if self._is_waiting else self.period_s
        if self._asked_s is None or now_s - self._asked_s >= pause_s:
            if not self._ask():
                return False
            self._asked_s, self._is_waiting = now_s, True
        return self._is_waiting


def _wait_s(request: dict[str, Any]) -> float:
    wait_s = request.get("wait_s", 0.0)
    return min(max(float(wait_s), 0.0), WAIT_S_MAX) if isinstance(wait_s, int | float) else 0.0
