"""Every message on a standing control stream. One frozen struct each, one closed union.

Messages are small: weights, payloads and genesis travel as content-addressed blobs. Integers,
strings and lists are bounded here, so that decoding is validating.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Count, Digest, NodeKey, Signature
from protocol.log.accounts import Account
from protocol.novelty import Novelty
from protocol.project import CodecName, Name, OuterSpec, Text
from protocol.snapshots.manifest import Marker, PartKept, PartRefused, PartRestored
from protocol.snapshots.vector_clock import Steps, VectorClock
from protocol.standing import Standing

RUN_COMPLETE = "the run is complete"
"""Reason of the goodbye of a learner that heard of the end."""

YOUNGER = "younger-history"
"""Reason of a refusal, or of a link's end: the leader's log lacks what voters signed before."""

Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Loss = Annotated[float, Meta(ge=0.0, le=limits.LOSS_MAX)]
"""Nats per token; the bound where it is higher, or not finite."""
LearnerState = Literal["syncing", "starting", "training", "starved", "paused", "finishing"]
Unfit = Literal["", "data", "model"]
"""What keeps a learner from training, apart from its words, which would name its owner's files."""
Outcome = Literal["merged", "clipped", "late", "stale", "rejected", "abandoned"]


class Cursor(Struct, frozen=True, array_like=True, gc=False):
    """The next sequence a learner has not read: a leased position, and the sequence inside it."""

    position: Count
    sequence: Count


class Envelope(Struct, frozen=True, array_like=True):
    """Bytes as they were signed, with who signed them."""

    payload: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX)]
    signer: NodeKey
    signature: Signature


class Vote(Struct, frozen=True, array_like=True):
    """One voter's signature under one record."""

    voter: NodeKey
    signature: Signature


class Certificate(Struct, frozen=True, array_like=True):
    """Proof that a majority of voters stored a record at this index."""

    epoch: Count
    term: Count
    index: Count
    record: Digest
    votes: Annotated[tuple[Vote, ...], Meta(max_length=limits.VOTES_MAX)]


class CertifiedRecord(Struct, frozen=True, array_like=True):
    """A log record as stored, with the proof that it is committed."""

    record: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX)]
    certificate: Certificate


class PushHeader(Struct, frozen=True, array_like=True):
    """What a learner hands in: which steps, against which version, and where the bytes are.

    The push id is (learner, incarnation, sequence); the learner is whoever signed the envelope.
    """

    project: Digest
    incarnation: Count
    sequence: Count
    round: Count
    fragment: Count
    base_version: Count
    codec: CodecName
    digest: Digest
    payload_bytes: Count
    steps: Count
    """Local steps handed in: those since the last hand-in of this fragment that counted."""
    tokens: Count
    local_step: Count
    cursor: Cursor


# Learner to syncer.


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a session."""

    wire_version: Count
    project: Digest
    layout: Digest
    incarnation: Count
    """Grows with every start of the daemon: a restarted host replaces its former session."""
    agent: Annotated[str, Meta(max_length=64)]
    name: Name
    evaluates: bool
    head_index: Count
    """Last record applied, 0 when none."""
    head: Digest
    proof: Certificate | None = None
    """Of the newest record that the learner can prove, in the newest epoch that it knows."""
    invite: Envelope | None = None
    """The `invites.Invite` of the join link, signed by the owner; a key that it once brought needs
    none."""
    told_index: Count = 0
    """It has the proofs of all fragments that were newest up to this record, from an index that
    was more than goes at once."""
    follows: Literal["whole", "brief"] | None = None
    """How the log was told to it so far; None of hosts that cannot be told it in brief."""


class Heartbeat(Struct, frozen=True, array_like=True, tag="beat"):
    """Where a learner stands. Sent on change, rate-limited, and at least every four seconds."""

    state: LearnerState
    device: Annotated[str, Meta(max_length=128)]
    """What it trains on; empty before the trainer is ready."""
    local_step: Count
    tokens: Count
    step_s: Annotated[float, Meta(ge=0.0, le=86_400.0)]
    loss: Real | None
    """Training loss of the last local step; None before the first, or when it was not finite."""
    steps: Steps
    """Local steps not yet handed in, for each fragment."""
    versions: Steps
    """Version of each fragment that the local steps stand on."""
    cursor: Cursor
    work_s: Annotated[float, Meta(ge=0.0, le=1e12)]
    """Seconds spent in local steps."""
    alive_s: Annotated[float, Meta(ge=0.0, le=1e12)]
    """Seconds since the trainer could first have stepped, less evaluation."""
    has_other_text: bool = False
    """Its text is not the one that the project was signed with: nobody can check what it learns."""
    unfit: Unfit = ""
    """Why its trainer does not start, where trying again would not help; empty if it does."""
    busy_s: Annotated[float, Meta(ge=0.0, le=1e12)] = 0.0
    """Seconds in which its device computed local steps: `work_s` without the rests of a throttled
    one. 0 from those that do not tell."""


class Push(Struct, frozen=True, array_like=True, tag="push"):
    """A signed `PushHeader`; the payload waits at the learner under its digest."""

    header: Envelope


class Decline(Struct, frozen=True, array_like=True, tag="decline"):
    """The learner has nothing to hand in for this pull."""

    round: Count
    fragment: Count
    reason: Annotated[str, Meta(max_length=64)]


class LeaseRequest(Struct, frozen=True, array_like=True, tag="lease"):
    """The learner's leased blocks run low."""

    blocks: Annotated[int, Meta(ge=1, le=4096)]
    is_spent: bool = False
    """All that it holds is read, and none of the local steps on it can be handed in any more."""


class Evaluation(Struct, frozen=True, array_like=True, tag="evaluation"):
    """Held-out loss of the checkpoint marked at this log index."""

    index: Count
    loss: Loss
    tokens: Count
    seconds: Annotated[float, Meta(ge=0.0, le=86_400.0)]


class Gain(Struct, frozen=True, array_like=True):
    """What adding a push to the weights does to the loss of some sequences, by sequence."""

    loss: Loss
    """Mean without the push."""
    mean: Real
    """By how much the push lowers it; negative where it raises it."""
    deviation: Annotated[float, Meta(ge=0.0, le=1e6)]
    """Standard deviation of that between the sequences."""
    sequences: Annotated[int, Meta(ge=1, le=limits.PROBE_SEQUENCES_MAX)]


class Probed(Struct, frozen=True, array_like=True, tag="probed"):
    """The answer to a `Probe`."""

    probe: Count
    own: Gain
    other: Gain
    seconds: Annotated[float, Meta(ge=0.0, le=86_400.0)]


class ProbeDeclined(Struct, frozen=True, array_like=True, tag="no-probe"):
    """The learner cannot probe this push, or not now."""

    probe: Count
    reason: Annotated[str, Meta(max_length=64)]


class Watch(Struct, frozen=True, array_like=True, tag="watch"):
    """Somebody wants to see how the swarm is: who takes no part, a `Report` every second."""

    wire_version: Count
    project: Digest
    is_once: bool = False
    """A learner of the swarm asks for a single report, which names `LEARNERS_TOLD_MAX` learners."""


# Syncer to learner.


class AdoptedCharter(Struct, frozen=True, array_like=True):
    """A charter, and the log index from behind which it was in force."""

    index: Count
    charter: Envelope


class IndexPart(Struct, frozen=True, array_like=True, tag="index"):
    """Certified records that name the newest state of some fragments; sent before `Welcome`."""

    entries: Annotated[tuple[CertifiedRecord, ...], Meta(max_length=limits.FRAGMENTS_MAX)]
    is_more: bool = False
    """To a learner: the rest comes once it says hello again, with how far it was told."""
    charters: Annotated[tuple[AdoptedCharter, ...], Meta(max_length=limits.FRAGMENTS_MAX + 1)] = ()
    """In force now, and those under whose voters some of the index was certified."""


class FragmentIndex(Struct, frozen=True, array_like=True):
    """Where a joiner starts: the log's head, and what the log says in short."""

    log_index: Count
    head: Digest
    summary: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX // 2)]
    """Encoded `SwarmSummary` without charters: what screens and schedules need, not what weights
    are checked by."""


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    """The session is admitted. `index` is absent when the learner's log can be continued.

    With an index, every fragment's certified record came before in `IndexPart` messages, and the
    charters with them.
    """

    charter: Envelope
    """In force where the log stands now."""
    epoch: Count
    term: Count
    index: FragmentIndex | None
    is_brief: bool = False
    """From here on the log is told in brief: of merges without a push of the learner's own not who
    contributed, and no record that concerns others alone."""


class Refused(Struct, frozen=True, array_like=True, tag="refused"):
    """The session is not admitted, or ends."""

    reason: Annotated[str, Meta(max_length=64)]
    text: Text
    retry_after_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] | None
    nonce: Count = 0  # Of the voter's hello that this answers, where its disk is refused for good.


class Committed(Struct, frozen=True, array_like=True, tag="committed"):
    """The next committed records, in order; to who follows in brief, those that concern it."""

    entries: Annotated[tuple[CertifiedRecord, ...], Meta(max_length=limits.RECORDS_PER_MESSAGE_MAX)]


class Pull(Struct, frozen=True, array_like=True, tag="pull"):
    """Hand in what you have for this fragment at your next local-step boundary."""

    round: Count
    fragment: Count
    version: Count
    """Newest version of the fragment; a learner that does not hold it yet says so."""


class SequencePlace(Struct, frozen=True, array_like=True, gc=False):
    """One sequence of the training text: a position of the permutation, and its place therein."""

    position: Count
    sequence: Count


SequencePlaces = Annotated[
    tuple[SequencePlace, ...], Meta(min_length=1, max_length=limits.PROBE_SEQUENCES_MAX)
]


class Probe(Struct, frozen=True, array_like=True, tag="probe"):
    """Measure what somebody's push does to the loss: of the text that it was trained on, and of
    other text. Answered by `Probed` or `ProbeDeclined`.

    The receiver takes the newest global value that it holds of every fragment, subtracts the
    displacement from `fragment`, and evaluates without and with it.
    """

    probe: Count
    """Counts the probes of a leader."""
    fragment: Count
    version: Count
    """What the push stands on; a receiver that is more than `PUSH_LAG_MAX` away declines."""
    codec: CodecName
    payload: Digest
    """Held by the syncer until the probe is answered."""
    payload_bytes: Count
    own: SequencePlaces
    """Some of what the learner read for the push."""
    other: SequencePlaces
    """Some that nobody has read yet."""
    holder: NodeKey | None = None
    """The merger that holds the push; None for the sender."""


class Settled(Struct, frozen=True, array_like=True, tag="settled"):
    """The fate of a push that no merge record names."""

    incarnation: Count
    sequence: Count
    outcome: Outcome
    reason: Annotated[str, Meta(max_length=200)]


class Alive(Struct, frozen=True, array_like=True, tag="alive"):
    """Said regularly by a syncer, so that silence means something."""

    log_index: Count
    beat_every_s: Annotated[float, Meta(ge=0.0, le=limits.HEARTBEAT_S)] = 0.0
    """News of a learner should come no more often: a large swarm takes turns."""


class Receipt(Struct, frozen=True, array_like=True, tag="receipt"):
    """What the log counts for the receiver: a `receipts.Credit`, signed by the leader."""

    credit: Envelope


class Report(Struct, frozen=True, array_like=True, tag="report"):
    """How the swarm is, for watchers: an encoded `protocol.status.SyncerStatus`."""

    status: Annotated[bytes, Meta(max_length=limits.REPORT_BYTES_MAX)]


# Between voters.


class VoterHello(Struct, frozen=True, array_like=True, tag="voter"):
    """First message between two voters, from both sides."""

    wire_version: Count
    project: Digest
    disk: Digest
    """Drawn when the voter's disk was first used: a wiped disk shows."""
    boot: Count
    """Starts of this disk: an older number than before is a restored copy."""
    nonce: Count
    """Drawn at this start: the same boot with another nonce is a clone."""
    epoch: Count
    term: Count
    charter: Envelope
    """The newest that this voter knows; the leader proposes one that is newer than its own."""
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=limits.ADDRESSES_MAX)
    ]
    """Where it can be reached, for join links."""
    stored: Count = 0
    """Last record that its disk has, or had and owes: fewer than it said before is an old copy."""
    generation: Count = 0  # `Voter.disk` of the charter under which its disk drew its name.
    name: Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)] = ""
    """As its owner calls it; empty where they gave it no name."""


class AskVote(Struct, frozen=True, array_like=True, tag="ask-vote"):
    """A syncer stands for election, or (`is_trial`) asks whether it would be elected."""

    epoch: Count
    term: Count
    last_term: Count
    last_index: Count
    is_trial: bool
    is_handover: bool
    """The leader asked it to: its being heard is no reason to refuse."""


class GiveVote(Struct, frozen=True, array_like=True, tag="give-vote"):
    """The answer; a granted vote is on the voter's disk before it is sent."""

    epoch: Count
    term: Count
    is_trial: bool
    is_granted: bool
    signature: Signature
    """Over (project, epoch, term, candidate) if a real vote is granted, else zeros."""


class Replicate(Struct, frozen=True, array_like=True, tag="replicate"):
    """The leader's records behind `previous_index`; without records it only says that it leads."""

    epoch: Count
    term: Count
    previous_index: Count
    previous: Digest
    records: Annotated[
        tuple[Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX)], ...],
        Meta(max_length=limits.RECORDS_PER_MESSAGE_MAX),
    ]
    certified: Count
    """Last record of which the leader holds the certificate; who holds more sends them."""
    beat: Count
    """Counts the leader's messages to this voter; the answer repeats it."""


class RecordVote(Struct, frozen=True, array_like=True):
    """The sender's signature that it stored the record at this index."""

    index: Count
    signature: Signature


class Replicated(Struct, frozen=True, array_like=True, tag="replicated"):
    """How far the sender's stored log agrees with the leader's, and its votes for new records."""

    epoch: Count
    term: Count
    is_matching: bool
    index: Count
    """Last record that is stored and agrees; if not matching, where to try next."""
    certified: Count
    """Last record of which it holds the certificate."""
    wants_state: bool
    """The bytes of a record are gone everywhere: a whole state would help."""
    votes: Annotated[tuple[RecordVote, ...], Meta(max_length=limits.RECORDS_PER_MESSAGE_MAX)]
    beat: Count


class Certified(Struct, frozen=True, array_like=True, tag="certified"):
    """Proofs of records that the receiver has: from the leader, or to a leader that lacks them."""

    epoch: Count
    term: Count
    certificates: Annotated[
        tuple[Certificate, ...], Meta(max_length=limits.RECORDS_PER_MESSAGE_MAX)
    ]


class AccountsPart(Struct, frozen=True, array_like=True, tag="accounts-part"):
    """Some contributors' accounts as of the record that the next `StateOffer` names."""

    accounts: dict[NodeKey, Account]


class StateOffer(Struct, frozen=True, array_like=True, tag="state-offer"):
    """The receiver's log is too far behind: start from this state instead.

    Preceded by the certified origin of every fragment and the charters in `IndexPart` messages, and
    by everybody's accounts in `AccountsPart` messages.
    """

    epoch: Count
    term: Count
    entry: CertifiedRecord
    """The record at which the state is taken."""
    summary: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX // 2)]
    """Encoded `SwarmSummary` without accounts and charters."""


class HandOver(Struct, frozen=True, array_like=True, tag="hand-over"):
    """The leader asks the receiver to stand for election at once."""

    epoch: Count
    term: Count


class CharterOffer(Struct, frozen=True, array_like=True, tag="charter-offer"):
    """A newer charter, signed by the owner: for the leader to propose."""

    charter: Envelope


# Between the leader and a merger: one of the other syncers, which merges some of the fragments.


class FetchOrder(Struct, frozen=True, array_like=True, tag="fetch-order"):
    """Fetch this push, and hold it for a merge. Answered by `PushHeld` or `OrderFailed`."""

    epoch: Count
    term: Count
    order: Count
    """Counts the orders of a term."""
    learner: NodeKey
    source: NodeKey
    """Who has the payload: the learner, the leader, or another merger."""
    header: PushHeader
    left_s: Annotated[float, Meta(ge=0.0, le=1e6)]
    """Until nobody waits for it any more."""
    is_proven: bool
    """Something of this learner was merged before."""


class PushHeld(Struct, frozen=True, array_like=True, tag="push-held"):
    """The payload is here and sound; or it is not what the header says, the learner's fault."""

    epoch: Count
    term: Count
    order: Count
    refusal: Annotated[str, Meta(max_length=64)] = ""
    """Why it was refused, in a word; empty where it was not."""
    detail: Annotated[str, Meta(max_length=200)] = ""


class OrderedPush(Struct, frozen=True, array_like=True):
    """One push of a merge, and what the log said of its learner when the round closed."""

    learner: NodeKey
    header: PushHeader
    weight: Annotated[float, Meta(ge=0.0, le=1e300)]
    standing: Standing
    novelty: Novelty


class OrderedReference(Struct, frozen=True, array_like=True):
    """What pushes are measured against, as the leader knows it from the log."""

    typical: Real
    norms: Annotated[tuple[Real, ...], Meta(max_length=limits.LEARNERS_MAX)]
    is_established: bool
    seed: Annotated[bytes, Meta(min_length=8, max_length=8)]
    steps: Annotated[tuple[Count, ...], Meta(max_length=limits.LEARNERS_MAX)]
    tensors: Annotated[
        tuple[Annotated[bytes, Meta(max_length=limits.TENSORS_MAX)], ...],
        Meta(max_length=limits.LEARNERS_MAX),
    ]
    repeats: Real
    typical_novelty: Real
    strays: Real
    novelty_strays: Real


class MergeOrder(Struct, frozen=True, array_like=True, tag="merge-order"):
    """Merge pushes that the receiver holds. Answered by `MergeDone` or `OrderFailed`."""

    epoch: Count
    term: Count
    order: Count
    round: Count
    fragment: Count
    version: Count
    """That the merge makes; the receiver begins once it stands at the one before."""
    codec: CodecName
    outer: OuterSpec
    parts: Annotated[tuple[OrderedPush, ...], Meta(min_length=1, max_length=limits.LEARNERS_MAX)]
    against: OrderedReference | None


class MergedPush(Struct, frozen=True, array_like=True):
    """What a merge found of one push: the fields of the record's `Contribution`."""

    norm: Annotated[float, Meta(ge=0.0, le=1e300)]
    scale: Annotated[float, Meta(ge=0.0, le=1.0)]
    cosine: Annotated[float, Meta(ge=-1.0, le=1.0)]
    trust: Annotated[float, Meta(ge=0.0, le=1.0)]
    share: Annotated[float, Meta(ge=0.0, le=1.0)]
    tensors: Annotated[bytes, Meta(max_length=limits.TENSORS_MAX)]
    tensors_clipped: Count
    expected: Annotated[float, Meta(ge=0.0, le=1.0)]
    repeat: Annotated[float, Meta(ge=-1.0, le=1.0)]
    echo: Annotated[float, Meta(ge=0.0, le=1.0)]
    novelty: Annotated[float, Meta(ge=-1.0, le=1.0)] | None


class MergeDone(Struct, frozen=True, array_like=True, tag="merge-done"):
    """The payload is on the sender's disk, and offered. Nothing counts before the leader took the
    same outer step from it and the record is certified."""

    epoch: Count
    term: Count
    order: Count
    payload: Digest
    payload_bytes: Count
    theta: Digest
    momentum: Digest
    parts: Annotated[tuple[MergedPush, ...], Meta(min_length=1, max_length=limits.LEARNERS_MAX)]
    """In the order of the order."""
    seconds: Annotated[float, Meta(ge=0.0, le=1e9)]
    up_bytes_per_s: Annotated[float, Meta(gt=0.0, le=1e15)] | None = None
    """What the sender's line sends at most; None where it does not know."""
    up_backlog_s: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0
    """Seconds that it needs for what waits to be sent."""


class OrderFailed(Struct, frozen=True, array_like=True, tag="order-failed"):
    """The sender cannot: the leader sees to it otherwise."""

    epoch: Count
    term: Count
    order: Count
    reason: Annotated[str, Meta(max_length=200)]


class PushName(Struct, frozen=True, array_like=True):
    """Which push."""

    learner: NodeKey
    incarnation: Count
    sequence: Count


class DropPushes(Struct, frozen=True, array_like=True, tag="drop-pushes"):
    """These pushes have their fate: they need not be held any more."""

    epoch: Count
    term: Count
    pushes: Annotated[tuple[PushName, ...], Meta(max_length=limits.LEARNERS_MAX)]


class LendPush(Struct, frozen=True, array_like=True, tag="lend-push"):
    """Let others fetch this push, also once it is dropped; with `is_over` no more."""

    epoch: Count
    term: Count
    push: PushName
    payload: Digest
    is_over: bool


# To a learner, from the project's owner when no syncer is left.


class AskState(Struct, frozen=True, array_like=True, tag="ask-state"):
    """What does your log say, and how do you prove it? Answered by `StateHeld`.

    Asked again whenever a piece of that came: a few pieces go ahead, and one for each question.
    """

    project: Digest


class StateHeld(Struct, frozen=True, array_like=True, tag="state-held"):
    """The newest state that a learner can prove.

    Preceded by the certified origin of every fragment and the charters in `IndexPart` messages, and
    by the accounts in `AccountsPart` messages, where the summary would be too long with them.
    """

    entry: CertifiedRecord
    """The last record of its log."""
    summary: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX // 2)]


# Either way.


class Goodbye(Struct, frozen=True, array_like=True, tag="goodbye"):
    """The sender closes on purpose; nothing is wrong."""

    reason: Annotated[str, Meta(max_length=200)]


# Learner to learner.

MomentsReason = Literal["busy", "behind", "young", "idle", "off", "too-soon", "wrong-project"]


class AskMoments(Struct, frozen=True, array_like=True, tag="ask-moments"):
    """A (re)started learner asks for a copy of the optimizer state. Answered once.

    The copy must not be older than `clock`: the donor answers when its own clock has observed it.
    """

    project: Digest
    layout: Digest
    clock: VectorClock


class MomentsReady(Struct, frozen=True, array_like=True, tag="moments"):
    """A snapshot of the optimizer state waits as blobs until the asker closes, or for a time.

    Of each fragment f32 first moments, f32 second moments, both laid out as the fragment, and one
    f32 step counter for each of its tensors; cut into blobs of `MOMENTS_CHUNK_BYTES`.
    """

    clock: VectorClock
    """The donor's when the snapshot began."""
    blobs: Annotated[tuple[Digest, ...], Meta(max_length=limits.MOMENTS_CHUNKS_MAX)]
    """In fragment order; lengths follow from the layout."""


class MomentsRefused(Struct, frozen=True, array_like=True, tag="no-moments"):
    """The donor gives no snapshot, now or ever: `young` has none worth copying, `idle` no trainer,
    `behind` did not reach the clock in time, `off` is its owner's wish."""

    reason: MomentsReason


PartMessage = Marker | PartKept | PartRefused | PartRestored
LearnerMessage = (
    Hello
    | Heartbeat
    | Push
    | Decline
    | LeaseRequest
    | Evaluation
    | Probed
    | ProbeDeclined
    | Watch
    | Goodbye
    | PartMessage
)
SyncerMessage = (
    IndexPart
    | Welcome
    | Refused
    | Committed
    | Pull
    | Probe
    | Settled
    | Alive
    | Receipt
    | Report
    | Marker
    | Goodbye
)
VoterMessage = (
    VoterHello
    | AskVote
    | GiveVote
    | Replicate
    | Replicated
    | Certified
    | IndexPart
    | AccountsPart
    | StateOffer
    | HandOver
    | CharterOffer
    | FetchOrder
    | MergeOrder
    | DropPushes
    | LendPush
    | PushHeld
    | MergeDone
    | OrderFailed
    | Refused
    | Goodbye
)
OrderMessage = FetchOrder | MergeOrder | DropPushes | LendPush
"""From the leader to a merger."""

OrderAnswer = PushHeld | MergeDone | OrderFailed
DonorMessage = AskMoments | MomentsReady | MomentsRefused
Message = LearnerMessage | SyncerMessage | VoterMessage | AskState | StateHeld | DonorMessage
