"""Merges by several syncers, judged from the outside: none is lost, and none has other pushes.

Beside these, `check_pushes_count_once` says that nothing is counted twice, whoever merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol import trace
from protocol.log.records import FragmentMerged
from protocol.messages import MergeOrder, Message
from simulator.checkers.ledger import Ledger, Violation
from simulator.hosts.syncer import SimSyncer
from simulator.virtual.world import Host, World

Push = tuple[bytes, int, int]

WITHIN_S = 150.0
"""A merge that was taken from a merger is done by then: deadlines of three mergers together."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A merge that was taken from a merger that failed."""

    host: SimSyncer
    life: int
    term: int
    round: int
    at_s: float


@dataclass(slots=True)
class MergerChecker:
    """Watches the leaders of a world, and what they order."""

    world: World
    ledger: Ledger
    ordered: dict[tuple[int, int], set[Push]] = field(default_factory=dict)
    """Pushes with which a round of a term closed."""
    settled: set[Push] = field(default_factory=set)
    """Pushes whose fate was told without a merge."""
    taken: list[Taken] = field(default_factory=list)
    ended: set[tuple[bytes, int]] = field(default_factory=set)
    """(leader, round) that ended in a merge, or were abandoned."""

    def __post_init__(self) -> None:
        self.world.watchers.append(self._watch)
        self.world.taps.append(self._tap)

    def _watch(self, now_s: float, host: Host, fact: trace.Fact) -> None:
        match fact:
            case trace.MergerFailed(_, number, _):
                assert isinstance(host, SimSyncer), "syncers lead"
                term = host.syncer.raft.context.term
                self.taken.append(Taken(host, host.life, term, number, now_s))
                self.ended.discard((host.key, number))
            case trace.PushSettled(number, learner, incarnation, sequence, outcome, _):
                if not isinstance(host, SimSyncer):
                    return
                if outcome in ("merged", "clipped"):
                    self.ended.add((host.key, number))
                else:
                    self.settled.add((learner, incarnation, sequence))
            case trace.RoundAbandoned(number, _, _):
                self.ended.add((host.key, number))

    def _tap(self, what: str, host: Host, peer: bytes, message: Message) -> None:
        if what == "sent" and isinstance(message, MergeOrder):
            pushes = {
                (part.learner, part.header.incarnation, part.header.sequence)
                for part in message.parts
            }
            self.ordered.setdefault((message.term, message.round), pushes)

    def check(self) -> None:
        """Raise Violation if a merge was lost, or has other pushes than its round."""
        self._check_none_is_lost()
        for record in self.ledger.records:
            if isinstance(record.body, FragmentMerged):
                self._check_pushes(record.term, record.body)

    def _check_none_is_lost(self) -> None:
        for one in self.taken:
            host = one.host
            is_same = host.is_up and host.life == one.life and host.syncer.leadership is not None
            is_in_term = is_same and host.syncer.raft.context.term == one.term
            is_over = self.world.now_s - one.at_s > WITHIN_S
            if is_in_term and is_over and (host.key, one.round) not in self.ended:
                raise Violation(
                    f"round {one.round}, taken from a merger at {one.at_s:.2f}, never ended"
                )

    def _check_pushes(self, term: int, merged: FragmentMerged) -> None:
        ordered = self.ordered.get((term, merged.round))
        if ordered is None:
            return  # The leader merged by itself.
        counted = {(one.learner, one.incarnation, one.sequence) for one in merged.contributions}
        if counted - ordered:
            raise Violation(f"round {merged.round} has pushes that it did not close with")
        if missing := ordered - counted - self.settled:
            raise Violation(f"round {merged.round} lost {len(missing)} pushes without a word")
