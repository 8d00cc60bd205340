"""Handing out blocks and taking them back: one lease at a time, each of them a record.

Text is leased no faster than a learner may read it (`text_supply`). A request beyond that waits; it
is never refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.ids import SessionKey
from protocol.log.leases import total
from protocol.log.permutation import TextOrder
from protocol.log.records import BlocksLeased, BlocksReturned, Body, Contribution, Span
from protocol.log.state import SwarmState
from protocol.peers.membership import Membership, Session
from protocol.project import LimitSpec
from syncer_node.machine import shard_runs
from syncer_node.machine.text_supply import TextSupply

QUEUE_MAX = 4096

VOID_S_MIN = 30.0
"""Between two times that all text of a learner is taken from it at its word."""

LOOK_AGAIN_S = 1.0
"""Until it is looked again whether what a session handed in before has its fate, or is merged."""


@dataclass(slots=True)
class Leasing:
    """Requests that wait for their turn or for text, and sessions whose blocks are coming back."""

    state: SwarmState
    members: Membership
    limits: LimitSpec
    propose: Callable[[Body], None]
    supply: TextSupply
    has_in_hand: Callable[[SessionKey], bool]
    """Whether pushes of a session are here that have no fate yet."""
    step_tokens: tuple[int, int]
    """Fewest and most tokens of one local step."""
    sequence_tokens: int
    order: TextOrder | None = None
    """Of published data, whose shards a learner reads one after the other."""
    listening_since_s: float = 0.0
    _is_leasing: bool = False
    _queue: deque[tuple[bytes, int]] = field(default_factory=deque)
    _waiting: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    """Who asked for how many blocks, and when it is looked at again."""
    _spent: set[bytes] = field(default_factory=set)
    """Of those that asked, who can hand in nothing of what it read."""
    _voided_s: dict[bytes, float] = field(default_factory=dict)
    """When text was last taken from a learner for that."""
    _returning: set[SessionKey] = field(default_factory=set)
    _known_at: tuple[int, int] | None = None
    """Leases and sessions were compared at these numbers of changes."""

    def ask(self, peer: bytes, blocks: int, now_s: float, *, is_spent: bool = False) -> None:
        """A learner wants blocks; one that already waits is not put in line again.

        is_spent: as in `LeaseRequest`.
        """
        is_new = peer not in self._waiting and all(peer != waiting for waiting, _ in self._queue)
        if len(self._queue) + len(self._waiting) < QUEUE_MAX and is_new:
            self._queue.append((peer, blocks))
        if is_spent:
            self._spent.add(peer)
            self._look_at((peer,), now_s)
        else:
            self._spent.discard(peer)
        self._next(now_s)

    def look(self, now_s: float) -> None:
        """Time passes: who waited long enough is in line again."""
        self._look_at([peer for peer, (_, at_s) in self._waiting.items() if at_s <= now_s], now_s)

    def deadline_s(self) -> float | None:
        """When somebody's text is due."""
        return min((at_s for _, at_s in self._waiting.values()), default=None)

    def on_leased(self, now_s: float) -> None:
        self._is_leasing = False
        self._next(now_s)

    def on_returned(self, session: SessionKey, now_s: float) -> None:
        self._returning.discard(session)
        self._look_at((session[0],), now_s)

    def on_merged(self, contributions: Sequence[Contribution], now_s: float) -> None:
        """Pushes that counted prove how fast their learners read; who holds less may hold more."""
        for part in contributions:
            session = (part.learner, part.incarnation)
            read = self.state.leases.read(session, self.state.block_sequences)
            if part.trust > 0 and read is not None:
                here = self.members.sessions.get(part.learner)
                stood = here is None or here.stood_still
                is_measured = self.supply.proved(*session, read, now_s, stood=stood)
                if is_measured and here is not None:
                    here.stood_still = False
        self.supply.forget(self.members.sessions, now_s)
        for peer in [one for one in self._voided_s if one not in self.members.sessions]:
            del self._voided_s[peer]
        self._look_at([part.learner for part in contributions], now_s)

    def is_returning(self, session: SessionKey) -> bool:
        """Whether its text is on its way back, by a record that is not committed yet.

        What it hands in until then was read in text that is not its own any more: the text that it
        gets afterwards must not pay for it.
        """
        return session in self._returning

    def give_back(self, session: SessionKey) -> None:
        """This session is over: what it did not hand in is leased again."""
        spans = self.state.leases.held.get(session)
        if spans and session not in self._returning:
            self._returning.add(session)
            self.supply.give_back(session[0], total(spans, self.state.block_sequences))
            self.propose(BlocksReturned(*session))

    def take_back(self, now_s: float) -> list[SessionKey]:
        """Take blocks from sessions gone for too long; those sessions are forgotten."""
        forgotten = []
        for session in self.members.lost(now_s, self.limits.lease_s):
            self.give_back(session.key)
            self.members.forget(session.peer)
            forgotten.append(session.key)
        # Sessions from before a restart of the syncer get one lease time to come back.
        changes = (self.state.leases.changes, self.members.changes)
        is_over = now_s - self.listening_since_s > self.limits.lease_s
        if is_over and changes != self._known_at:
            self._known_at = changes
            known = {session.key for session in self.members.sessions.values()}
            for key in [held for held in self.state.leases.held if held not in known]:
                self.give_back(key)
        return forgotten

    def _look_at(self, peers: Sequence[bytes], now_s: float) -> None:
        """Whichever of these wait are in line again."""
        waiting = [peer for peer in peers if peer in self._waiting]
        self._queue.extend((peer, self._waiting.pop(peer)[0]) for peer in waiting)
        if waiting:
            self._next(now_s)

    def _next(self, now_s: float) -> None:
        """One lease at a time, so that two never name the same positions."""
        while not self._is_leasing and self._queue:
            peer, blocks = self._queue.popleft()
            session = self.members.sessions.get(peer)
            if session is None or not session.is_connected or session.is_suspended:
                self._spent.discard(peer)
                continue
            if self._must_wait(session, now_s):
                self._waiting[peer] = blocks, now_s + LOOK_AGAIN_S
                continue
            now, after_s = self._supplied(session, blocks, now_s)
            if not now:
                self._waiting[peer] = blocks, now_s + after_s
                continue
            spans = self._pick(session.key, now)
            self._is_leasing = True
            self.supply.take(peer, total(spans, self.state.block_sequences))
            self._spent.discard(peer)
            self.propose(BlocksLeased(peer, session.incarnation, spans))

    def _must_wait(self, session: Session, now_s: float) -> bool:
        """Whether its pushes have to be merged first; void text is taken from it."""
        leases = self.state.leases
        if self.is_returning(session.key):
            return True
        if session.key not in leases.since_s:
            # Read in text that was taken back since: it must not count in the new one.
            return self.has_in_hand(session.key)
        if leases.unread(session.key) < self.supply.held_max(session.peer):
            return False
        is_due = now_s >= self._voided_s.get(session.peer, -VOID_S_MIN) + VOID_S_MIN
        if is_due and session.peer in self._spent and not self.has_in_hand(session.key):
            # Others' merges overtook all its local steps: no push will ever say what it read.
            self._voided_s[session.peer] = now_s
            self.give_back(session.key)
        return True

    def _pick(self, session: SessionKey, blocks: int) -> tuple[Span, ...]:
        if self.order is None:
            return self.state.leases.pick(blocks)
        return shard_runs.pick(self.state.leases, session, blocks, self.order)

    def _seen(self, session: Session, now_s: float) -> float:
        """Sequences per second, by what is seen of it here."""
        read = session.tokens_per_step(*self.step_tokens) / self.sequence_tokens
        return read * session.steps_per_s(now_s)

    def _supplied(self, session: Session, blocks: int, now_s: float) -> tuple[int, float]:
        """How many blocks it gets now; if none, after how many seconds some."""
        return self.supply.blocks(
            session.peer,
            min(blocks, self.limits.lease_blocks),
            now_s,
            held=total(self.state.leases.held.get(session.key, ()), self.state.block_sequences),
            seen={}
            if self.supply.knows_others(session.peer)
            else {one.peer: self._seen(one, now_s) for one in self.members.training()},
        )
