"""A learner's fragments in host memory: global values, anchors, error feedback, what is offered.

Pure arithmetic on NumPy arrays; no IO and no threads of its own. Arrays are never changed in place
once they are held, so a transfer or an evaluation may keep one while newer versions come, and one
that is held may lie in a file.

With `overwrite` the inner loop restarts from the global value, and the quantisation error of a
merged push is fed back into the next one. With `rebase` the local displacement lives on: the local
value moves by what the global value moved, plus what of our own push was merged, so that the
displacement shrinks by exactly the part that was handed in, and needs no error feedback.

`blend` (Streaming DiLoCo, arXiv 2501.18512) lies between: the local value becomes alpha times
itself plus 1 - alpha times the global one, and the anchor is the global value as it came. A share
alpha of the displacement, handed in or not, so stays and is part of the next push too; what
quantisation lost is fed back with the share 1 - alpha that the blend took away. With alpha 0 it is
`overwrite`, bit for bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from host.bulk.blob_store import BlobStore, Offer
from host.files.mapped_arrays import Keep, in_memory
from protocol import limits
from protocol.errors import CorruptState, MalformedPayload
from protocol.fragments import Layout
from protocol.ids import Digest
from protocol.log.records import FragmentMerged, StateDigests
from protocol.numerics.codecs import decode, encode, flush
from protocol.numerics.outer import digest, encode_with_feedback
from protocol.numerics.versions import StateManifests, certified_version, state_manifests
from protocol.project import Charter

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Held:
    """One version of one fragment."""

    version: int
    theta: F32
    momentum: F32
    state: StateDigests


@dataclass(frozen=True, slots=True)
class PendingPush:
    """A push whose fate is open."""

    digest: bytes
    decoded: F32 | None
    """With `rebase`."""
    residual: F32 | None
    """Otherwise."""
    is_merged: bool = False
    """Kept until the next delivery gives its displacement back to the inner loop."""


@dataclass(frozen=True, slots=True)
class EncodedPush:
    base_version: int
    digest: bytes
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the inner loop is to do with its fragment: assign `values`, blend, or add them."""

    version: int
    is_assign: bool
    values: F32
    kept_frac: float = 0.0
    """Of an assignment: share of the local value that stays."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the local value of a fragment stands on."""

    base: Held
    residual: F32 | None
    """Quantisation error of merged pushes, to be fed back."""
    merged: dict[int, F32]
    """Merged pushes that the inner loop does not have back yet, by sequence."""


class FragmentBank:
    """All fragments of one learner."""

    def __init__(self, layout: Layout, blob_store: BlobStore, keep: Keep = in_memory) -> None:
        """keep: for arrays that stay, which may lie in files; they are not changed any more."""
        count = len(layout.fragments)
        self.layout = layout
        self.blob_store = blob_store
        self._keep = keep
        self.charter: Charter | None = None
        self._held: list[Held | None] = [None] * count
        self._offers: list[Offer | None] = [None] * count
        self._base: list[Held | None] = [None] * count
        self._residual: list[F32 | None] = [None] * count
        self._pending: dict[tuple[int, int], PendingPush] = {}
        self._ring: list[deque[bytes]] = [deque() for _ in range(count)]
        self._frozen: dict[int, dict[int, F32]] = {}

    def version(self, fragment: int) -> int:
        """Version held, -1 for none."""
        held = self._held[fragment]
        return -1 if held is None else held.version

    def held(self, fragment: int) -> Held | None:
        """The newest version that is here."""
        return self._held[fragment]

    @property
    def versions(self) -> tuple[int, ...]:
        """Of all fragments, -1 for none."""
        return tuple(map(self.version, range(len(self._held))))

    def theta(self, fragment: int) -> F32:
        """The newest global value held. Raises CorruptState when there is none."""
        held = self._held[fragment]
        if held is None:
            raise CorruptState(f"fragment {fragment} is not held")
        return held.theta

    def pushed(self, fragment: int, displacement: F32) -> list[F32]:
        """The newest global value of every fragment, and behind them what this fragment's would be
        if the push were added to it as it is. CorruptState when one is not held."""
        values = [self.theta(at) for at in range(len(self._held))]
        with np.errstate(over="ignore"):  # Whoever made the push may have wanted that.
            changed = values[fragment] - displacement
        return [*values, changed]

    def install(
        self, fragment: int, version: int, state: StateDigests, theta: F32, momentum: F32
    ) -> None:
        """Hold a fetched state. Raises MalformedPayload unless content and digests agree."""
        numel = self.layout.fragments[fragment].numel
        if theta.size != numel or momentum.size != numel:
            raise MalformedPayload(f"fragment {fragment} has {numel} elements, got {theta.size}")
        manifests = state_manifests(theta, momentum)
        if manifests.digests != state:
            raise MalformedPayload(f"fragment {fragment} does not have the certified content")
        self._hold(fragment, Held(version, theta, momentum, state), manifests)

    def advance(self, merged: FragmentMerged, payload: bytes | memoryview) -> None:
        """Take the outer step that makes this version of the one before.

        Raises CorruptState if the outcome is not the certified one: then the full state is due.
        """
        fragment, version = merged.fragment, merged.version
        held = self._held[fragment]
        if held is None or held.version != version - 1:
            raise CorruptState(f"fragment {fragment} is not at version {version - 1}")
        theta, momentum, manifests = certified_version(held.theta, held.momentum, payload, merged)
        self._offer_payload(fragment, merged.payload, payload)
        self._hold(fragment, Held(version, theta, momentum, merged.state), manifests)

    def deliver(
        self,
        fragment: int,
        *,
        is_assign: bool,
        merged_sequence: int | None,
        kept_frac: float = 0.0,
    ) -> Delivery:
        """The update for the inner loop, which from now on counts as standing on this version."""
        held, base = self._held[fragment], self._base[fragment]
        if held is None:
            raise CorruptState(f"fragment {fragment} is not held")
        self._base[fragment] = held
        if is_assign or base is None:
            self._forget_merged(fragment, merged_sequence)
            # An inner loop that never had this fragment has nothing to keep a share of.
            kept_frac = 0.0 if base is None else kept_frac
            return Delivery(held.version, True, held.theta, kept_frac)
        moved = held.theta - base.theta
        pending = self._forget_merged(fragment, merged_sequence)
        if pending is not None and pending.decoded is not None:
            moved += pending.decoded
        return Delivery(held.version, False, moved)

    def push(self, fragment: int, sequence: int, local: F32) -> EncodedPush:
        """Encode how far the local value is from its anchor, and offer the payload.

        Raises NonFinite if the local value is not finite.
        """
        base = self._base[fragment]
        assert base is not None, "a fragment is delivered before it is captured"
        assert self.charter is not None, "a charter comes before any weights"
        rounds = self.charter.rounds
        residual: F32 | None = None
        decoded: F32 | None = None
        if rounds.apply != "rebase":
            carried = self._residual[fragment]
            if carried is None:
                carried = np.zeros_like(local)
            payload, residual = encode_with_feedback(
                rounds.up_codec, base.theta, carried, minus=local
            )
            if rounds.kept_frac:
                residual *= np.float32(1.0 - rounds.kept_frac)
                flush(residual)
        else:
            payload = encode(rounds.up_codec, base.theta - local)
            decoded = decode(rounds.up_codec, payload, local.size)
        name = digest(payload)
        self._pending[fragment, sequence] = PendingPush(
            name,
            None if decoded is None else self._keep(decoded),
            None if residual is None else self._keep(residual),
        )
        self.blob_store.put(name, payload)
        return EncodedPush(base.version, name, len(payload))

    def settle(self, fragment: int, sequence: int, *, is_merged: bool) -> None:
        """The fate of a push: keep its error feedback if it was merged, and stop offering it."""
        pending = self._pending.get((fragment, sequence))
        if pending is None or pending.is_merged:
            return
        self.blob_store.drop(pending.digest)
        if is_merged and pending.residual is not None:
            self._residual[fragment] = pending.residual
        is_needed = is_merged and self.charter is not None and self.charter.rounds.apply == "rebase"
        if is_needed and self._base[fragment] is not None:
            self._pending[fragment, sequence] = replace(pending, is_merged=True)
        else:
            del self._pending[fragment, sequence]

    def trainer_lost(self) -> None:
        """The local values are gone: the next delivery of each fragment is an assignment."""
        self._base = [None] * len(self._base)
        self._pending = {key: push for key, push in self._pending.items() if not push.is_merged}

    def drop_error_feedback(self) -> None:
        """What quantising lost goes into no later push: merges that had it are void."""
        self._residual = [None] * len(self._residual)

    def standing(self) -> list[Standing]:
        """What every local value stands on, by reference: nothing here changes in place."""
        found = []
        for at, base in enumerate(self._base):
            if base is None:
                raise CorruptState(f"the inner loop does not have fragment {at}")
            merged = {
                sequence: push.decoded
                for (fragment, sequence), push in self._pending.items()
                if fragment == at and push.is_merged and push.decoded is not None
            }
            found.append(Standing(base, self._residual[at], merged))
        return found

    def take_up(self, fragment: int, standing: Standing) -> None:
        """The inner loop has a local value that stands on this."""
        base, residual = standing.base, standing.residual
        self._base[fragment] = self._kept(base)
        self._residual[fragment] = None if residual is None else self._keep(residual)
        for sequence, decoded in standing.merged.items():
            self._pending[fragment, sequence] = PendingPush(b"", decoded, None, is_merged=True)

    def freeze(self, index: int, fragment: int) -> None:
        """Keep the present value of a fragment for the checkpoint at this log index."""
        self._frozen.setdefault(index, {})[fragment] = self.theta(fragment)

    def frozen(self, index: int) -> list[F32]:
        """The frozen values, in fragment order."""
        kept = self._frozen.get(index, {})
        if len(kept) != len(self.layout.fragments):
            raise CorruptState(f"checkpoint {index} is not completely frozen")
        return [kept[fragment] for fragment in range(len(kept))]

    def thaw(self, index: int) -> None:
        self._frozen.pop(index, None)

    def _hold(self, fragment: int, held: Held, manifests: StateManifests) -> None:
        former, held = self._offers[fragment], self._kept(held)
        self._held[fragment] = held
        self._offers[fragment] = self.blob_store.put_group(
            manifests.blobs(held.theta, held.momentum)
        )
        if former is not None:
            self.blob_store.retire(former)

    def _kept(self, held: Held) -> Held:
        return replace(held, theta=self._keep(held.theta), momentum=self._keep(held.momentum))

    def _offer_payload(self, fragment: int, name: Digest, payload: bytes | memoryview) -> None:
        ring = self._ring[fragment]
        self.blob_store.put(name, payload)
        ring.append(name)
        if len(ring) > limits.PAYLOAD_RING:
            self.blob_store.drop(ring.popleft())

    def is_merged(self, digest: Digest) -> bool:
        """Whether this is a merged payload that others may fetch here."""
        return any(digest in ring for ring in self._ring)

    def _forget_merged(self, fragment: int, sequence: int | None) -> PendingPush | None:
        return None if sequence is None else self._pending.pop((fragment, sequence), None)
