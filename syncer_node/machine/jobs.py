"""What the syncer's machine asks others to do, and what comes back. Never a tensor, only names."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.log.records import FragmentMerged, StateDigests, WeightsRestored
from protocol.log.restoring import States
from protocol.log.state import FragmentState, SwarmSummary
from protocol.messages import CertifiedRecord, Envelope, PushHeader
from protocol.novelty import UNHEARD, Novelty
from protocol.project import CodecName, OuterSpec
from protocol.snapshots.manifest import Manifest
from protocol.standing import NOBODY, Standing

PushId = tuple[bytes, int, int]
"""(learner key, incarnation, sequence)."""


@dataclass(frozen=True, slots=True)
class InitialiseWeights:
    """Make version 0 of every fragment and keep it durably. Answer: `WeightsMade`."""


@dataclass(frozen=True, slots=True)
class WeightsMade:
    fragments: tuple[StateDigests, ...]


@dataclass(frozen=True, slots=True)
class FetchPush:
    """Fetch a push's payload and prove length, digest and finite content. Answer: `PushFetched`."""

    peer: bytes
    round: int
    header: PushHeader
    left_s: float
    """Until the deadline of the pull: later it counts for nothing."""
    is_proven: bool
    """Something of this learner was merged before."""
    source: bytes | None = None
    """Who else has it; None for the learner."""

    @property
    def push(self) -> PushId:
        return (self.peer, self.header.incarnation, self.header.sequence)


@dataclass(frozen=True, slots=True)
class PushFetched:
    """The payload is here and sound."""


@dataclass(frozen=True, slots=True)
class PushRefused:
    """The payload is not what the header says: the sender's fault."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class MergePart:
    """One push in a merge."""

    learner: bytes
    header: PushHeader
    weight: float
    standing: Standing = NOBODY
    """Of the learner, before this merge."""
    novelty: Novelty = UNHEARD
    """As `standing`."""

    @property
    def push(self) -> PushId:
        return (self.learner, self.header.incarnation, self.header.sequence)


@dataclass(frozen=True, slots=True)
class Against:
    """What the leader knows that pushes of a merge are measured against; see `Reference`."""

    typical: float
    norms: tuple[float, ...]
    is_established: bool
    seed: int
    steps: tuple[int, ...] = ()
    """Local steps of those whose norms these are; 0 where they are not known."""
    tensors: tuple[bytes, ...] = ()
    """Their norms by tensor."""
    repeats: float = 1.0
    """How far learners usually repeat themselves; 1 where that is not known."""
    typical_novelty: float = 0.0
    strays: float = 0.0
    """Share of the median direction by which that of a learner may stray by chance."""
    novelty_strays: float = 0.0


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge pushes into the next version and keep its payload durably. Answer: `Merged`."""

    round: int
    fragment: int
    version: int
    codec: CodecName
    outer: OuterSpec
    """With the codec, as of now: a charter adopted meanwhile does not change this merge."""
    parts: tuple[MergePart, ...]
    against: Against | None = None
    """What pushes are measured against, where trust is earned."""


@dataclass(frozen=True, slots=True)
class Merged:
    payload: bytes
    """Digest of the quantised merged displacement."""
    payload_bytes: int
    state: StateDigests
    norms: tuple[float, ...]
    scales: tuple[float, ...]
    cosines: tuple[float, ...]
    trusts: tuple[float, ...]
    shares: tuple[float, ...]
    seconds: float
    tensors: tuple[bytes, ...] = ()
    """None where trust is not earned."""
    tensors_clipped: tuple[int, ...] = ()
    expected: tuple[float, ...] = ()
    """None on older tapes, where all were expected to point alike."""
    repeats: tuple[float, ...] = ()
    echoes: tuple[float, ...] = ()
    """None where nothing was merged lately."""
    novelties: tuple[float | None, ...] = ()
    """As `echoes`; None for one where too few others were in the merge."""
    merger: bytes | None = None
    """Who merged, if it was not this host."""
    up_bytes_per_s: float | None = None
    """What the line of who merged sends at most; None where that is not known."""
    up_backlog_s: float = 0.0
    """Seconds that it needs for what waits to be sent."""


@dataclass(frozen=True, slots=True)
class TakeMerge:
    """Fetch what a merger merged, keep it durably, and take the outer step from it, as a candidate.

    Answer: `MergeTaken`. Nothing of it counts where the state comes out differently.
    """

    order: int
    merge: Merge
    result: Merged


@dataclass(frozen=True, slots=True)
class MergeTaken:
    """The candidate is here, as if this host had merged."""


@dataclass(frozen=True, slots=True)
class FetchPayload:
    """Fetch a merged payload from the leader and keep it durably. Answer: `PayloadKept`."""

    index: int
    """Of the record that names it."""
    leader: bytes | None
    merged: FragmentMerged


@dataclass(frozen=True, slots=True)
class FetchWeights:
    """Fetch version 0 of every fragment and keep it durably. Answer: `PayloadKept`."""

    index: int
    leader: bytes | None
    fragments: tuple[StateDigests, ...]


@dataclass(frozen=True, slots=True)
class HoldCheckpoint:
    """Have the weights of a checkpoint ready to go back to, durably, and offer them to others: from
    this disk, else from other syncers. Answer: `PayloadKept`."""

    checkpoint: int
    states: States


@dataclass(frozen=True, slots=True)
class FetchRestored:
    """Keep the weights of a checkpoint that the guard goes back to durably, from this disk or from
    others. Answer: `PayloadKept`."""

    index: int
    """Of the record that names them."""
    leader: bytes | None
    restored: WeightsRestored


FetchJob = FetchPayload | FetchWeights | FetchRestored
"""What a standby needs before it signs for a record."""


@dataclass(frozen=True, slots=True)
class PayloadKept:
    """What a record needs besides itself is on this disk."""


@dataclass(frozen=True, slots=True)
class PayloadNotWritten:
    """It came, but this disk did not take it: worth another try, and nobody else could help."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Take the kept version 0 as the current one. Answer: `Replayed`."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Take the outer step of a merge from its kept payload. Answer: `Replayed`."""

    merged: FragmentMerged


@dataclass(frozen=True, slots=True)
class Restore:
    """Take the kept weights of a checkpoint as the new versions. Answer: `Replayed`."""

    restored: WeightsRestored


@dataclass(frozen=True, slots=True)
class Replayed:
    """The bank stands where the record says."""


@dataclass(frozen=True, slots=True)
class InstallState:
    """Begin the log behind this entry, with the state it was offered with. Answer: `Installed`."""

    entry: CertifiedRecord
    summary: SwarmSummary
    origins: tuple[CertifiedRecord, ...]


@dataclass(frozen=True, slots=True)
class Installed:
    """This disk holds the state's names and an empty log behind it; the tensors are to come."""


@dataclass(frozen=True, slots=True)
class RepairFragment:
    """Fetch a fragment's newest value and momentum by digest, from anybody. Answer: `Repaired`."""

    fragment: int
    leader: bytes | None
    newest: FragmentState


@dataclass(frozen=True, slots=True)
class Repaired:
    """The bank holds this version of the fragment."""


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Keep the whole state as of now under this log index. Answer: `CheckpointWritten`."""

    index: int
    summary: SwarmSummary


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    index: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the weights of the cut; `KeepSnapshot` finishes. Answer: `SnapshotWritten`."""

    snapshot: int


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """They are on the disk."""


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Finish the snapshot with its manifest; drop all that are not kept. Answer: `SnapshotKept`."""

    manifest: Manifest
    entry: CertifiedRecord
    """The record at the cut."""
    origins: tuple[CertifiedRecord, ...]
    """Records that made the newest versions then."""
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotKept:
    """The snapshot exists."""


@dataclass(frozen=True, slots=True)
class CutSnapshot:
    """Action: hold on to the versions of now, until they are written or dropped."""

    snapshot: int
    summary: SwarmSummary


@dataclass(frozen=True, slots=True)
class DropSnapshot:
    """Action: forget a snapshot that was not finished."""

    snapshot: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Action: the merged version is committed and becomes the current one."""

    fragment: int
    version: int
    payload: bytes
    """Digest, for a former term may have merged the same version of other pushes."""


@dataclass(frozen=True, slots=True)
class AdoptRestored:
    """Action: the guard went back; what `HoldCheckpoint` has ready becomes the current versions."""

    restored: WeightsRestored


@dataclass(frozen=True, slots=True)
class OfferCheckpoint:
    """Action: let the leader fetch the weights of this checkpoint here, if this disk has them.
    With checkpoint 0: no longer."""

    checkpoint: int
    states: States


@dataclass(frozen=True, slots=True)
class Forget:
    """Action: these push payloads are not needed any more."""

    pushes: tuple[PushId, ...]


@dataclass(frozen=True, slots=True)
class OfferPush:
    """Action: whoever probes this push fetches it from here, also once it is forgotten."""

    push: PushId
    payload: bytes
    """Digest."""


@dataclass(frozen=True, slots=True)
class RetractPush:
    """Action: nobody probes the push with this payload any more."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """Action: store the certificate beside its record."""

    entry: CertifiedRecord
    index: int


@dataclass(frozen=True, slots=True)
class KeepCharter:
    """Action: store the newest charter that the owner signed."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class TellWatchers:
    """Action: send these hosts a report of how the swarm is."""

    peers: tuple[bytes, ...]
    learners: tuple[bytes, ...] = ()
    """Those that asked for one report, a shorter one."""


@dataclass(frozen=True, slots=True)
class NameBest:
    """Action: this checkpoint has the lowest held-out loss so far."""

    index: int
