"""The public log: what a record says, how records chain, and what proves that one is committed.

A record names its predecessor by hash. It is committed when a majority of the charter's voters
signed its hash; learners apply nothing without that certificate. Tensors are not in the log:
a merge names the digests of the quantised merged displacement and of the state that follows.

What a merge says of each push is most of it, and stands behind the record, which has a hash of it.
So whoever needs none of that can be told the record alone, *in brief*, and prove it all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from blake3 import blake3
from msgspec import Meta, Struct, structs

from protocol import limits, wire
from protocol.errors import BadSignature, LimitExceeded, MalformedMessage, WrongProject
from protocol.ids import Count, Digest, InviteId, NodeKey
from protocol.log.accounts import NOTES_MAX, ChosenName, Refusal
from protocol.merge_rules import GAIN_MAX
from protocol.messages import Certificate, CertifiedRecord, Cursor, Envelope, Gain, Loss, Vote
from protocol.probes import SCORE_MAX
from protocol.project import Charter, CodecName, Voter
from protocol.signing import Signer, Verify, signed_digest

LESSENED = 1.0 - 1e-6
"""A share below this part of what its weight would give it is not so by rounding."""

NO_RECORD = bytes(32)
"""Hash that the first record names as its predecessor."""

APART = b"\xc1"
"""First byte of a record with something behind it: no MessagePack begins so."""

LENGTH_BYTES = 4
"""Behind it, the length of the record alone."""

ALONE_AT = len(APART) + LENGTH_BYTES
"""Where that begins."""


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


class Admission(Struct, frozen=True, array_like=True):
    """The disk whose votes count for a voter."""

    key: NodeKey
    generation: Count
    """`Voter.disk` of the charter under which it was admitted."""
    disk: Digest


class VotersAdmitted(Struct, frozen=True, array_like=True, tag="voters"):
    """From here on the votes of these disks count."""

    voters: Annotated[tuple[Admission, ...], Meta(min_length=1, max_length=limits.VOTERS_MAX)]


class CharterAdopted(Struct, frozen=True, array_like=True, tag="charter"):
    """From here on this charter holds."""

    charter: Envelope


class InviteUsed(Struct, frozen=True, array_like=True, tag="invited"):
    """An invite brought this key: it may take part from now on, also without the invite."""

    invite: InviteId
    learner: NodeKey


Governing = SeatTaken | VotersAdmitted | CharterAdopted | InviteUsed
"""What says who leads, who votes, and who takes part."""


class WeightsInitialised(Struct, frozen=True, array_like=True, tag="weights"):
    """Version 0 of every fragment, made once and then only downloaded."""

    fragments: Annotated[tuple[StateDigests, ...], Meta(max_length=limits.FRAGMENTS_MAX)]


class Contribution(Struct, frozen=True, array_like=True, gc=False):
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
    cosine: Annotated[float, Meta(ge=-1.0, le=1.0)] = 0.0
    """Of the push to where the others point; 0 where nothing was compared."""
    trust: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """How far the push counted, by where the learner's pushes pointed so far."""
    share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """What it added of the whole merge, after trust, likeness and bounds; 0 in older records."""
    tensors: Annotated[bytes, Meta(max_length=limits.TENSORS_MAX)] = b""
    """Norms by tensor, as `protocol.numerics.lengths` writes them, of the pushes with which later
    ones are compared; else empty."""
    tensors_clipped: Count = 0
    """Tensors that were scaled down further than the push."""
    expected: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """Of the usual cosine, how much a push of so few local steps can have; 1 in older records."""
    repeat: Annotated[float, Meta(ge=-1.0, le=1.0)] = 0.0
    """How far it repeats what its learner's former pushes of the fragment had and others had not; 0
    where that is not known."""
    echo: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """How much of it was merged lately; 0 where nothing was compared."""
    novelty: Annotated[float, Meta(ge=-1.0, le=1.0)] | None = None
    """Cosine of the rest to the rest of the others' pushes; None where too few were compared, and
    of a push that lags."""


class Contributions(Struct, frozen=True, array_like=True):
    """What stands behind the record of a merge."""

    of_merge: Annotated[
        tuple[Contribution, ...], Meta(min_length=1, max_length=limits.LEARNERS_MAX)
    ]


class Tally(Struct, frozen=True, array_like=True):
    """Where the log stands with a merge, for those who are not told who contributed to it."""

    contributions: Digest
    """Hash of those that stand behind the record."""
    fragment_tokens: Count
    """Merged into the fragment so far, with this merge."""
    taken_back_tokens: Count
    """Of all that was merged, no progress of the run, summed over fragments, as the leader knew it
    when it proposed this."""
    next_position: Count
    """Nobody was leased text from here on, as the leader knew it."""


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
    contributions: Annotated[tuple[Contribution, ...], Meta(max_length=limits.LEARNERS_MAX)]
    """Empty where it was told in brief."""
    nesterov: bool = True
    """As `momentum`: how this very version was made."""
    merger: NodeKey | None = None
    """The syncer that merged, and has the payload first; None for the leader."""
    copies: Annotated[int, Meta(ge=1, le=limits.LEARNERS_MAX)] = limits.SYNCER_COPIES
    """Learners that ask that syncer for the payload first; all others ask learners."""
    tally: Tally | None = None
    """None in older records, which have their contributions in them."""


def counted_tokens(parts: Sequence[Contribution]) -> list[int]:
    """Tokens of each push of one merge that count as progress and as credit.

    As many as the push says, as far as it was trusted: what did not count would end the run before
    its time. One whose share was lessened, because it was too large, too new or a copy, counts as
    many as its share is worth in tokens of the others: whoever claims more work than anybody does
    must not spend the budget of all. Where there are no others, it counts in that proportion.
    """
    own = [part.tokens if part.trust == 1.0 else int(part.tokens * part.trust) for part in parts]
    whole = math.fsum(part.share for part in parts)
    weights = math.fsum(part.weight * part.trust for part in parts)
    if not whole > 0 or not weights > 0:
        return own
    shares = [part.share / whole for part in parts]
    are_lessened = [
        share < LESSENED * part.weight * part.trust / weights
        for share, part in zip(shares, parts, strict=True)
    ]
    if not any(are_lessened):
        # All alike: new learners alone among themselves, for example. What is lost to doubt, whose
        # tokens do not count anyway, others make up for up to `GAIN_MAX`.
        expected = min(1.0, GAIN_MAX * weights / math.fsum(part.weight for part in parts))
        is_whole = whole >= LESSENED * expected
        return own if is_whole else [int(tokens * whole / expected) for tokens in own]
    rest = math.fsum(s for s, is_less in zip(shares, are_lessened, strict=True) if not is_less)
    tokens = sum(t for t, is_less in zip(own, are_lessened, strict=True) if not is_less)
    return [
        min(mine, int(share / rest * tokens)) if is_less else mine
        for mine, share, is_less in zip(own, shares, are_lessened, strict=True)
    ]


class TokensTakenBack(Struct, frozen=True, array_like=True, tag="taken-back"):
    """What a learner handed in so far, and what it hands in from now on, is no progress of the run:
    several of its pushes in a row did not count."""

    learner: NodeKey
    tokens: Count
    """That counted for it so far, summed over fragments."""


class TokensGivenBack(Struct, frozen=True, array_like=True, tag="given-back"):
    """They are progress again: as many of its pushes in a row counted."""

    learner: NodeKey


class AccountsNoted(Struct, frozen=True, array_like=True, tag="accounts"):
    """What belongs into contributors' accounts besides merges, gathered over some seconds."""

    names: Annotated[tuple[ChosenName, ...], Meta(max_length=NOTES_MAX)]
    refusals: Annotated[tuple[Refusal, ...], Meta(max_length=NOTES_MAX)]


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
    second: NodeKey | None = None
    """Who measures it too, if what the evaluator measures would make it the best."""


class CheckpointEvaluated(Struct, frozen=True, array_like=True, tag="evaluated"):
    """Held-out loss of an earlier checkpoint, as one learner measured it."""

    checkpoint: Count
    """Log index of the `CheckpointMarked` record."""
    global_step: Count
    tokens: Count
    """Committed tokens at the checkpoint."""
    evaluator: NodeKey
    loss: Loss


class WeightsRestored(Struct, frozen=True, array_like=True, tag="restored"):
    """The guard went back: the next version of every fragment is that of a checkpoint again."""

    pause: Digest
    """Hash of the record with which the pause began that this ends."""
    checkpoint: Count
    """Log index of the `CheckpointMarked` record."""
    global_step: Count
    """As before: nothing was merged."""
    round: Count
    """The highest that the log knew."""
    versions: Annotated[tuple[Count, ...], Meta(max_length=limits.FRAGMENTS_MAX)]
    """Of every fragment: one more than before."""
    fragments: Annotated[tuple[StateDigests, ...], Meta(max_length=limits.FRAGMENTS_MAX)]
    """As of the checkpoint."""


class RestoreGivenUp(Struct, frozen=True, array_like=True, tag="not-restored"):
    """No syncer holds the checkpoint that the guard would go back to: the owner decides."""

    pause: Digest
    """Hash of the record with which the pause began."""


class PushProbed(Struct, frozen=True, array_like=True, tag="push-probed"):
    """What a push does to the loss, as one learner measured it."""

    learner: NodeKey
    incarnation: Count
    sequence: Count
    fragment: Count
    prober: NodeKey
    own: Gain
    """Of text that its learner was leased and read for it."""
    other: Gain
    """Of text that nobody had read."""
    score: Annotated[float, Meta(ge=-SCORE_MAX, le=SCORE_MAX)]
    """Nats in favour of its being trained on that text, beside what was usual then."""
    suspends: bool = False
    """Whether its learner is suspended from here on, by this and what was measured before."""
    withdrawn: Count = 0
    """Tokens of a suspended learner that count no more, summed over fragments."""


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
    | VotersAdmitted
    | CharterAdopted
    | WeightsInitialised
    | FragmentMerged
    | TokensTakenBack
    | TokensGivenBack
    | AccountsNoted
    | BlocksLeased
    | BlocksReturned
    | InviteUsed
    | CheckpointMarked
    | CheckpointEvaluated
    | RunEnding
    | RunEnded
    | PushProbed
    | WeightsRestored
    | RestoreGivenUp
)

NewVersions = FragmentMerged | WeightsRestored
"""Records that replay needs tensors for, besides the first weights."""


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


def contributions_hash(contributions: tuple[Contribution, ...]) -> bytes:
    """What the record of a merge says of the contributions that stand behind it."""
    return _hash_behind(wire.encode(Contributions(contributions)))


def _hash_behind(behind: bytes) -> bytes:
    return blake3(behind, derive_key_context="shoal 1 contributions of a merge").digest()


def encode_record(record: Record) -> bytes:
    """A record's bytes, with what stands behind it. Raises LimitExceeded above one frame."""
    body = record.body
    if not isinstance(body, FragmentMerged) or body.tally is None:
        return wire.encode(record)
    alone = wire.encode(structs.replace(record, body=structs.replace(body, contributions=())))
    behind = wire.encode(Contributions(body.contributions)) if body.contributions else b""
    encoded = b"".join((APART, len(alone).to_bytes(LENGTH_BYTES, "big"), alone, behind))
    if len(encoded) > limits.FRAME_BYTES_MAX:
        raise LimitExceeded(f"record of {len(encoded)} bytes exceeds one frame")
    return encoded


def read_record(encoded: bytes, *, may_be_brief: bool = False) -> Record:
    """The record in these bytes. Raises MalformedMessage or LimitExceeded.

    may_be_brief: what stands behind it may be missing; of a merge then nobody's contribution is
    known.
    """
    if encoded[:1] != APART:
        record = wire.decode(encoded, Record)
        if isinstance(record.body, FragmentMerged) and (
            record.body.tally is not None or not record.body.contributions
        ):
            raise MalformedMessage("a merge whose contributions are neither in it nor behind it")
        return record
    end = _end_of_brief(encoded)
    record, behind = wire.decode(encoded[ALONE_AT:end], Record), encoded[end:]
    body = record.body
    if end > len(encoded) or not isinstance(body, FragmentMerged) or body.tally is None:
        raise MalformedMessage("a record with something behind it that has no hash of it")
    if body.contributions:
        raise MalformedMessage("a merge whose contributions are in it and behind it")
    if not behind:
        if may_be_brief:
            return record
        raise MalformedMessage("a merge without its contributions")
    if _hash_behind(behind) != body.tally.contributions:
        raise MalformedMessage("other contributions than those of the merge")
    found = wire.decode(behind, Contributions)
    return structs.replace(record, body=structs.replace(body, contributions=found.of_merge))


def in_brief(encoded: bytes) -> bytes:
    """A record's bytes without what stands behind it. Older records are whole or nothing."""
    return encoded[: _end_of_brief(encoded)] if encoded[:1] == APART else encoded


def is_in_brief(encoded: bytes) -> bool:
    """Whether what stands behind a record is missing."""
    return encoded[:1] == APART and _end_of_brief(encoded) >= len(encoded)


def told_in_brief(entry: CertifiedRecord) -> CertifiedRecord:
    """The same entry, without what stands behind the record."""
    brief = in_brief(entry.record)
    return entry if brief is entry.record else CertifiedRecord(brief, entry.certificate)


def _end_of_brief(encoded: bytes) -> int:
    return ALONE_AT + int.from_bytes(encoded[1:ALONE_AT], "big")


def record_hash(record: bytes) -> bytes:
    """Hash of a record's bytes, whole or in brief: what the next record names and what voters sign.

    What stands behind a record is not hashed here; `read_record` compares it with the record.
    """
    alone = record[ALONE_AT : _end_of_brief(record)] if record[:1] == APART else record
    return blake3(alone, derive_key_context="shoal 1 record chain").digest()


def sign_record(record: Record, digest: bytes, signer: Signer) -> Vote:
    """A voter's signature that it stored this record at its place."""
    message = _vote_message(record, record.project, digest)
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


def _meeting(voters: int) -> int:
    """Votes that have one in common with every majority."""
    return voters - majority(voters) + 1


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who must sign for something to count: majorities of one or two groups of voters."""

    groups: tuple[frozenset[bytes], ...]
    needed: tuple[int, ...]

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> Electorate:
        """A majority of these voters."""
        keys = frozenset(voter.key for voter in voters)
        return cls((keys,), (majority(len(keys)),))

    @classmethod
    def unanimous(cls, voters: Iterable[Voter]) -> Electorate:
        """Every one of these voters."""
        keys = frozenset(voter.key for voter in voters)
        return cls((keys,), (len(keys),))

    @classmethod
    def change(cls, former: Charter, charter: Charter) -> Electorate:
        """For the record by which a charter replaces another: a majority of each.

        A voter whose disk is admitted anew has no say in it: its former disk's votes are void, and
        its new disk holds nothing. So the others must hold everything by themselves, and be so
        many that they meet every majority of before and of after, also with empty disks in it.
        """
        before = {voter.key: voter.disk for voter in former.voters}
        renewed = {v.key for v in charter.voters if before.get(v.key, v.disk) != v.disk}
        groups = [frozenset(voter.key for voter in one.voters) for one in (former, charter)]
        needed = (_meeting(len(g)) if g & renewed else majority(len(g)) for g in groups)
        return cls(tuple(group - renewed for group in groups), tuple(needed))

    @property
    def members(self) -> frozenset[bytes]:
        """Everybody whose signature matters."""
        return frozenset().union(*self.groups)

    def has_enough(self, keys: Iterable[bytes]) -> bool:
        """Whether these keys together decide."""
        given = set(keys)
        return all(
            len(given & group) >= needed
            for group, needed in zip(self.groups, self.needed, strict=True)
        )


def electorate(body: Body, charter: Charter) -> Electorate:
    """Who must sign a record with this body, `charter` being in force before it."""
    if isinstance(body, CharterAdopted):
        following = wire.decode(body.charter.payload, Charter)
        if following.epoch == charter.epoch:
            return Electorate.change(charter, following)
    return Electorate.of(charter.voters)


def open_record(entry: CertifiedRecord, project: bytes, charter: Charter, verify: Verify) -> Record:
    """The record in a certified entry, whole or in brief, once its certificate is proven.

    charter: in force before this record. Raises WrongProject, BadSignature or MalformedMessage.
    """
    digest = record_hash(entry.record)
    certificate = entry.certificate
    if certificate.record != digest:
        raise BadSignature("certificate is for another record")
    record = _proven(entry, digest, project, charter, verify)
    if record.project != project:
        raise WrongProject("record of another project")
    if (record.epoch, record.term, record.index) != (
        certificate.epoch,
        certificate.term,
        certificate.index,
    ):
        raise MalformedMessage("certificate and record disagree about term or index")
    return record


def _proven(
    entry: CertifiedRecord, digest: bytes, project: bytes, charter: Charter, verify: Verify
) -> Record:
    """The record, if enough voters signed it.

    Nothing counts without the fewest that could ever be enough, so that is checked before any
    decoding.
    """
    counted = signers(entry.certificate, digest, project, verify)
    given = sum(voter.key in counted for voter in charter.voters)
    words = f"{given} valid votes of {len(charter.voters)} voters"
    if given < _meeting(len(charter.voters)):
        raise BadSignature(words)
    record = read_record(entry.record, may_be_brief=True)
    if not electorate(record.body, charter).has_enough(counted):
        is_change = isinstance(record.body, CharterAdopted)
        raise BadSignature(f"{words}, too few{' for a change of the charter' * is_change}")
    return record


def signers(certificate: Certificate, digest: bytes, project: bytes, verify: Verify) -> set[bytes]:
    """Keys whose signature in a certificate is theirs, voters or not."""
    message = _vote_message(certificate, project, digest)
    return {vote.voter for vote in certificate.votes if verify(vote.voter, message, vote.signature)}


def is_certified(certificate: Certificate, charter: Charter, verify: Verify) -> bool:
    """Whether a majority of this charter's voters signed that they stored the certificate's record.

    Votes of others cost no verification: strangers send certificates too.
    """
    keys = {voter.key for voter in charter.voters}
    votes = tuple(vote for vote in certificate.votes if vote.voter in keys)
    counted = signers(
        structs.replace(certificate, votes=votes), certificate.record, charter.project, verify
    )
    return Electorate.of(charter.voters).has_enough(counted)


def verify_vote(record: Record, digest: bytes, vote: Vote, verify: Verify) -> bool:
    """Whether this is the voter's signature that it stored this record."""
    message = _vote_message(record, record.project, digest)
    return verify(vote.voter, message, vote.signature)


def seat_statement(project: bytes, epoch: int, term: int, candidate: bytes) -> bytes:
    """The digest that a voter signs when it gives its vote to a candidate for the seat."""
    statement = b"".join(number.to_bytes(8, "big") for number in (epoch, term)) + candidate
    return signed_digest("seat", project, statement)


def is_elected(
    candidate: bytes,
    *,
    epoch: int,
    term: int,
    votes: Iterable[Vote],
    charter: Charter,
    verify: Verify,
) -> bool:
    """Whether these votes are a majority's that gave the candidate the seat in this term."""
    message = seat_statement(charter.project, epoch, term, candidate)
    given = {v.voter for v in votes if verify(v.voter, message, v.signature)}
    is_syncer = any(v.key == candidate and v.role == "syncer" for v in charter.voters)
    return is_syncer and Electorate.of(charter.voters).has_enough(given)


def _vote_message(place: Record | Certificate, project: bytes, digest: bytes) -> bytes:
    """The digest that a voter signs when it stored a record of this hash at this place."""
    numbers = (place.epoch, place.term, place.index)
    statement = b"".join(number.to_bytes(8, "big") for number in numbers) + digest
    return signed_digest("record", project, statement)
