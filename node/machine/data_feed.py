"""What the inner loop reads: blocks leased to this session, asked for before they run out.

Blocks of a session that was away for too long are leased to others, who read them again. What was
read of them and not handed in is theirs then: the queue is emptied and every fragment starts over
from its newest version.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from node.machine.context import LearnerContext
from node.machine.fragment_sync import FragmentSync
from node.machine.jobs import DropFed, Feed
from protocol.log.leases import behind
from protocol.log.records import Span
from protocol.messages import LeaseRequest

LEASE_AHEAD_S = 120.0
"""More blocks are asked for when those at hand last less than this: so long, and up to twice as
long, a learner goes on by itself when the syncer is away."""

LEASE_FOR_S = 120.0
"""How long one lease should last."""

LEASE_RETRY_S = 5.0


@dataclass(slots=True)
class DataFeed:
    """The trainer's queue of leased positions."""

    context: LearnerContext
    fragment_sync: FragmentSync
    fed_sequences: int = 0
    """Since the trainer began."""
    asked_s: float | None = None
    """When a lease was asked for that has not come yet."""
    _said_spent: bool = False
    """In the last request."""

    @property
    def session(self) -> tuple[bytes, int]:
        """Whom blocks are leased to."""
        return self.context.setup.signer.key, self.context.setup.incarnation

    def begin(self) -> None:
        """A trainer starts, with an empty queue."""
        self.fed_sequences = 0

    def feed(self, spans: tuple[Span, ...]) -> None:
        """Behind what is in the queue."""
        sequences = self.context.setup.genesis.data.block_sequences
        for span in spans:
            self.fed_sequences += (span.stop - span.start) * sequences - span.skip
        if spans:
            self.context.effects.do(Feed(spans))

    def feed_held(self) -> None:
        """Everything that is leased to this session and in no push of it: a trainer begins.

        Text that is in a push counts once for each fragment. A former trainer may have handed one
        in of which nothing is heard yet; what it read is not read again.
        """
        held = self.context.state.leases.held.get(self.session, [])
        cursor = self.fragment_sync.handed_cursor
        if cursor is not None:
            left = behind(held, cursor, self.context.setup.genesis.data.block_sequences)
            held = held if left is None else left
        self.feed(tuple(held))

    def check(self) -> None:
        """Whether the blocks in the queue are still this session's, when records were skipped."""
        if self.fed_sequences > 0 and self.session not in self.context.state.leases.since_s:
            self.lose()

    def lose(self) -> None:
        """The blocks in the queue went to others."""
        self.asked_s = None
        self.fed_sequences = self._read()
        self.context.effects.do(DropFed())
        self.fragment_sync.start_over()

    def ask(self) -> None:
        """A lease, if what is at hand does not last."""
        context = self.context
        assert context.charter is not None, "it follows a leader"
        assert context.leader is not None, "it follows a leader"
        batch, stepped = context.batch_sequences or context.inner.batch_sequences, context.stepped
        is_spent = self._is_spent(batch)
        is_asked = self.asked_s is not None and context.now_s < self.asked_s + LEASE_RETRY_S
        if is_asked and (self._said_spent or not is_spent):
            return
        per_s = batch / stepped.step_s if stepped and stepped.step_s > 0 else float(batch)
        if self.fed_sequences - self._read() > max(LEASE_AHEAD_S * per_s, 2 * batch):
            return
        sequences = context.setup.genesis.data.block_sequences
        blocks = math.ceil(max(LEASE_FOR_S * per_s, 2 * batch) / sequences)
        self.asked_s, self._said_spent = context.now_s, is_spent
        most = context.charter.limits.lease_blocks
        context.effects.send(context.leader, LeaseRequest(max(1, min(blocks, most)), is_spent))

    def _is_spent(self, batch: int) -> bool:
        """Whether nothing is left to read, and nothing to hand in of what was read."""
        if self.fed_sequences - self._read() >= batch:
            return False
        done = self.context.stepped.local_step if self.context.stepped else 0
        fragments = self.fragment_sync.local_fragments
        return all(local.push is None and local.steps(done) == 0 for local in fragments)

    def deadline_s(self) -> float | None:
        """When a lease is asked for again."""
        retry_s = None if self.asked_s is None else self.asked_s + LEASE_RETRY_S
        return retry_s if retry_s is not None and retry_s > self.context.now_s else None

    def _read(self) -> int:
        stepped = self.context.stepped
        return stepped.tokens // self.context.setup.genesis.data.sequence_tokens if stepped else 0
