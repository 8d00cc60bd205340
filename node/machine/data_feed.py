"""What the inner loop reads: blocks leased to this session, asked for before they run out.

Blocks of a session that was away for too long are leased to others, who read them again. What was
read of them and not handed in is theirs then: the queue is emptied and every fragment starts over
from its newest version.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from node.machine.context import Shared
from node.machine.fragment_sync import Keeping
from node.machine.jobs import DropFed, Feed
from protocol.log.records import Span
from protocol.messages import LeaseRequest

LEASE_AHEAD_S = 120.0
"""More blocks are asked for when those at hand last less than this: so long, and up to twice as
long, a learner goes on by itself when the syncer is away."""

LEASE_FOR_S = 120.0
"""How long one lease should last."""

LEASE_RETRY_S = 5.0


@dataclass(slots=True)
class Feeding:
    """The trainer's queue of leased positions."""

    shared: Shared
    keeping: Keeping
    fed_sequences: int = 0
    """Since the trainer began."""
    asked_s: float | None = None
    """When a lease was asked for that has not come yet."""

    @property
    def session(self) -> tuple[bytes, int]:
        """Whom blocks are leased to."""
        return self.shared.setup.signer.key, self.shared.setup.incarnation

    def begin(self) -> None:
        """A trainer starts, with an empty queue."""
        self.fed_sequences = 0

    def feed(self, spans: tuple[Span, ...]) -> None:
        """Behind what is in the queue."""
        sequences = self.shared.setup.genesis.data.block_sequences
        for span in spans:
            self.fed_sequences += (span.stop - span.start) * sequences - span.skip
        if spans:
            self.shared.desk.do(Feed(spans))

    def feed_held(self) -> None:
        """Everything that is leased to this session: a trainer begins."""
        self.feed(tuple(self.shared.state.leases.held.get(self.session, ())))

    def check(self) -> None:
        """Whether the blocks in the queue are still this session's, when records were skipped."""
        if self.fed_sequences > 0 and self.session not in self.shared.state.leases.since_s:
            self.lose()

    def lose(self) -> None:
        """The blocks in the queue went to others."""
        self.asked_s = None
        self.fed_sequences = self._read()
        self.shared.desk.do(DropFed())
        self.keeping.start_over()

    def ask(self) -> None:
        """A lease, if what is at hand does not last."""
        shared = self.shared
        assert shared.charter is not None, "it follows a leader"
        assert shared.leader is not None, "it follows a leader"
        if self.asked_s is not None and shared.now_s < self.asked_s + LEASE_RETRY_S:
            return
        batch, stepped = shared.charter.inner.batch_sequences, shared.stepped
        per_s = batch / stepped.step_s if stepped and stepped.step_s > 0 else float(batch)
        if self.fed_sequences - self._read() > max(LEASE_AHEAD_S * per_s, 2 * batch):
            return
        sequences = shared.setup.genesis.data.block_sequences
        blocks = math.ceil(max(LEASE_FOR_S * per_s, 2 * batch) / sequences)
        self.asked_s = shared.now_s
        most = shared.charter.limits.lease_blocks
        shared.desk.send(shared.leader, LeaseRequest(max(1, min(blocks, most))))

    def deadline_s(self) -> float | None:
        """When a lease is asked for again."""
        retry_s = None if self.asked_s is None else self.asked_s + LEASE_RETRY_S
        return retry_s if retry_s is not None and retry_s > self.shared.now_s else None

    def _read(self) -> int:
        stepped = self.shared.stepped
        return stepped.tokens // self.shared.setup.genesis.data.sequence_tokens if stepped else 0
