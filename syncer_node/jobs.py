"""What the syncer's machine asks others to do, and what comes back. Never a tensor, only names."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import CertifiedRecord, PushHeader
from protocol.records import StateDigests
from protocol.state import SwarmSummary

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

    @property
    def push(self) -> PushId:
        return (self.learner, self.header.incarnation, self.header.sequence)


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge pushes into the next version and keep its payload durably. Answer: `Merged`."""

    round: int
    fragment: int
    version: int
    parts: tuple[MergePart, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    payload: bytes
    """Digest of the quantised merged displacement."""
    payload_bytes: int
    state: StateDigests
    norms: tuple[float, ...]
    scales: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Append:
    """Write a record behind the last one and fsync. Answer: `Appended`."""

    index: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    index: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Keep the whole state as of now under this log index. Answer: `CheckpointWritten`."""

    index: int
    summary: SwarmSummary


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    index: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Action: the merged version is committed and becomes the current one."""

    fragment: int
    version: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Action: these push payloads are not needed any more."""

    pushes: tuple[PushId, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Action: store the certificate beside its record."""

    entry: CertifiedRecord
    index: int


@dataclass(frozen=True, slots=True)
class TellWatchers:
    """Action: send these hosts a report of how the swarm is."""

    peers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NameBest:
    """Action: this checkpoint has the lowest held-out loss so far."""

    index: int
