"""What this syncer's log has lost, as a learner proves it: then nothing more is merged here.

The proof is a certificate: voters of the charter in force signed that they stored a record that
this log does not have, in the epoch in which it stands. A leader has every record that was ever
certified, so its store was deleted, or replaced by an older copy. What a stranger merely claims
proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import short
from protocol.log.records import is_certified
from protocol.messages import Certificate
from protocol.project import Charter
from protocol.signing import Verify
from syncer_node.raft.log import RaftLog

WAY_OUT = (
    "Stop this syncer, and bring its former store back or begin a new epoch from what learners "
    "hold: shoal project reset-seat PROJECT --from-learners LINK"
)


@dataclass(frozen=True, slots=True)
class LostHistory:
    """That this log is not the one that learners followed."""

    learner: bytes
    """Who proved it."""
    index: int
    """Record that it proved."""
    own_index: int
    """Where this log ended then."""

    @property
    def because(self) -> str:
        if self.own_index < self.index:
            return f"this store's log ends at record {self.own_index:,}"
        return f"this store has another record {self.index:,}"

    @property
    def text(self) -> str:
        """What happened and what is to be done."""
        return (
            f"This store is younger than the swarm: learner {short(self.learner)} has record "
            f"{self.index:,}, signed by the voters, and {self.because}. Nothing is merged on it. "
            f"{WAY_OUT}"
        )


def lost_history(
    learner: bytes, proof: Certificate | None, log: RaftLog, charter: Charter, verify: Verify
) -> LostHistory | None:
    """What the proof says that this leader's log has lost; None if it proves no such thing.

    charter: in force. Signatures are verified only where the record is not the one that is here.
    """
    if proof is None or proof.epoch != charter.epoch or proof.index == 0:
        return None
    if proof.index <= log.last:
        is_known = log.floor.index <= proof.index
        if not is_known or log.digest_at(proof.index) == proof.record:
            return None  # Or older than what is at hand, which proves nothing either way.
    if not is_certified(proof, charter, verify):
        return None
    return LostHistory(learner, proof.index, log.certified)
