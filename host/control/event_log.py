"""The facts a daemon told lately, numbered, for whoever watches over the control socket."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from host.runtime import logs
from protocol import trace
from protocol.errors import UserError
from protocol.status import EventRow
from protocol.trace import Fact

Level = Literal["debug", "info", "warning"]

EVENTS_KEPT = 2000
EVENTS_PER_ANSWER = 500

QUIET = (trace.RecordCommitted, trace.FragmentAdvanced, trace.FragmentApplied)
"""Facts that come many times a second and say nothing to people."""

FAULTS = (
    *(trace.GuardWentBack, trace.RestoreGivenUp),
    *(trace.LearnerSuspended, trace.LossesDiffer, trace.PeerMisbehaved),
    *(trace.RoundAbandoned, trace.SessionRefused),
)


@dataclass(slots=True)
class EventLog:
    """A bounded list of events; slow readers miss the oldest."""

    _events: deque[EventRow] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    _last: int = 0

    def tell(self, fact: Fact) -> None:
        """Keep a fact, unless it is of a kind that would drown all others."""
        if isinstance(fact, QUIET):
            return
        level: Level = "info" if isinstance(fact, logs.LOUD) else "debug"
        self.keep(type(fact).__name__, fact.text, level, is_fault=_is_fault(fact))

    def keep(self, kind: str, text: str, level: Level, *, is_fault: bool) -> None:
        """Keep what was learned in another way than as a fact."""
        self._last += 1
        self._events.append(
            EventRow(
                number=self._last,
                at_s=time.time(),
                level=level,
                kind=kind,
                text=text,
                is_fault=is_fault,
            )
        )

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The control verb `events`: those after number `since`, oldest first."""
        since = request.get("since", 0)
        if not isinstance(since, int):
            raise UserError("events takes `since`, the number of the last event seen")
        later = [event for event in self._events if event.number > since]
        return {
            "events": msgspec.to_builtins(later[-EVENTS_PER_ANSWER:]),
            "last": self._last,
        }


def _is_fault(fact: Fact) -> bool:
    if isinstance(fact, FAULTS):
        return True
    if isinstance(fact, trace.PushSettled):
        return fact.outcome not in ("merged", "clipped")
    if isinstance(fact, trace.TrainerChanged):
        return fact.state == "down"
    if isinstance(fact, trace.SessionClosed):
        return not fact.has_left
    return isinstance(fact, trace.LinkChanged) and fact.state.startswith("waiting")
