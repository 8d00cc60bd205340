"""Handing out blocks and taking them back: one lease at a time, each of them a record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.ids import SessionKey
from protocol.log.records import BlocksLeased, BlocksReturned, Body
from protocol.log.state import SwarmState
from protocol.peers.membership import Membership
from protocol.project import LimitSpec

BLOCKS_HELD_MAX = 4096
"""Blocks of one session that nothing was handed in for; more are not leased to it."""

QUEUE_MAX = 4096


@dataclass(slots=True)
class Leasing:
    """Requests waiting for their turn, and sessions whose blocks are on the way back."""

    state: SwarmState
    members: Membership
    limits: LimitSpec
    propose: Callable[[Body], None]
    listening_since_s: float = 0.0
    _is_leasing: bool = False
    _queue: deque[tuple[bytes, int]] = field(default_factory=deque)
    _returning: set[SessionKey] = field(default_factory=set)
    _known_at: tuple[int, int] | None = None
    """Leases and sessions were compared at these numbers of changes."""

    def ask(self, peer: bytes, blocks: int) -> None:
        """A learner wants blocks; one that already waits is not put in line again."""
        if len(self._queue) < QUEUE_MAX and all(peer != waiting for waiting, _ in self._queue):
            self._queue.append((peer, blocks))
        self._next()

    def on_leased(self) -> None:
        self._is_leasing = False
        self._next()

    def on_returned(self, session: SessionKey) -> None:
        self._returning.discard(session)

    def give_back(self, session: SessionKey) -> None:
        """This session is over: what it did not hand in is leased again."""
        if self.state.leases.held.get(session) and session not in self._returning:
            self._returning.add(session)
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

    def _next(self) -> None:
        """One lease at a time, so that two never name the same positions."""
        while not self._is_leasing and self._queue:
            peer, blocks = self._queue.popleft()
            session = self.members.sessions.get(peer)
            if session is None or not session.is_connected:
                continue
            if self.state.leases.unread(session.key) >= BLOCKS_HELD_MAX:
                continue
            spans = self.state.leases.pick(min(blocks, self.limits.lease_blocks))
            self._is_leasing = True
            self.propose(BlocksLeased(peer, session.incarnation, spans))
