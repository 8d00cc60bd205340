"""What a learner's machine asks others to do, and what comes back. Never a tensor, only names.

A job carries all that it needs: whoever carries it out asks the machine for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from node.machine.snapshot_part import PartState
from protocol.log.records import FragmentMerged, Span, StateDigests
from protocol.machine import Failed
from protocol.messages import Cursor, Envelope, Gain, SequencePlace
from protocol.project import Charter, CodecName, InnerSpec


@dataclass(frozen=True, slots=True)
class FindSeat:
    """Find who holds the seat, and the newest charter. Answer: `SeatFound`."""

    after: tuple[int, int] = (0, 0)
    """Epoch and term of the leader that is silent: a newer one, proven, is answer enough."""
    charter: Charter | None = None
    """The newest one known."""


@dataclass(frozen=True, slots=True)
class SeatFound:
    leader: bytes
    charter: Envelope
    epoch: int
    term: int
    """In which it was elected; the highest wins."""


@dataclass(frozen=True, slots=True)
class FetchState:
    """Fetch a fragment's global value and momentum by digest, from many learners at once.

    Answer: `StateFetched`; the fragment bank holds this version then.
    """

    fragment: int
    version: int
    state: StateDigests


@dataclass(frozen=True, slots=True)
class StateFetched:
    sources: tuple[tuple[bytes, int], ...]
    """Who sent it, learners and perhaps the syncer, and how many bytes each."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Fetch the payload of the next version and take the outer step. Answer: `Advanced`."""

    merged: FragmentMerged


@dataclass(frozen=True, slots=True)
class Advanced:
    """The bank holds the version and its hashes are those of the record."""


@dataclass(frozen=True, slots=True)
class StartTrainer:
    """Start the trainer and wait until it could step. Answer: `TrainerReady`."""

    micro_batch: int | None
    inner: InnerSpec


@dataclass(frozen=True, slots=True)
class TrainerReady:
    device: str
    micro_batch: int
    unread: int | None = None
    """Sequences leased and not read, if it goes on from a snapshot's part; None otherwise."""
    local_step: int = 0
    has_other_text: bool = False
    """The text here is not the one that the project was signed with."""
    batch_sequences: int | None = None
    """In each local step; None: as many as it was told."""
    tokens: int = 0
    """Read up to `local_step`."""


@dataclass(frozen=True, slots=True)
class SuspendTrainer:
    """Put the trainer's state into files and end it. Answer: `TrainerSuspended`.

    If it cannot be, the trainer holds, and the answer is `Failed` with the reason.
    """


@dataclass(frozen=True, slots=True)
class TrainerSuspended:
    """No process trains; deliveries and captures are carried out on the files."""


@dataclass(frozen=True, slots=True)
class WakeTrainer:
    """Start a trainer that goes on where the suspended one stood. Answer: `TrainerReady`.

    Otherwise `NotRestored`, `TrainerLost` if there is no such state, or `Failed` if none starts.
    """

    micro_batch: int | None
    inner: InnerSpec


@dataclass(frozen=True, slots=True)
class NotRestored:
    """A trainer started and could not take up the suspended state, which is still there."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the trainer a fragment's newest global value. Answer: `Delivered`."""

    fragment: int
    version: int
    is_assign: bool
    """Overwrite the local value, or blend it; otherwise rebase: add what the global value moved."""
    merged_sequence: int | None
    """Own push merged since the last delivery; a rebase gives its displacement back."""
    kept_frac: float = 0.0
    """Share of the local value that an assignment leaves in place; above 0 it is a blend."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The inner loop stands on this version since this local step."""

    version: int
    local_step: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Capture:
    """Snapshot the trainer's fragment and encode what it is away from its anchor.

    Answer: `Captured`.
    """

    fragment: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Captured:
    base_version: int
    digest: bytes
    payload_bytes: int
    local_step: int
    tokens: int
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate the state that was frozen for this checkpoint. Answer: `EvaluatedLoss`."""

    index: int
    sequences: int


@dataclass(frozen=True, slots=True)
class EvaluatedLoss:
    loss: float
    tokens: int
    seconds: float


ProbeTrouble = Literal["no payload", "other text", "no memory", "paused", "failed"]
"""Why a push could not be probed, in words that tell nothing of the host. The log tells more."""


@dataclass(frozen=True, slots=True)
class ProbePush:
    """Fetch somebody's push from who holds it, and measure what it does to the loss of two texts.

    Answer: `PushProbed`, or `NotProbed`.
    """

    leader: bytes
    fragment: int
    codec: CodecName
    payload: bytes
    payload_bytes: int
    own: tuple[SequencePlace, ...]
    other: tuple[SequencePlace, ...]
    holder: bytes | None = None
    """The merger that has the push; None for the leader."""


@dataclass(frozen=True, slots=True)
class PushProbed:
    own: Gain
    other: Gain
    seconds: float
    """Of measuring; fetching excluded."""


@dataclass(frozen=True, slots=True)
class NotProbed:
    trouble: ProbeTrouble
    detail: str
    """For the owner of this host alone."""


@dataclass(frozen=True, slots=True)
class FindDonors:
    """Look up learners that may give optimizer state. Answer: `DonorsFound`."""


@dataclass(frozen=True, slots=True)
class DonorsFound:
    donors: tuple[bytes, ...]
    """In random order."""


@dataclass(frozen=True, slots=True)
class FetchMoments:
    """Fetch a donor's snapshot and check it. Answer: `MomentsFetched`; it is kept until installed.

    One at a time: another one, or `ForgetMoments`, ends it.
    """

    donor: bytes
    blobs: tuple[bytes, ...]
    inner: InnerSpec


@dataclass(frozen=True, slots=True)
class MomentsFetched:
    """All of it is here, and AdamW could have come to such a state."""


@dataclass(frozen=True, slots=True)
class InstallMoments:
    """Give the trainer what was fetched, before it begins. Answer: `MomentsInstalled`."""


@dataclass(frozen=True, slots=True)
class MomentsInstalled:
    steps: int
    """Step counter of the state, the largest of all tensors."""


@dataclass(frozen=True, slots=True)
class CaptureMoments:
    """Snapshot the trainer's optimizer state and offer it. Answer: `MomentsCaptured`."""


@dataclass(frozen=True, slots=True)
class MomentsCaptured:
    blobs: tuple[bytes, ...]
    """Digests in fragment order."""


@dataclass(frozen=True, slots=True)
class CutPart:
    """Copy all that the trainer and the bank go on from, at one local-step boundary.

    Nothing is delivered or captured meanwhile. Answer: `PartCut`; the copy is kept for `WritePart`.
    """

    snapshot: int


@dataclass(frozen=True, slots=True)
class PartCut:
    local_step: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WritePart:
    """Keep the copy on the disk, with what the machine goes on from. Answer: `PartWritten`."""

    state: PartState
    kept: tuple[int, ...]
    """Older snapshots that the syncer still has; parts of others go."""


@dataclass(frozen=True, slots=True)
class PartWritten:
    digest: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Check a kept part and take it up for this epoch, once. Answer: `PartLoaded`."""

    snapshot: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PartLoaded:
    """Nobody takes it up in this epoch again; whoever builds the next machine has it in memory."""

    digest: bytes


FragmentJob = FetchState | Advance | Deliver | Capture
PartJob = CutPart | WritePart | LoadPart
MomentsJob = FindDonors | FetchMoments | InstallMoments | CaptureMoments


# Actions without an answer.


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """From now on this host leads: what is asked of the one before is asked of it instead."""

    leader: bytes


@dataclass(frozen=True, slots=True)
class NoteReached:
    """This host can be reached: whatever was not, because it was away, may be asked of it again."""

    host: bytes


@dataclass(frozen=True, slots=True)
class UseCharter:
    """This charter is in force: pushes are made under it."""

    charter: Charter


@dataclass(frozen=True, slots=True)
class KeepReceipt:
    """Put a receipt that was proven with the others, and the charter that proves it."""

    receipt: Envelope
    charter: Envelope


@dataclass(frozen=True, slots=True)
class ShowReport:
    """The leader says how the swarm is: an encoded `SyncerStatus`, not read yet."""

    report: bytes


@dataclass(frozen=True, slots=True)
class ForgetProbe:
    """Nobody waits for the probe under way any more: fetch nothing for it."""


@dataclass(frozen=True, slots=True)
class ForgetMoments:
    """Drop what was fetched, and end what is being fetched."""


@dataclass(frozen=True, slots=True)
class WithdrawMoments:
    """Offer the snapshot no longer."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Keep the fragment's present version for the checkpoint at this log index."""

    index: int
    fragment: int


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let go of what was frozen for this checkpoint."""

    index: int


@dataclass(frozen=True, slots=True)
class Settle:
    """A push has its fate: commit or drop its error feedback, release its payload."""

    fragment: int
    sequence: int
    outcome: Literal["merged", "dropped"]


@dataclass(frozen=True, slots=True)
class Feed:
    """Append leased positions to the trainer's queue."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class DropFed:
    """Empty the trainer's queue: what it held was leased to others."""


@dataclass(frozen=True, slots=True)
class BeginSteps:
    """All fragments are delivered: the inner loop may step."""


@dataclass(frozen=True, slots=True)
class SetProgress:
    """Position of the learning-rate schedule, 0..1 of the token budget."""

    fraction: float


@dataclass(frozen=True, slots=True)
class HoldSteps:
    """The inner loop holds at the next boundary; it still carries out commands."""


@dataclass(frozen=True, slots=True)
class ReleaseSteps:
    """The inner loop goes on."""


@dataclass(frozen=True, slots=True)
class ReplaceTrainer:
    """End this trainer, as if it had died; the machine starts the next one."""

    reason: str


@dataclass(frozen=True, slots=True)
class DropErrorFeedback:
    """What quantising lost of pushes so far goes into no push of the next trainer: it is of void
    weights."""


TrainerAction = (
    UseCharter
    | Settle
    | Feed
    | DropFed
    | BeginSteps
    | HoldSteps
    | ReleaseSteps
    | ReplaceTrainer
    | DropErrorFeedback
    | SetProgress
)


# Notes from the trainer.


@dataclass(frozen=True, slots=True)
class Stepped:
    """The inner loop finished local steps."""

    local_step: int
    tokens: int
    loss: float | None
    step_s: float
    work_s: float
    """Seconds spent in local steps since the trainer started."""
    alive_s: float
    """Seconds since the trainer could first have stepped, less evaluation."""
    cursor: Cursor
    busy_s: float = 0.0
    """Seconds of `work_s` in which the device computed: all but the rests of a throttled one."""


@dataclass(frozen=True, slots=True)
class Starved:
    """The inner loop has read all leased blocks."""


@dataclass(frozen=True, slots=True)
class TrainerLost:
    """The trainer process ended."""

    is_out_of_memory: bool
    detail: str


@dataclass(frozen=True, slots=True)
class TrainerUnfit(Failed):
    """A trainer did not start, and another try would end the same way: its owner has to act."""

    kind: Literal["data", "model", "memory"]


# Notes from the owner of this machine.


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """No local steps for so many seconds; None until `ResumeAsked`."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Local steps again."""


@dataclass(frozen=True, slots=True)
class FinishAsked:
    """No more local steps; hand in what is done, then stop."""


@dataclass(frozen=True, slots=True)
class LookAtSwarm:
    """Somebody looks at this learner and wants to see the whole swarm."""


@dataclass(frozen=True, slots=True)
class SyncerAnswers:
    """A syncer that was missed and silent can be reached again."""


@dataclass(frozen=True, slots=True)
class Governed:
    """What this machine's owner set allows no local steps, for this reason; empty: it does."""

    because: str


@dataclass(frozen=True, slots=True)
class CeilingChanged:
    """The owner allows Shoal another amount of memory."""


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """What Shoal takes is at the owner's ceiling: a smaller micro-batch is due."""

    words: str
