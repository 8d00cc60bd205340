"""The public log: what a record says, how records chain, and what proves that one is committed.

A record names its predecessor by hash. It is committed when a majority of the charter's voters
signed its hash; learners apply nothing without that certificate. Tensors are not in the log:
a merge names the digests of the quantised merged displacement and of the state that follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from blake3 import blake3
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import BadSignature, MalformedMessage, WrongProject
from protocol.ids import Count, Digest, NodeKey
from protocol.messages import Certificate, CertifiedRecord, Cursor, Envelope, Loss, Vote
from protocol.project import CodecName, Voter
from protocol.signing import Signer, Verify, signed_digest

NO_RECORD = bytes(32)
"""Hash that the first record names as its predecessor."""


class Span(Struct, frozen=True, array_like=True):
    """Leased positions start <= position < stop; `skip` sequences of the first are already read."""

    start: Count
    stop: Count
    skip: Count


Spans = Annotated[tuple[Span, ...], Meta(max_length=4096)]


class StateDigests(Struct, frozen=True, array_like=True):
    """Content hashes of one fragment's global value and outer momentum, both f32."""

    theta: Digest
    momentum: Digest


class SeatTaken(Struct, frozen=True, array_like=True, tag="seat"):
    """First record of a leader's term."""

    leader: NodeKey


class CharterAdopted(Struct, frozen=True, array_like=True, tag="charter"):
    """From here on this charter holds."""

    charter: Envelope


class WeightsInitialised(Struct, frozen=True, array_like=True, tag="weights"):
    """Version 0 of every fragment, made once and then only downloaded."""

    fragments: Annotated[tuple[StateDigests, ...], Meta(max_length=limits.FRAGMENTS_MAX)]


class Contribution(Struct, frozen=True, array_like=True):
    """One push that went into a merge."""

    learner: NodeKey
    incarnation: Count
    sequence: Count
    base_version: Count
    steps: Count
    tokens: Count
    weight: Annotated[float, Meta(ge=0.0, le=1e300)]
    norm: Annotated[float, Meta(ge=0.0, le=1e300)]
    scale: Annotated[float, Meta(ge=0.0, le=1.0)]
    """Below 1 when the push was clipped to the group."""
    cursor: Cursor


class FragmentMerged(Struct, frozen=True, array_like=True, tag="merged"):
    """One global step: a new version of one fragment."""

    round: Count
    global_step: Count
    fragment: Count
    version: Count
    payload: Digest
    """Of the quantised merged displacement."""
    payload_bytes: Count
    codec: CodecName
    learning_rate: Annotated[float, Meta(ge=0.0, le=100.0)]
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)]
    """With the codec, all that the outer step needs: a later charter does not change the past."""
    state: StateDigests
    contributions: Annotated[
        tuple[Contribution, ...], Meta(min_length=1, max_length=limits.LEARNERS_MAX)
    ]


class BlocksLeased(Struct, frozen=True, array_like=True, tag="leased"):
    """A session may train on these positions, after those it already has."""

    learner: NodeKey
    incarnation: Count
    spans: Spans


class BlocksReturned(Struct, frozen=True, array_like=True, tag="returned"):
    """A session is over; what it did not hand in goes back."""

    learner: NodeKey
    incarnation: Count


class CheckpointMarked(Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The state at this index is kept, and evaluated by that learner if there is one."""

    global_step: Count
    evaluator: NodeKey | None


class CheckpointEvaluated(Struct, frozen=True, array_like=True, tag="evaluated"):
    """Held-out loss of an earlier checkpoint."""

    checkpoint: Count
    """Log index of the `CheckpointMarked` record."""
    global_step: Count
    tokens: Count
    """Committed tokens at the checkpoint."""
    evaluator: NodeKey
    loss: Loss


class RunEnding(Struct, frozen=True, array_like=True, tag="ending"):
    """The token budget is reached; no new rounds, those in flight are drained."""

    reason: Literal["token-budget", "owner"]


class RunEnded(Struct, frozen=True, array_like=True, tag="ended"):
    """The run is over. `best` is the log index of the checkpoint with the lowest held-out loss."""

    global_step: Count
    tokens: Count
    best: Count
    best_loss: Loss | None


Body = (
    SeatTaken
    | CharterAdopted
    | WeightsInitialised
    | FragmentMerged
    | BlocksLeased
    | BlocksReturned
    | CheckpointMarked
    | CheckpointEvaluated
    | RunEnding
    | RunEnded
)


class Record(Struct, frozen=True, array_like=True):
    """One entry of the log."""

    project: Digest
    epoch: Count
    term: Count
    index: Count
    previous: Digest
    at_s: Annotated[float, Meta(ge=0.0, le=1e12)]
    """The leader's wall clock, for people; nothing depends on it."""
    body: Body


def record_hash(record: bytes) -> bytes:
    """Hash of a record's bytes: what the next record names and what voters sign."""
    return blake3(record, derive_key_context="shoal 1 record chain").digest()


def sign_record(record: Record, digest: bytes, signer: Signer) -> Vote:
    """A voter's signature that it stored this record at its place."""
    statement = _statement(record.epoch, record.term, record.index, digest)
    message = signed_digest("record", record.project, statement)
    return Vote(voter=signer.key, signature=signer.sign(message))


def certify(record: Record, digest: bytes, votes: Iterable[Vote]) -> Certificate:
    """The certificate made of these votes, in voter order so that it has one encoding."""
    return Certificate(
        epoch=record.epoch,
        term=record.term,
        index=record.index,
        record=digest,
        votes=tuple(sorted(votes, key=lambda vote: vote.voter)),
    )


def majority(voters: int) -> int:
    """Votes that any two certificates have in common at least one of."""
    return voters // 2 + 1


def open_record(
    entry: CertifiedRecord, project: bytes, voters: tuple[Voter, ...], verify: Verify
) -> Record:
    """The record in a certified entry, once its certificate is proven.

    Raises WrongProject, BadSignature or MalformedMessage.
    """
    digest = record_hash(entry.record)
    certificate = entry.certificate
    if certificate.record != digest:
        raise BadSignature("certificate is for another record")
    _check_votes(certificate, digest, project, voters, verify)
    record = wire.decode(entry.record, Record)
    if record.project != project:
        raise WrongProject("record of another project")
    if (record.epoch, record.term, record.index) != (
        certificate.epoch,
        certificate.term,
        certificate.index,
    ):
        raise MalformedMessage("certificate and record disagree about term or index")
    return record


def _check_votes(
    certificate: Certificate,
    digest: bytes,
    project: bytes,
    voters: tuple[Voter, ...],
    verify: Verify,
) -> None:
    statement = _statement(certificate.epoch, certificate.term, certificate.index, digest)
    message = signed_digest("record", project, statement)
    known = {voter.key for voter in voters}
    counted = {
        vote.voter
        for vote in certificate.votes
        if vote.voter in known and verify(vote.voter, message, vote.signature)
    }
    if len(counted) < majority(len(voters)):
        raise BadSignature(f"{len(counted)} valid votes, {majority(len(voters))} needed")


def _statement(epoch: int, term: int, index: int, digest: bytes) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in (epoch, term, index)) + digest
