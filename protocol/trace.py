"""Typed facts that machines emit: past tense, one line each for people, fields for programs.

Logs print `text`; screens, the simulator's checkers and the tape read the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.ids import short

SHOWN_MAX = 8
"""Hosts named in one line."""


class Fact(Protocol):
    """Something that happened, worth telling."""

    @property
    def text(self) -> str:
        """One line in words."""
        ...


@dataclass(frozen=True, slots=True)
class SessionOpened:
    peer: bytes
    name: str
    is_resumed: bool

    @property
    def text(self) -> str:
        how = "is back, log continued" if self.is_resumed else "joined"
        return f"{self.name} ({short(self.peer)}) {how}"


@dataclass(frozen=True, slots=True)
class SessionClosed:
    peer: bytes
    name: str
    reason: str
    has_left: bool = False
    """It said goodbye."""

    @property
    def text(self) -> str:
        how = "left" if self.has_left else "was lost"
        return f"{self.name} ({short(self.peer)}) {how}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SessionRefused:
    peer: bytes
    reason: str
    detail: str

    @property
    def text(self) -> str:
        return f"refused {short(self.peer)}: {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class PeerMisbehaved:
    """A peer broke a rule; counted by reason in `status`."""

    peer: bytes
    reason: str
    detail: str

    @property
    def text(self) -> str:
        return f"{short(self.peer)} {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class TapeStopped:
    """Nothing is recorded any more; everything else goes on."""

    role: str
    reason: str

    @property
    def text(self) -> str:
        return f"the tape stopped: {self.reason}; the {self.role} continues without it"


@dataclass(frozen=True, slots=True)
class RoundOpened:
    round: int
    fragment: int
    asked: int
    quorum: int

    @property
    def text(self) -> str:
        return (
            f"round {self.round} opened: fragment {self.fragment}, "
            f"{self.asked} asked, quorum {self.quorum}"
        )


@dataclass(frozen=True, slots=True)
class MergerAssigned:
    """Which syncer merges a fragment from now on."""

    fragment: int
    merger: bytes

    @property
    def text(self) -> str:
        return f"fragment {self.fragment} is merged by {short(self.merger)}"


@dataclass(frozen=True, slots=True)
class MergerFailed:
    """A merger did not do what it was asked to: another one does."""

    merger: bytes
    round: int
    reason: str

    @property
    def text(self) -> str:
        return f"round {self.round} is taken from merger {short(self.merger)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class QuorumReached:
    round: int
    arrived: int
    waited_s: float
    grace_s: float

    @property
    def text(self) -> str:
        return (
            f"round {self.round}: quorum of {self.arrived} after {self.waited_s:.2f} s, "
            f"grace {self.grace_s:.2f} s"
        )


@dataclass(frozen=True, slots=True)
class RoundAbandoned:
    round: int
    fragment: int
    reason: str

    @property
    def text(self) -> str:
        return f"round {self.round} abandoned: {self.reason}"


@dataclass(frozen=True, slots=True)
class PushSettled:
    round: int
    learner: bytes
    incarnation: int
    sequence: int
    outcome: str
    reason: str

    @property
    def text(self) -> str:
        tail = f" ({self.reason})" if self.reason else ""
        return f"round {self.round}: push of {short(self.learner)} {self.outcome}{tail}"


@dataclass(frozen=True, slots=True)
class FragmentCommitted:
    """A merge became part of the log."""

    index: int
    global_step: int
    fragment: int
    version: int
    participants: int
    mean_steps: float
    merge_s: float

    @property
    def text(self) -> str:
        learners = "1 learner" if self.participants == 1 else f"{self.participants} learners"
        return (
            f"global step {self.global_step}: fragment {self.fragment} v{self.version} "
            f"from {learners}, {self.mean_steps:.1f} local steps each"
        )


@dataclass(frozen=True, slots=True)
class RecordCommitted:
    """Any record got its certificate; checkers compare these between hosts."""

    index: int
    term: int
    digest: bytes
    kind: str

    @property
    def text(self) -> str:
        return f"record {self.index} ({self.kind}) committed"


@dataclass(frozen=True, slots=True)
class FragmentAdvanced:
    """A holder computed a version from its predecessor or fetched it, and its hash was right."""

    fragment: int
    version: int
    theta: bytes
    source: str

    @property
    def text(self) -> str:
        return f"fragment {self.fragment} is at version {self.version} ({self.source})"


@dataclass(frozen=True, slots=True)
class FragmentApplied:
    """The inner loop stands on this version from this local step on."""

    fragment: int
    version: int
    local_step: int

    @property
    def text(self) -> str:
        return f"fragment {self.fragment} v{self.version} applied at local step {self.local_step}"


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """Where the learner's connection to the syncer stands."""

    state: str
    detail: str

    @property
    def text(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else self.state


@dataclass(frozen=True, slots=True)
class BookmarkRead:
    """Where a former life of this daemon stopped was on the disk."""

    index: int
    """Of the log's record; 0 where it is of no use."""
    trouble: str = ""

    @property
    def text(self) -> str:
        if self.trouble:
            return f"this daemon begins anew; what it kept is of no use: {self.trouble}"
        return f"this daemon goes on from record {self.index:,}, where it stopped"


@dataclass(frozen=True, slots=True)
class WeightsReady:
    """Every fragment is held in a verified version."""

    from_peers: int
    from_syncer: int
    """Fragments of which the syncer had to send at least a part."""
    seconds: float
    sources: tuple[tuple[bytes, int], ...] = ()
    """Who sent how many bytes of them."""

    @property
    def text(self) -> str:
        ranked = sorted(self.sources, key=lambda part: -part[1])
        shown = [f"{count / 1e6:.1f} MB from {short(key)}" for key, count in ranked[:SHOWN_MAX]]
        others = ranked[SHOWN_MAX:]
        if others:
            count = sum(part for _, part in others)
            shown.append(f"{count / 1e6:.1f} MB from {len(others)} others")
        if not self.from_peers and not self.from_syncer:
            return f"weights verified: all of them from this disk, {self.seconds:.1f} s"
        return (
            f"weights verified: {self.from_peers} fragments from learners, "
            f"{self.from_syncer} from the syncer, {self.seconds:.1f} s"
            + (f"; {', '.join(shown)}" if shown else "")
        )


@dataclass(frozen=True, slots=True)
class TrainerChanged:
    state: str
    detail: str

    @property
    def text(self) -> str:
        return f"trainer {self.state}: {self.detail}" if self.detail else f"trainer {self.state}"


@dataclass(frozen=True, slots=True)
class RejoinChanged:
    """Where the recovery of a (re)started learner's optimizer state stands."""

    state: str
    detail: str

    @property
    def text(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else self.state


@dataclass(frozen=True, slots=True)
class PartChanged:
    """Where a learner's part of a snapshot stands."""

    state: str
    trigger: str
    detail: str

    @property
    def text(self) -> str:
        if self.trigger == "kept":
            return f"snapshot {self.detail}: this learner's part is kept"
        if self.trigger == "gave up":
            return f"no part of the snapshot: {self.detail}"
        return f"snapshot: {self.state}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    """The syncer is cut; learners are asked for their parts."""

    snapshot: str
    index: int
    learners: int

    @property
    def text(self) -> str:
        return f"snapshot {self.snapshot} begins at record {self.index}, {self.learners} learners"


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """A snapshot is on the disk, or was given up."""

    snapshot: str
    is_kept: bool
    parts: int
    skipped: tuple[tuple[str, str], ...]
    """Name and reason of learners that are not in."""
    trouble: str
    seconds: float

    @property
    def text(self) -> str:
        if not self.is_kept:
            return f"snapshot {self.snapshot} was abandoned: {self.trouble}"
        told = ", ".join(f"{name} ({reason})" for name, reason in self.skipped[:SHOWN_MAX])
        tail = f"; not in: {told}" if told else ""
        count = f"{self.parts} learner{'s' if self.parts != 1 else ''}"
        return f"snapshot {self.snapshot} kept after {self.seconds:.1f} s with {count}{tail}"


@dataclass(frozen=True, slots=True)
class LearnerRestored:
    """What a learner says it went on from after a snapshot was restored."""

    peer: bytes
    name: str
    is_restored: bool
    local_step: int
    trouble: str

    @property
    def text(self) -> str:
        if self.is_restored:
            return f"{self.name} continues from its part, local step {self.local_step}"
        return f"{self.name} starts over: {self.trouble}"


@dataclass(frozen=True, slots=True)
class MomentsTaken:
    """A trainer begins with another learner's optimizer state."""

    donor: bytes
    asked: tuple[int, ...]
    """Log index and fragment versions that the copy had to have observed."""
    given: tuple[int, ...]
    """Those of the donor when it was made."""
    behind: int
    """Global steps between the question and the installation."""
    steps: int

    @property
    def text(self) -> str:
        return (
            f"optimizer state of {short(self.donor)} after {self.steps} steps taken over, "
            f"{self.behind} global steps later"
        )


@dataclass(frozen=True, slots=True)
class MomentsOffered:
    """A snapshot of the optimizer state may be fetched here for a while."""

    clock: tuple[int, ...]
    blobs: int

    @property
    def text(self) -> str:
        return f"optimizer state as of record {self.clock[0]} on offer, {self.blobs} blobs"


@dataclass(frozen=True, slots=True)
class ReceiptTaken:
    """A leader's receipt was proven, and agrees with the log."""

    leader: bytes
    index: int
    merges: int
    tokens: int
    """Summed over fragments."""

    @property
    def text(self) -> str:
        return f"receipt of {short(self.leader)} up to record {self.index}: {self.merges} merges"


@dataclass(frozen=True, slots=True)
class CheckpointScored:
    global_step: int
    loss: float
    evaluator: bytes

    @property
    def text(self) -> str:
        return (
            f"held-out loss {self.loss:.4f} at global step {self.global_step} "
            f"(by {short(self.evaluator)})"
        )


@dataclass(frozen=True, slots=True)
class LossesDiffer:
    """Two learners measured the same checkpoint and do not agree; it does not count as best."""

    global_step: int
    evaluator: bytes
    loss: float
    second: bytes
    second_loss: float

    @property
    def text(self) -> str:
        return (
            f"{short(self.evaluator)} measured {self.loss:.4f} at global step {self.global_step}, "
            f"{short(self.second)} {self.second_loss:.4f}: it does not count as best"
        )


@dataclass(frozen=True, slots=True)
class PushMeasured:
    """This learner probed somebody's push."""

    probe: int
    fragment: int
    own: float
    """By how much it lowers the loss of the text that it is said to be trained on."""
    other: float
    seconds: float

    @property
    def text(self) -> str:
        return (
            f"measured what another learner's push of fragment {self.fragment} does to the loss: "
            f"{-self.own:+.4f} on its own text, {-self.other:+.4f} on other text "
            f"(probe {self.probe}, {self.seconds:.1f} s)"
        )


@dataclass(frozen=True, slots=True)
class ProbeRefused:
    """This learner did not probe somebody's push."""

    probe: int
    reason: str
    detail: str

    @property
    def text(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"did not measure another learner's push (probe {self.probe}): {self.reason}{tail}"


@dataclass(frozen=True, slots=True)
class GuardWentBack:
    """The guard gave up weights that are far worse than the best, and went back to those."""

    words: str

    @property
    def text(self) -> str:
        return f"{self.words}; merging goes on from them"


@dataclass(frozen=True, slots=True)
class RestoreGivenUp:
    """The guard would have gone back, and cannot."""

    because: str

    @property
    def text(self) -> str:
        return (
            f"merging stays paused, because {self.because}. `shoal project undo PROJECT` goes "
            "back, `shoal project resume PROJECT` goes on"
        )


@dataclass(frozen=True, slots=True)
class ProgressTakenBack:
    """Several pushes of a learner in a row did not count, so nothing of it is progress any more."""

    learner: bytes
    tokens: int
    """By which the run's tokens fell."""

    @property
    def text(self) -> str:
        return (
            f"{self.tokens:,} tokens of {short(self.learner)} are taken back: its pushes do not "
            "count, so the run goes on for as many more"
        )


@dataclass(frozen=True, slots=True)
class ProgressGivenBack:
    """Its pushes count again, and so do its tokens."""

    learner: bytes

    @property
    def text(self) -> str:
        return f"tokens of {short(self.learner)} count again, as its pushes do"


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """Somebody measured what a push does to the loss."""

    learner: bytes
    prober: bytes
    contrast: float
    """Standard errors by which the text of the push gained more than other text."""
    score: float

    @property
    def text(self) -> str:
        return (
            f"{short(self.prober)} probed a push of {short(self.learner)}: contrast "
            f"{self.contrast:+.1f}, score {self.score:+.2f}"
        )


@dataclass(frozen=True, slots=True)
class ProbeUnanswered:
    """A probe came to nothing."""

    learner: bytes
    prober: bytes
    reason: str

    @property
    def text(self) -> str:
        return f"{short(self.prober)} probed no push of {short(self.learner)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LearnerSuspended:
    """What others measured of its pushes stands against a learner: nothing of it counts."""

    learner: bytes
    detail: str

    @property
    def text(self) -> str:
        return f"{short(self.learner)} is suspended: {self.detail}"


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """What a voter is now in the election of a leader."""

    role: str
    term: int
    detail: str

    @property
    def text(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"{self.role} in term {self.term}{tail}"


@dataclass(frozen=True, slots=True)
class VoterGreeted:
    """Another voter is here, or was turned away."""

    peer: bytes
    trouble: str

    @property
    def text(self) -> str:
        if self.trouble:
            return f"voter {short(self.peer)} turned away: {self.trouble}"
        return f"voter {short(self.peer)} is here"


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    phase: str
    detail: str

    @property
    def text(self) -> str:
        return f"{self.phase}: {self.detail}" if self.detail else self.phase
