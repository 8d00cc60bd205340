"""One round: who was asked for a fragment, what arrived, and when to stop waiting.

    open --quorum--> grace --close--> merging --merged--> committing --committed--> committed
    open, grace and merging may also end in abandoned; every push ends with an outcome either way.

A round never waits without a deadline: each pull has one, the grace window has one, and the
quorum itself falls to the number of those alive after the charter's patience.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from protocol.messages import PushHeader
from protocol.peers.membership import Session
from protocol.project import CodecName, RoundSpec
from protocol.quorum import GraceWindow, effective_quorum


class RoundState(Enum):
    OPEN = "open"
    GRACE = "grace"
    MERGING = "merging"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


ROUND_TRANSITIONS: dict[tuple[RoundState, str], RoundState] = {
    (RoundState.OPEN, "quorum"): RoundState.GRACE,
    (RoundState.OPEN, "close"): RoundState.MERGING,
    (RoundState.OPEN, "abandon"): RoundState.ABANDONED,
    (RoundState.GRACE, "close"): RoundState.MERGING,
    (RoundState.GRACE, "abandon"): RoundState.ABANDONED,
    (RoundState.MERGING, "merged"): RoundState.COMMITTING,
    (RoundState.MERGING, "abandon"): RoundState.ABANDONED,
    (RoundState.COMMITTING, "committed"): RoundState.COMMITTED,
}
"""Transitions as data; the diagram in docs/protocol.md is generated from this table."""


class PullState(Enum):
    ASKED = "asked"
    SENDING = "sending"
    ARRIVED = "arrived"
    FAILED = "failed"


AWAITED = (PullState.ASKED, PullState.SENDING)
"""States of a pull that may still bring something, if it is in time."""


@dataclass(slots=True)
class PullTicket:
    """One learner's part in a round."""

    asked_s: float
    state: PullState = PullState.ASKED
    header: PushHeader | None = None
    round: int = 0
    """In which it was asked; the push may go into a later one of the same fragment."""
    fragment: int = 0
    codec: CodecName = "int4"
    newest: int = 0
    """Number of the newest round when it was asked."""
    is_trusted: bool = True
    """Whether the push would count: one that would not makes no quorum."""

    def is_pending(self, now_s: float, timeout_s: float) -> bool:
        return self.state in AWAITED and now_s < self.asked_s + timeout_s


@dataclass(slots=True)
class Round:
    """A merge of one fragment in the making."""

    number: int
    fragment: int
    version: int
    """Version this round makes."""
    opened_s: float
    spec: RoundSpec
    state: RoundState = RoundState.OPEN
    tickets: dict[bytes, PullTicket] = field(default_factory=dict)
    quorum_s: float | None = None
    grace_s: float = 0.0
    closed_s: float | None = None
    live: int = 0
    """Training sessions at the last look; what the quorum may fall to."""
    quorum: int = 0
    """Pushes that it needs if the charter asks for fewer."""
    is_hurried: bool = False
    """It closes with what it has once it waits for nobody, and leaves its patience unused."""
    trusted: int | None = None
    """Learners here whose pushes count, where those of others do not: no more are needed."""
    fresh: int = 0
    """Pushes that this round asked for and got, of learners that count.

    Those of an earlier round do not make a quorum: they would close it before others came.
    """
    _waiting: deque[tuple[bytes, PullTicket]] = field(default_factory=deque)
    """Those asked, longest ago first. At its ends are only such as may still deliver, once it was
    looked at: so a round of hundreds knows without counting whether there is anybody."""

    @property
    def is_collecting(self) -> bool:
        return self.state in (RoundState.OPEN, RoundState.GRACE)

    @property
    def arrived(self) -> list[tuple[bytes, PushHeader]]:
        """Pushes that count, in learner order."""
        return [
            (peer, ticket.header)
            for peer, ticket in sorted(self.tickets.items())
            if ticket.state is PullState.ARRIVED and ticket.header is not None
        ]

    @property
    def hoped_for(self) -> int:
        """Pushes that count, and that this round asked for and got, or may still get."""
        own = [one for one in self.tickets.values() if one.round == self.number]
        asked = [one for one in own if one.is_trusted]
        return sum(ticket.state is not PullState.FAILED for ticket in asked)

    def trusted_of(
        self, able: Collection[Session], mute: Collection[bytes], *, is_full: bool = False
    ) -> int | None:
        """How many of these learners may yet be in the quorum; None if all have a say in it.

        mute: those that have none now. Who was asked keeps what it had then, or a round would wait
        for a push of a learner that was established meanwhile. Where some have no say, nor does it
        wait for pushes that failed, or that an earlier round asked for. is_full: it may ask nobody
        else, and waits for nobody else.
        """
        if is_full:
            return sum(one.is_trusted and self._may_count(one) for one in self.tickets.values())
        if not mute and all(one.is_trusted for one in self.tickets.values()):
            return None
        tickets = [(session.peer, self.tickets.get(session.peer)) for session in able]
        having = [one for peer, one in tickets if (one.is_trusted if one else peer not in mute)]
        if len(having) == len(tickets):
            return None
        return sum(one is None or self._may_count(one) for one in having)

    def _may_count(self, ticket: PullTicket) -> bool:
        return ticket.round == self.number and ticket.state is not PullState.FAILED

    def fire(self, trigger: str) -> None:
        """Take a transition of the table; anything else is a bug."""
        self.state = ROUND_TRANSITIONS[self.state, trigger]

    def ask(self, peer: bytes, now_s: float, *, newest: int = 0, is_trusted: bool = True) -> None:
        self.take(
            peer,
            PullTicket(
                now_s,
                round=self.number,
                fragment=self.fragment,
                codec=self.spec.up_codec,
                newest=newest,
                is_trusted=is_trusted,
            ),
        )

    def take(self, peer: bytes, ticket: PullTicket) -> None:
        """Somebody was asked, by this round or by an earlier one. Tickets come oldest first."""
        self.tickets[peer] = ticket
        self._waiting.append((peer, ticket))

    def arrive(self, ticket: PullTicket) -> None:
        """The push that this ticket was waiting for is here."""
        ticket.state = PullState.ARRIVED
        self.fresh += ticket.round == self.number and ticket.is_trusted

    def strike(self, ticket: PullTicket) -> None:
        """Whatever this ticket brought or would bring does not count."""
        if ticket.state is PullState.ARRIVED:
            self.fresh -= ticket.round == self.number and ticket.is_trusted
        ticket.state = PullState.FAILED

    def pending(self, now_s: float) -> list[bytes]:
        """Learners that may still deliver in time."""
        if not self.is_waiting(now_s):
            return []
        # The first one may, and nobody was asked before it.
        return [peer for peer, one in self._waiting if one.state in AWAITED]

    def is_waiting(self, now_s: float) -> bool:
        """Whether anybody may still deliver in time."""
        timeout_s, waiting = self.spec.pull_timeout_s, self._waiting
        while waiting and not waiting[0][1].is_pending(now_s, timeout_s):
            waiting.popleft()
        while waiting and not waiting[-1][1].is_pending(now_s, timeout_s):
            waiting.pop()
        return bool(waiting)

    def is_ripe(self, now_s: float) -> bool:
        """Whether there is nobody left to wait for, or the quorum was just reached."""
        if not self.is_waiting(now_s):
            return True
        return self.state is RoundState.OPEN and self.fresh >= self.required(now_s)

    def required(self, now_s: float) -> int:
        """Pushes needed now."""
        waited_s = now_s - self.opened_s
        quorum = max(self.spec.quorum, self.quorum)
        if self.trusted is not None:
            quorum = max(1, min(quorum, self.trusted))
        return effective_quorum(quorum, self.live, waited_s, self.spec.patience_s)

    def look(self, now_s: float, *, live: int, window: GraceWindow, slowest_step_s: float) -> str:
        """What to do now: `wait`, `quorum` (just reached, grace begins), `close` or `abandon`.

        slowest_step_s: of those asked; what it is matters while the round is open.
        """
        assert self.is_collecting
        self.live = live
        is_pending = self.is_waiting(now_s)
        if self.state is RoundState.OPEN and self.fresh >= self.required(now_s):
            self.quorum_s = now_s
            # Nobody left to wait for means there is nothing a grace window could bring.
            self.grace_s = window.grace_s(slowest_step_s) if is_pending else 0.0
            self.fire("quorum")
            return "quorum"
        if self.state is RoundState.GRACE:
            assert self.quorum_s is not None
            over = now_s >= self.quorum_s + self.grace_s or not is_pending
            return "close" if over else "wait"
        if is_pending:
            return "wait"
        if not self.arrived:
            return "abandon"
        is_over = self.is_hurried or now_s >= self.opened_s + self.spec.patience_s
        return "close" if is_over else "wait"

    def deadline_s(self, now_s: float) -> float | None:
        """When to look again if nothing happens before; None once it no longer collects."""
        if not self.is_collecting:
            return None
        times: list[float] = []
        if self.is_waiting(now_s):
            times.append(self._waiting[0][1].asked_s + self.spec.pull_timeout_s)
        if self.state is RoundState.GRACE and self.quorum_s is not None:
            times.append(self.quorum_s + self.grace_s)
        elif now_s < self.opened_s + self.spec.patience_s:
            times.append(self.opened_s + self.spec.patience_s)
        return min(times, default=now_s)


def unsettled(
    tickets: Iterable[tuple[PullTicket | None, bool]], incarnation: int
) -> frozenset[int]:
    """Sequences of this session's pushes that are here and have no fate yet.

    tickets: each with whether what is still being sent may count.
    """
    found = set()
    for ticket, is_open in tickets:
        if ticket is None or ticket.header is None:
            continue
        is_sending = ticket.state is PullState.SENDING and is_open
        is_here = is_sending or ticket.state is PullState.ARRIVED
        if is_here and ticket.header.incarnation == incarnation:
            found.add(ticket.header.sequence)
    return frozenset(found)
