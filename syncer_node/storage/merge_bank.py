"""The syncer's fragments: pushes in, merged versions out. Pure arithmetic, no IO.

A merge makes a candidate; only when its record is committed does the candidate become the current
version. The error of quantising the merged displacement stays at the leader and goes into the next
merge of that fragment; a new leader, or a restarted one, starts without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from host.bulk.blob_store import BlobStore, Offer
from protocol import limits
from protocol.errors import CorruptState, MalformedPayload
from protocol.fragments import Fragment, Layout
from protocol.ids import Digest
from protocol.log.records import FragmentMerged, StateDigests
from protocol.numerics import versions
from protocol.numerics.buffers import F32
from protocol.numerics.codecs import check
from protocol.numerics.merge import Contribution, MergeResult, Reference, merge_fragment
from protocol.numerics.outer import digest, encode_with_feedback
from protocol.numerics.workers import ALONE, Workers
from protocol.project import Charter, CodecName
from syncer_node.machine.jobs import Merge, PushId

PUSH_VALUE_MAX = 2.0**40
"""No displacement of a model that can be trained comes near. The norm of a fragment of such values
is below 2^60, and so is all that a merge of them holds: every codec has room for 2^100."""

MergeFunction = Callable[[Sequence[Contribution], Fragment, float, Reference | None], MergeResult]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one fragment, with the error feedback of the merge that made it."""

    number: int
    theta: F32
    momentum: F32
    residual: F32 | None
    state: StateDigests
    payload: bytes | memoryview | None
    manifests: versions.StateManifests


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    payload: bytes | memoryview
    payload_digest: bytes
    state: StateDigests
    norms: tuple[float, ...]
    scales: tuple[float, ...]
    cosines: tuple[float, ...]
    trusts: tuple[float, ...]


class MergeBank:
    """All fragments of one syncer."""

    def __init__(
        self,
        layout: Layout,
        charter: Charter,
        blob_store: BlobStore,
        *,
        merge: MergeFunction | None = None,
        workers: Workers = ALONE,
    ) -> None:
        """`merge`: how pushes become one displacement; the simulator may have another one.
        `workers`: who calculates."""
        count = len(layout.fragments)
        self.layout = layout
        self.charter = charter
        self.blob_store = blob_store
        self._merge = merge or partial(merge_fragment, workers=workers)
        self._workers = workers
        self._current: list[Version | None] = [None] * count
        self._offers: list[Offer | None] = [None] * count
        self._candidates: dict[tuple[int, int, bytes], Version] = {}
        """By fragment, version, and payload: a former term's merge may end late."""
        self._pushes: dict[PushId, bytes | memoryview] = {}
        self._ring: list[deque[bytes]] = [deque() for _ in range(count)]

    def current(self, fragment: int) -> Version:
        """The committed version. Raises CorruptState before there is one."""
        version = self._current[fragment]
        if version is None:
            raise CorruptState(f"fragment {fragment} has no version yet")
        return version

    def initialise(
        self,
        fragment: int,
        number: int,
        theta: F32,
        momentum: F32,
        residual: F32 | None = None,
    ) -> StateDigests:
        """Take this as the current version, and its digests."""
        manifests = versions.state_manifests(theta, momentum, workers=self._workers)
        state = manifests.digests
        self._put(fragment, Version(number, theta, momentum, residual, state, None, manifests))
        return state

    def keep_push(
        self, push: PushId, fragment: int, payload: bytes | memoryview, codec: CodecName
    ) -> None:
        """Hold a fetched payload.

        Raises MalformedPayload unless it decodes to finite values that a merge can hold, also
        together with others: one that cannot must not take theirs with it.
        """
        largest = check(codec, payload, self.layout.fragments[fragment].numel)
        if largest > PUSH_VALUE_MAX:
            raise MalformedPayload(f"a value may be as large as {largest:.1e}, no merge could hold")
        self._pushes[push] = payload

    def forget_push(self, push: PushId) -> None:
        self._pushes.pop(push, None)

    def merge(self, job: Merge) -> MergeOutcome:
        """Merge held pushes into a candidate for the next version."""
        base = self.current(job.fragment)
        if base.number != job.version - 1:
            raise CorruptState(
                f"fragment {job.fragment} is at {base.number}, not {job.version - 1}"
            )
        fragment = self.layout.fragments[job.fragment]
        outer, reference = job.outer, None
        if outer.trust == "earned":
            reference = Reference(base.momentum, job.typical, job.norms)
        merged = self._merge(
            [
                Contribution(
                    key=part.push,
                    codec=part.header.codec,
                    payload=self._pushes[part.push],
                    weight=part.weight,
                    standing=part.standing,
                )
                for part in job.parts
            ],
            fragment,
            outer.clip_to_median,
            reference,
        )
        carried = base.residual if base.residual is not None else np.zeros_like(base.theta)
        payload, residual = encode_with_feedback(
            job.codec, merged.values, carried, workers=self._workers
        )
        theta, momentum, manifests = versions.next_version(
            base.theta,
            base.momentum,
            payload,
            codec=job.codec,
            learning_rate=outer.learning_rate,
            momentum_coefficient=outer.momentum,
            nesterov=outer.nesterov,
            workers=self._workers,
        )
        name, state = digest(payload), manifests.digests
        self._candidates[job.fragment, job.version, name] = Version(
            job.version, theta, momentum, residual, state, payload, manifests
        )
        self.blob_store.put(name, payload)  # Standbys store it before they sign for it.
        return MergeOutcome(
            payload, name, state, merged.norms, merged.scales, merged.cosines, merged.trusts
        )

    def adopt(self, fragment: int, number: int, payload: bytes) -> None:
        """The candidate with this payload is committed: it is current, its rivals are void."""
        version = self._candidates[fragment, number, payload]
        assert version.payload is not None, "candidates come from payloads"
        self._put(fragment, version)
        self._offer(fragment, payload, version.payload)
        self._drop_candidates(fragment, number)

    def _drop_candidates(self, fragment: int, number: int) -> None:
        """Merges up to this version are decided."""
        void = [key for key in self._candidates if key[0] == fragment and key[1] <= number]
        for key in void:
            del self._candidates[key]
            self.blob_store.drop(key[2])

    def replay(self, merged: FragmentMerged, payload: bytes) -> None:
        """Recover a committed version from its payload. CorruptState if its bits differ."""
        fragment, number = merged.fragment, merged.version
        base = self.current(fragment)
        if base.number != number - 1:
            raise CorruptState(f"fragment {fragment} is at {base.number}, not {number - 1}")
        theta, momentum, manifests = versions.certified_version(
            base.theta, base.momentum, payload, merged, workers=self._workers
        )
        version = Version(number, theta, momentum, None, merged.state, payload, manifests)
        self._put(fragment, version)
        self._offer(fragment, merged.payload, payload)
        self._drop_candidates(fragment, number)

    def _put(self, fragment: int, version: Version) -> None:
        former, manifests = self._offers[fragment], version.manifests
        self._current[fragment] = version
        self._offers[fragment] = self.blob_store.put_group(
            manifests.blobs(version.theta, version.momentum)
        )
        if former is not None:
            self.blob_store.retire(former)

    def _offer(self, fragment: int, name: Digest, payload: bytes | memoryview) -> None:
        self.blob_store.put(name, payload)
        ring = self._ring[fragment]
        ring.append(name)
        if len(ring) > limits.PAYLOAD_RING:
            self.blob_store.drop(ring.popleft())
