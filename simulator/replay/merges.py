"""The merge level: kept pushes merged again, by the same bank, to the same bits.

Each merge begins from the version that the replay itself came to, or, where the kept window
begins, from a recorded one. What it must come to is in the certified record: the digest of the
merged displacement L_v, and those of the weights and momentum that follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from host.bulk.blob_store import BlobStore
from host.tape.tape_file import TapeLife
from protocol.errors import CorruptState, MalformedPayload
from protocol.fragments import build_layout
from protocol.ids import short
from protocol.log.records import FragmentMerged
from protocol.numerics.codecs import F32
from protocol.numerics.outer import digest
from protocol.tape import MERGED_PARTS, Base, Frame, PushPayload, TapeDamaged
from simulator.replay.audit import Audit, AuditedMerge
from simulator.replay.divergence import Diverged
from syncer_node.machine.jobs import PushId
from syncer_node.storage.merge_bank import MergeBank, MergeOutcome, Version

Place = tuple[int, int]
"""Fragment and version."""


@dataclass(slots=True)
class Merges:
    """What merging again came to."""

    merged: set[int] = field(default_factory=set)
    """Log indices of the rounds that came to the same bits."""
    untried: Counter[str] = field(default_factory=Counter)
    """Rounds that could not be merged again, by reason."""


@dataclass(slots=True)
class _Kept:
    """What a tape's payload files have, found in a first pass."""

    pushes: set[PushId] = field(default_factory=set)
    bases: dict[Place, set[str]] = field(default_factory=dict)


class MergeReplay:
    """Merges one life's rounds again."""

    def __init__(
        self,
        life: TapeLife,
        audit: Audit,
        on_version: Callable[[int, Version], None] = lambda fragment, version: None,
        on_round: Callable[[int], None] = lambda done: None,
    ) -> None:
        """on_version: told every fragment's version that was computed or begun from."""
        assert audit.genesis is not None
        assert audit.charter is not None
        genesis = audit.genesis
        self.life = life
        self.audit = audit
        self.layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        self.bank = MergeBank(self.layout, audit.charter, BlobStore(clock=lambda: 0.0))
        self.on_version = on_version
        self.on_round = on_round
        self.found = Merges()
        self._at: dict[int, int] = {}
        """Version of each fragment that the bank stands at."""
        self._kept = _Kept()
        self._pushes: dict[PushId, PushPayload] = {}
        parts = (part for merge in audit.merges for part in merge.job.parts)
        self._asked = Counter(part.push for part in parts)
        """Merges still to come that were asked for with a push: one may be asked for again."""
        self._bases: dict[Place, dict[str, Base]] = {}
        self._frames: Iterator[tuple[str, Frame]] = iter(())
        self._place = ""

    def run(self) -> Merges:
        """Raises Diverged or TapeDamaged."""
        for _, frame in self.life.frames("payloads"):
            match frame:
                case PushPayload():
                    self._kept.pushes.add((frame.learner, frame.incarnation, frame.sequence))
                case Base():
                    parts = self._kept.bases.setdefault((frame.fragment, frame.version), set())
                    parts.add(frame.part)
                case _:
                    raise TapeDamaged(f"{_}: {type(frame).__name__} does not belong there")
        self._frames = self.life.frames("payloads")
        for done, merge in enumerate(self.audit.merges):
            if merge.record is not None:
                self._merge(merge)
            self._drop(merge)
            self.on_round(done + 1)
        return self.found

    def _merge(self, merge: AuditedMerge) -> None:
        job = merge.job
        missing = sum(part.push not in self._kept.pushes for part in job.parts)
        place = (job.fragment, job.version - 1)
        is_there = self._at.get(job.fragment) == job.version - 1
        has_base = self._kept.bases.get(place, set()) >= {"theta", "momentum"}
        reason = ""
        if missing:
            reason = "pushes were not kept"
        elif not is_there and not has_base:
            reason = "the version before it was not kept"
        if reason:
            self.found.untried[reason] += 1
            self._at.pop(job.fragment, None)
            return
        self._read_until(merge, place)
        if has_base:
            self._begin_from(merge, place, is_there=is_there)
        self._merge_now(merge)

    def _read_until(self, merge: AuditedMerge, place: Place) -> None:
        """Read on until everything that this merge needs was seen."""
        wanted = {part.push for part in merge.job.parts}
        parts = self._kept.bases.get(place, set())
        while wanted - self._pushes.keys() or parts - self._bases.get(place, {}).keys():
            self._place, frame = next(self._frames)
            if isinstance(frame, PushPayload):
                self._pushes[frame.learner, frame.incarnation, frame.sequence] = frame
            elif isinstance(frame, Base):
                self._bases.setdefault((frame.fragment, frame.version), {})[frame.part] = frame

    def _begin_from(self, merge: AuditedMerge, place: Place, *, is_there: bool) -> None:
        """Take a recorded version, or compare it with the one that the replay came to."""
        fragment, number = place
        parts = self._bases.pop(place)
        numel = self.layout.fragments[fragment].numel
        arrays: dict[str, F32] = {}
        for name, part in parts.items():
            if name in MERGED_PARTS:
                continue
            if len(part.content) != 4 * numel:
                raise TapeDamaged(f"{self._place}: version {number} has another size")
            arrays[name] = np.frombuffer(part.content, "<f4").astype(np.float32, copy=False)
        if is_there and parts["theta"].is_chained:
            current = self.bank.current(fragment)
            for name, values in (("theta", current.theta), ("momentum", current.momentum)):
                if values.tobytes() != arrays[name].tobytes():
                    raise self._diverged(merge, f"{name} of version {number} is not as recorded")
            return
        self.bank.initialise(
            fragment,
            number,
            arrays["theta"],
            arrays["momentum"],
            arrays.get("residual"),
            tuple(
                (parts[name].codec, parts[name].content)
                for name in reversed(MERGED_PARTS)
                if name in parts
            ),
        )
        self._at[fragment] = number
        self.on_version(fragment, self.bank.current(fragment))

    def _merge_now(self, merge: AuditedMerge) -> None:
        job, record = merge.job, merge.record
        assert record is not None
        for part in job.parts:
            kept = self._pushes[part.push]
            if digest(kept.content) != part.header.digest:
                who = f"push {part.push[2]} of {short(part.learner)}"
                raise self._diverged(merge, f"the payload of {who} is not what its header names")
            try:
                self.bank.keep_push(part.push, job.fragment, kept.content, part.header.codec)
            except MalformedPayload as error:
                raise self._diverged(merge, f"a payload is not sound: {error}") from error
        try:
            outcome = self.bank.merge(job)
        except CorruptState as error:
            raise self._diverged(merge, str(error)) from error
        for name, mine, its in _compared(outcome, record):
            if mine != its:
                raise self._diverged(
                    merge, f"{name} came out differently than record {merge.index}"
                )
        self.bank.adopt(job.fragment, job.version, outcome.payload_digest)
        self._at[job.fragment] = job.version
        self.found.merged.add(merge.index)
        self.on_version(job.fragment, self.bank.current(job.fragment))

    def _drop(self, merge: AuditedMerge) -> None:
        for part in merge.job.parts:
            self._asked[part.push] -= 1
            if not self._asked[part.push]:
                self.bank.forget_push(part.push)
                self._pushes.pop(part.push, None)

    def _diverged(self, merge: AuditedMerge, what: str) -> Diverged:
        job = merge.job
        name = f"the merge of round {job.round} (fragment {job.fragment}, version {job.version})"
        return Diverged(name, self._place or merge.place, what)


def _compared(
    outcome: MergeOutcome, record: FragmentMerged
) -> Iterator[tuple[str, object, object]]:
    """What came out now, and what the record says; each with its name."""
    parts = record.contributions
    yield "the merged displacement", outcome.payload_digest, record.payload
    yield "the new weights", outcome.state, record.state
    yield "the norms", outcome.norms, tuple(one.norm for one in parts)
    yield "the scales", outcome.scales, tuple(one.scale for one in parts)
    yield "the cosines", outcome.cosines, tuple(one.cosine for one in parts)
    yield "the trust", outcome.trusts, tuple(one.trust for one in parts)
    yield "the shares", outcome.shares, tuple(one.share for one in parts)
    echoes, novelties = tuple(one.echo for one in parts), tuple(one.novelty for one in parts)
    yield "the echoes", outcome.echoes or (0.0,) * len(parts), echoes
    yield "the novelties", outcome.novelties or (None,) * len(parts), novelties
    clipped = tuple(one.tensors_clipped for one in parts)
    yield "the clipped tensors", outcome.tensors_clipped, clipped
    expected = outcome.expected or (1.0,) * len(parts)
    yield "the expected cosines", expected, tuple(one.expected for one in parts)
    # Of the newest pushes alone.
    kept = tuple(
        mine if one.tensors else b"" for mine, one in zip(outcome.tensors, parts, strict=False)
    )
    yield "the norms by tensor", kept, tuple(one.tensors for one in parts)[: len(kept)]
