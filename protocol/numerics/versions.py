"""From one version of a fragment to the next: the one place where a payload becomes weights.

The merged displacement counts as it decodes, so that the leader, a standby, a learner and a
replayer compute the same bits from the same payload.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import CorruptState
from protocol.log.records import FragmentMerged, StateDigests
from protocol.numerics import chunks
from protocol.numerics.buffers import F32
from protocol.numerics.codecs import NonFinite
from protocol.numerics.outer import outer_step_by
from protocol.numerics.workers import ALONE, Workers
from protocol.project import CodecName


@dataclass(frozen=True, slots=True)
class StateManifests:
    """The chunk digests of one version of a fragment: what its holder hands to downloaders."""

    theta: bytes
    momentum: bytes

    @property
    def digests(self) -> StateDigests:
        """The content hashes that a record certifies."""
        return StateDigests(chunks.root(self.theta), chunks.root(self.momentum))

    def blobs(self, theta: F32, momentum: F32) -> list[tuple[bytes, bytes | memoryview]]:
        """Digest and bytes of all manifests and chunks; chunks are borrowed, not copied."""
        return [*chunks.blobs(self.theta, theta), *chunks.blobs(self.momentum, momentum)]


def state_manifests(theta: F32, momentum: F32, *, workers: Workers = ALONE) -> StateManifests:
    """Hash a version, chunk by chunk."""
    return StateManifests(
        chunks.manifest(theta, workers=workers), chunks.manifest(momentum, workers=workers)
    )


def next_version(
    theta: F32,
    momentum: F32,
    payload: bytes | memoryview,
    *,
    codec: CodecName,
    learning_rate: float,
    momentum_coefficient: float,
    nesterov: bool = True,
    workers: Workers = ALONE,
) -> tuple[F32, F32, StateManifests]:
    """The state after the outer step of this payload: new arrays, and their chunk digests.

    Raises MalformedPayload if the payload does not decode, NonFinite if the step overflows.
    """
    moved, velocity, digests = outer_step_by(
        theta,
        momentum,
        payload,
        codec=codec,
        learning_rate=learning_rate,
        momentum_coefficient=momentum_coefficient,
        nesterov=nesterov,
        workers=workers,
    )
    manifests = StateManifests(*(b"".join(pair[at] for pair in digests) for at in range(2)))
    return moved, velocity, manifests


def certified_version(
    theta: F32,
    momentum: F32,
    payload: bytes | memoryview,
    merged: FragmentMerged,
    *,
    workers: Workers = ALONE,
) -> tuple[F32, F32, StateManifests]:
    """The state that a merge record certifies, computed from the one before.

    Raises CorruptState if it comes out differently, or not at all, because the one before is not
    what it should be: then the full state is needed.
    """
    failure = f"fragment {merged.fragment} v{merged.version} came out differently than certified"
    try:
        moved, velocity, manifests = next_version(
            theta,
            momentum,
            payload,
            codec=merged.codec,
            learning_rate=merged.learning_rate,
            momentum_coefficient=merged.momentum,
            nesterov=merged.nesterov,
            workers=workers,
        )
    except NonFinite as error:
        raise CorruptState(f"{failure}: {error}") from error
    if manifests.digests != merged.state:
        raise CorruptState(failure)
    return moved, velocity, manifests
