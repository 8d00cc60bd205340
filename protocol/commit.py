"""From proposed to committed: records in order, votes until a majority, then one certificate.

The leader proposes, every voter that stored the record signs it, and a record counts once a
majority of voters signed and all before it count. With one voter the leader's own fsync decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol import wire
from protocol.messages import CertifiedRecord, Vote
from protocol.project import Voter
from protocol.records import Body, Record, certify, majority, record_hash


@dataclass(slots=True)
class Proposal:
    """A record on its way to commitment."""

    record: Record
    encoded: bytes
    digest: bytes
    votes: dict[bytes, Vote] = field(default_factory=dict)


@dataclass(slots=True)
class CommitTracker:
    """The uncommitted tail of the leader's log."""

    project: bytes
    epoch: int
    term: int
    voters: tuple[Voter, ...]
    index: int
    """Index of the last record proposed."""
    head: bytes
    """Hash of the last record proposed."""
    tail: deque[Proposal] = field(default_factory=deque)

    def propose(self, body: Body, at_s: float) -> Proposal:
        """The next record with this body; at_s is wall-clock time for people."""
        record = Record(
            project=self.project,
            epoch=self.epoch,
            term=self.term,
            index=self.index + 1,
            previous=self.head,
            at_s=at_s,
            body=body,
        )
        encoded = wire.encode(record)
        proposal = Proposal(record, encoded, record_hash(encoded))
        self.index, self.head = record.index, proposal.digest
        self.tail.append(proposal)
        return proposal

    def vote(self, index: int, vote: Vote) -> list[tuple[Proposal, CertifiedRecord]]:
        """What becomes committed by this vote, in log order. Unknown voters change nothing."""
        if all(voter.key != vote.voter for voter in self.voters):
            return []
        for proposal in self.tail:
            if proposal.record.index == index:
                proposal.votes[vote.voter] = vote
        committed = []
        while self.tail and len(self.tail[0].votes) >= majority(len(self.voters)):
            proposal = self.tail.popleft()
            certificate = certify(proposal.record, proposal.digest, proposal.votes.values())
            committed.append((proposal, CertifiedRecord(proposal.encoded, certificate)))
        return committed
