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
from host.files.mapped_arrays import Keep, in_memory
from protocol import limits
from protocol.errors import CorruptState, MalformedPayload
from protocol.fragments import Fragment, Layout
from protocol.ids import Digest
from protocol.log.records import FragmentMerged, StateDigests, WeightsRestored
from protocol.merge_rules import MERGES_COMPARED, RULES, MergeRules
from protocol.numerics import lengths, versions
from protocol.numerics.buffers import F32
from protocol.numerics.codecs import NonFinite, check
from protocol.numerics.merge import Contribution, MergeResult, Reference, merge_fragment
from protocol.numerics.outer import digest, encode_with_feedback
from protocol.numerics.workers import ALONE, Workers
from protocol.project import Charter, CodecName
from syncer_node.machine.jobs import Against, Merge, Merged, MergePart, PushId
from syncer_node.storage.own_parts import OwnParts

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
    codec: CodecName = "f32"
    """Of the payload."""


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """The weights of an earlier checkpoint, ready to go back to and offered to others."""

    checkpoint: int
    theta: list[F32]
    momentum: list[F32]
    manifests: list[versions.StateManifests]
    offers: list[Offer]


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    payload: bytes | memoryview
    payload_digest: bytes
    state: StateDigests
    norms: tuple[float, ...]
    scales: tuple[float, ...]
    cosines: tuple[float, ...]
    trusts: tuple[float, ...]
    shares: tuple[float, ...]
    tensors: tuple[bytes, ...]
    tensors_clipped: tuple[int, ...]
    expected: tuple[float, ...]
    repeats: tuple[float, ...]
    echoes: tuple[float, ...]
    novelties: tuple[float | None, ...]


Lately = tuple[tuple[CodecName, bytes | memoryview], ...]
"""Merged displacements of one fragment, the newest last: codec and payload of each."""


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
        rules: MergeRules = RULES,
        on_version: Callable[[int, Version, float], None] | None = None,
        keep: Keep = in_memory,
    ) -> None:
        """`merge`: how pushes become one displacement; the simulator may have another one, and
        other `rules`. `workers`: who calculates. on_version: hears of each version of a
        fragment that becomes current, and of the charter's `ema`. keep: for arrays that stay,
        which may lie in files; they are not changed any more."""
        count = len(layout.fragments)
        self.layout = layout
        self.charter = charter
        self.blob_store = blob_store
        self._merge = merge or partial(merge_fragment, workers=workers)
        self._workers = workers
        self._rules = rules
        self._on_version = on_version
        self._keep = keep
        self._current: list[Version | None] = [None] * count
        self._offers: list[Offer | None] = [None] * count
        self._candidates: dict[tuple[int, int, bytes], Version] = {}
        """By fragment, version, and payload: a former term's merge may end late."""
        self._own_parts = OwnParts()
        self._pushes: dict[PushId, bytes | memoryview] = {}
        self._probed: set[bytes] = set()
        """Digests of pushes that are offered to a prober."""
        self._ring: list[deque[bytes]] = [deque() for _ in range(count)]
        self._lately: list[Lately] = [()] * count
        self._held: HeldCheckpoint | None = None

    def current(self, fragment: int) -> Version:
        """The committed version. Raises CorruptState before there is one."""
        version = self._current[fragment]
        if version is None:
            raise CorruptState(f"fragment {fragment} has no version yet")
        return version

    def lately(self, fragment: int) -> Lately:
        """What was merged of it since this bank began, as far as later pushes are compared."""
        return self._lately[fragment]

    def initialise(
        self,
        fragment: int,
        number: int,
        theta: F32,
        momentum: F32,
        residual: F32 | None = None,
        lately: Lately = (),
    ) -> StateDigests:
        """Take this as the current version, and its digests. lately: what was merged before it."""
        self._lately[fragment] = lately
        manifests = versions.state_manifests(theta, momentum, workers=self._workers)
        state = manifests.digests
        left = None if residual is None else self._keep(residual)
        kept = self._keep(theta), self._keep(momentum), left
        self._put(fragment, Version(number, *kept, state, None, manifests))
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

    def offer_push(self, push: PushId, name: Digest) -> None:
        """Let a prober fetch this push until `retract_push`."""
        payload = self._pushes.get(push)
        if payload is not None and name not in self._probed:
            self._probed.add(name)
            self.blob_store.put(name, payload)

    def retract_push(self, name: Digest) -> None:
        """Offer it no more; one that was not offered is no matter."""
        if name in self._probed:
            self._probed.remove(name)
            self.blob_store.drop(name)

    def merge(self, job: Merge) -> MergeOutcome:
        """Merge held pushes into a candidate for the next version."""
        base = self.current(job.fragment)
        if base.number != job.version - 1:
            raise CorruptState(
                f"fragment {job.fragment} is at {base.number}, not {job.version - 1}"
            )
        fragment = self.layout.fragments[job.fragment]
        outer, told, reference = job.outer, job.against, None
        if told is not None:
            reference = self._reference(job.fragment, base.momentum, told)
        contributions = [self._contribution(part, base.number) for part in job.parts]
        merged = self._merge(contributions, fragment, outer.clip_to_median, reference)
        carried = base.residual if base.residual is not None else np.zeros_like(base.theta)
        payload, residual = encode_with_feedback(
            job.codec, merged.values, carried, workers=self._workers
        )
        theta, momentum, manifests = self._stepped(base, job, payload)
        name, state = digest(payload), manifests.digests
        left = self._keep(residual)
        self._candidates[job.fragment, job.version, name] = Version(
            job.version, theta, momentum, left, state, payload, manifests, job.codec
        )
        self._own_parts.propose(
            (job.fragment, job.version, name),
            {part.learner: its for part, its in zip(job.parts, merged.own_parts, strict=False)},
        )
        self.blob_store.put(name, payload)  # Standbys store it before they sign for it.
        return MergeOutcome(
            payload,
            name,
            state,
            merged.norms,
            merged.scales,
            merged.cosines,
            merged.trusts,
            merged.shares,
            merged.tensors,
            merged.tensors_clipped,
            merged.expected,
            merged.repeats,
            merged.echoes,
            merged.novelties,
        )

    def _contribution(self, part: MergePart, version: int) -> Contribution:
        """version: that the merge begins from."""
        return Contribution(
            key=part.push,
            codec=part.header.codec,
            payload=self._pushes[part.push],
            weight=part.weight,
            standing=part.standing,
            steps=part.header.steps,
            novelty=part.novelty,
            is_late=part.header.base_version < version,
            base_version=part.header.base_version,
        )

    def _reference(self, fragment: int, momentum: F32, told: Against) -> Reference:
        count = len(told.norms)
        steps, tensors = told.steps or (0,) * count, told.tensors or (b"",) * count
        known = tuple(
            lengths.Length(norm, its, lengths.decode(codes, norm))
            for norm, its, codes in zip(told.norms, steps, tensors, strict=True)
        )
        count = self._rules.merges_compared
        return Reference(
            momentum,
            told.typical,
            known,
            told.is_established,
            told.seed,
            self._rules,
            told.repeats,
            self._own_parts.former(fragment, told.seed),
            self._lately[fragment][-count:] if count else (),
            told.typical_novelty,
            told.strays,
            told.novelty_strays,
        )

    def adopt(self, fragment: int, number: int, payload: bytes) -> None:
        """The candidate with this payload is committed: it is current, its rivals are void."""
        version = self._candidates[fragment, number, payload]
        assert version.payload is not None, "candidates come from payloads"
        self._own_parts.adopt((fragment, number, payload))
        self._put(fragment, version)
        self._offer(fragment, payload, version.payload, version.codec)
        self._drop_candidates(fragment, number)

    def _stepped(
        self, base: Version, job: Merge, payload: bytes | memoryview
    ) -> tuple[F32, F32, versions.StateManifests]:
        """The state after the outer step of a merge, as `versions.next_version`, where it stays."""
        theta, momentum, manifests = versions.next_version(
            base.theta,
            base.momentum,
            payload,
            codec=job.codec,
            learning_rate=job.outer.learning_rate,
            momentum_coefficient=job.outer.momentum,
            nesterov=job.outer.nesterov,
            workers=self._workers,
        )
        return self._keep(theta), self._keep(momentum), manifests

    def take(self, job: Merge, result: Merged, payload: bytes | memoryview) -> None:
        """Make what a merger merged a candidate. CorruptState if its state is not what follows."""
        base = self.current(job.fragment)
        if base.number != job.version - 1:
            raise CorruptState(
                f"fragment {job.fragment} is at {base.number}, not {job.version - 1}"
            )
        failure = f"fragment {job.fragment} v{job.version} is not what its merger said"
        try:
            theta, momentum, manifests = self._stepped(base, job, payload)
        except (MalformedPayload, NonFinite) as error:
            raise CorruptState(f"{failure}: {error}") from error
        if manifests.digests != result.state:
            raise CorruptState(failure)
        self._candidates[job.fragment, job.version, result.payload] = Version(
            job.version, theta, momentum, None, result.state, payload, manifests, job.codec
        )
        self.blob_store.put(result.payload, payload)

    def is_merged(self, name: Digest) -> bool:
        """Whether this is a payload of one of the newest versions."""
        return any(name in ring for ring in self._ring)

    def _drop_candidates(self, fragment: int, number: int) -> None:
        """Merges up to this version are decided."""
        # A thread may add one meanwhile: the keys are listed in one go.
        known = list(self._candidates)
        void = [key for key in known if key[0] == fragment and key[1] <= number]
        for key in void:
            del self._candidates[key]
            self._own_parts.drop(key)
            self.blob_store.drop(key[2])

    def replay(self, merged: FragmentMerged, payload: bytes) -> None:
        """Recover a committed version from its payload. CorruptState if its bits differ."""
        fragment, number = merged.fragment, merged.version
        base = self.current(fragment)
        if base.number != number - 1:
            raise CorruptState(f"fragment {fragment} is at {base.number}, not {number - 1}")
        candidate = self._candidates.get((fragment, number, merged.payload))
        if candidate is not None and candidate.state == merged.state:
            # Merged here, for another host that leads: with it goes what quantising left over.
            self.adopt(fragment, number, merged.payload)
            return
        theta, momentum, manifests = versions.certified_version(
            base.theta, base.momentum, payload, merged, workers=self._workers
        )
        kept = self._keep(theta), self._keep(momentum)
        version = Version(number, *kept, None, merged.state, payload, manifests, merged.codec)
        self._put(fragment, version)
        self._offer(fragment, merged.payload, payload, merged.codec)
        self._drop_candidates(fragment, number)

    # Going back.

    @property
    def held_checkpoint(self) -> int:
        """Log index of the checkpoint whose weights are offered besides the current ones, or 0."""
        return self._held.checkpoint if self._held is not None else 0

    def hold_checkpoint(self, checkpoint: int, theta: list[F32], momentum: list[F32]) -> None:
        """Offer these weights and have them ready for `adopt_restored`."""
        self.let_checkpoint_go()
        manifests = [
            versions.state_manifests(*pair, workers=self._workers)
            for pair in zip(theta, momentum, strict=True)
        ]
        offers = [
            self.blob_store.put_group(one.blobs(*pair))
            for one, *pair in zip(manifests, theta, momentum, strict=True)
        ]
        self._held = HeldCheckpoint(checkpoint, theta, momentum, manifests, offers)

    def let_checkpoint_go(self) -> None:
        """Offer no earlier weights any more."""
        if self._held is not None:
            for offer in self._held.offers:
                self.blob_store.retire(offer)
        self._held = None

    def adopt_restored(self, restored: WeightsRestored) -> None:
        """The guard went back to the checkpoint that is held: its weights are the current ones."""
        held = self._held
        assert held is not None, "the leader holds what it proposes to go back to"
        assert held.checkpoint == restored.checkpoint, "it holds that checkpoint alone"
        for at, number in enumerate(restored.versions):
            self._restore(at, number, held.theta[at], held.momentum[at], held.manifests[at])
        self.let_checkpoint_go()

    def restore(
        self, restored: WeightsRestored, theta: Sequence[F32], momentum: Sequence[F32]
    ) -> None:
        """Take these weights as the new versions, but for fragments that are further already.

        Raises CorruptState unless they are those that the record certifies.
        """
        pairs = list(zip(theta, momentum, strict=True))
        found = [versions.state_manifests(*pair, workers=self._workers) for pair in pairs]
        if tuple(one.digests for one in found) != restored.fragments:
            raise CorruptState(f"the kept weights of checkpoint {restored.checkpoint} are others")
        for at, number in enumerate(restored.versions):
            current = self._current[at]
            if current is None or current.number < number:
                self._restore(at, number, *pairs[at], found[at])

    def _restore(
        self,
        fragment: int,
        number: int,
        theta: F32,
        momentum: F32,
        manifests: versions.StateManifests,
    ) -> None:
        state = manifests.digests
        self._put(fragment, Version(number, theta, momentum, None, state, None, manifests))
        self._lately[fragment] = ()  # It led to weights that are void.
        self._drop_candidates(fragment, number)

    def _put(self, fragment: int, version: Version) -> None:
        former, manifests = self._offers[fragment], version.manifests
        self._current[fragment] = version
        self._offers[fragment] = self.blob_store.put_group(
            manifests.blobs(version.theta, version.momentum)
        )
        if former is not None:
            self.blob_store.retire(former)
        if self._on_version is not None:
            self._on_version(fragment, version, self.charter.outer.ema)

    def _offer(
        self, fragment: int, name: Digest, payload: bytes | memoryview, codec: CodecName
    ) -> None:
        self.blob_store.put(name, payload)
        lately = (*self._lately[fragment], (codec, payload))
        self._lately[fragment] = lately[-MERGES_COMPARED:]
        ring = self._ring[fragment]
        ring.append(name)
        if len(ring) > limits.PAYLOAD_RING:
            self.blob_store.drop(ring.popleft())
