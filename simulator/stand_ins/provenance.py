"""Sets of local steps in place of weights: the strongest way to see what was counted how often.

Each local step anywhere gets a number, and element `number` of every fragment goes down by one when
it is taken. So a displacement is the set of steps it stands for, as zeros and units, which every
codec carries exactly; pushes are summed, the outer step is plain subtraction, and the global value
is the multiset of all that was ever merged. The banks, codecs and machines are the daemons' own:
steps that are counted twice, lost or made up show as sets that differ.

With `is_uneven` steps weigh differently, so that lossy codecs leave something out: then sets cannot
be compared, but a hand-in still must be the encoded displacement and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protocol.fragments import Fragment
from protocol.log.records import FragmentMerged
from protocol.numerics.codecs import decode, encode
from protocol.numerics.merge import Contribution, MergeResult, norm
from protocol.project import OuterSpec
from simulator.checkers.ledger import Ledger, Violation
from simulator.stand_ins.tiny import TinyTrainer

if TYPE_CHECKING:
    from simulator.swarm.learners import SimLearner

F32 = NDArray[np.float32]
OUTER = OuterSpec(1.0, 0.0, 3.0)
"""The outer step that makes the global value the sum of all merged pushes."""

UNIT = np.float32(127.0)
"""What a step weighs: int8 carries it exactly, for its scale is then 1; so do int4 and bf16."""

Push = tuple[bytes, int, int]
"""(learner, incarnation, sequence)."""


@dataclass(slots=True)
class ProvenanceTrainer(TinyTrainer):
    """Marks each local step in every fragment."""

    backend: ProvenanceBackend | None = None
    learner: bytes = b""
    slots: list[int] = field(default_factory=list)
    """Numbers of the steps that this trainer took."""

    def learn(self) -> float:
        """Take a step that nobody took before."""
        assert self.backend is not None, "its back-end made it"
        slot = self.backend.take(self.learner)
        self.slots.append(slot)
        for at, values in enumerate(self.theta):
            assert values is not None
            moved = values.copy()
            moved[slot] -= self.backend.charge(slot)
            self.theta[at] = moved
            self.remember(at, np.zeros_like(values))
        return 1.0 / len(self.slots)


class ProvenanceBackend:
    """Numbers for local steps, and a merge that adds."""

    def __init__(self, capacity: int, *, is_uneven: bool = False) -> None:
        """`capacity`: local steps of all learners together, elements of each fragment."""
        self.capacity = capacity
        self.is_uneven = is_uneven
        self.takers: list[bytes] = []
        """By step number: whose it is."""

    def take(self, learner: bytes) -> int:
        """The next number. Raises OverflowError when the fragments have no room for it."""
        slot = len(self.takers)
        if slot == self.capacity:
            raise OverflowError(f"more than {slot} local steps: give provenance more room")
        self.takers.append(learner)
        return slot

    def charge(self, slot: int) -> np.float32:
        """What a step weighs."""
        return np.float32(0.6 + 0.1 * (slot * 7 % 9)) if self.is_uneven else UNIT

    def weights(self, numel: int, fragment: int) -> F32:
        return np.zeros(numel, np.float32)

    def adopt(self, trainer: TinyTrainer, learner: bytes) -> TinyTrainer:
        return ProvenanceTrainer(
            sizes=trainer.sizes,
            tokens_per_step=trainer.tokens_per_step,
            sequences_per_step=trainer.sequences_per_step,
            block_sequences=trainer.block_sequences,
            speed=trainer.speed,
            noise_seed=trainer.noise_seed,
            backend=self,
            learner=learner,
        )

    def loss(self, fragments: list[F32]) -> float:
        """Falls with every merged step."""
        return 1.0 / (1.0 + float(np.mean([np.abs(values).sum() for values in fragments])))

    @staticmethod
    def merge(
        contributions: Sequence[Contribution], fragment: Fragment, clip_to_median: float
    ) -> MergeResult:
        """The sum of all pushes, none of them clipped."""
        decoded = [decode(c.codec, c.payload, fragment.numel) for c in contributions]
        total: F32 = np.add.reduce(np.stack(decoded), axis=0, dtype=np.float32)
        return MergeResult(total, tuple(map(norm, decoded)), (1.0,) * len(decoded))


@dataclass(slots=True)
class Books:
    """What one trainer's local steps of one fragment came to."""

    discarded: set[int] = field(default_factory=set)
    """Steps whose displacement an assignment overwrote."""


class ProvenanceChecker:
    """Compares sets whenever a learner hands in, and whenever a merge is committed."""

    def __init__(
        self, ledger: Ledger, backend: ProvenanceBackend, learners: list[SimLearner]
    ) -> None:
        self.ledger = ledger
        self.backend = backend
        self.pushes: dict[Push, tuple[int, frozenset[int]]] = {}
        """Fragment and steps of everything handed in."""
        self.compared = 0
        fragments = len(learners[0].layout.fragments)
        self._values: list[list[F32]] = [
            [np.zeros(backend.capacity, np.float32)] for _ in range(fragments)
        ]
        self._merged: list[dict[int, int]] = [{} for _ in range(fragments)]
        """Step -> version of the fragment that contains it."""
        self._books: dict[tuple[bytes, int, int], Books] = {}
        ledger.on_merge.append(self._on_merge)
        for learner in learners:
            learner.on_capture.append(self._on_capture)
            learner.on_assign.append(self._on_assign)

    # What a trainer does.

    def _on_assign(self, host: SimLearner, fragment: int) -> None:
        """The inner loop starts over from the global value: what was not handed in is gone."""
        trainer = host.trainer
        assert isinstance(trainer, ProvenanceTrainer)
        if host.is_void:
            return
        self._book(host, fragment).discarded.update(trainer.slots)

    def _on_capture(
        self, host: SimLearner, fragment: int, sequence: int, base: int, payload: bytes
    ) -> None:
        """A push was encoded: it is what this trainer did since it last handed in."""
        trainer = host.trainer
        assert isinstance(trainer, ProvenanceTrainer)
        local = trainer.theta[fragment]
        assert local is not None
        if host.is_void:
            return
        who = f"{host.name}: push {sequence} of fragment {fragment}"
        if base >= len(self._values[fragment]):
            raise Violation(f"{who} is based on version {base}, which was never committed")
        displacement = self._values[fragment][base] - local
        codec = host.tiny.charter.rounds.up_codec
        if self.backend.is_uneven:
            is_rebase = host.tiny.charter.rounds.apply == "rebase"
            if is_rebase and payload != encode(codec, displacement):
                raise Violation(f"{who} is not the displacement that is not handed in")
            return
        values = decode(codec, payload, displacement.size)
        steps = self._steps(who, values)
        self._compare(host, fragment, base, who, steps)
        self.pushes[host.key, host.incarnation, sequence] = (fragment, steps)
        self.compared += 1

    def _compare(
        self, host: SimLearner, fragment: int, base: int, who: str, steps: frozenset[int]
    ) -> None:
        trainer = host.trainer
        assert isinstance(trainer, ProvenanceTrainer)
        mine = set(trainer.slots)
        strange = steps - mine
        if strange:
            whose = {self.backend.takers[slot] for slot in strange}
            kind = "a trainer that is gone" if whose == {host.key} else "other learners"
            raise Violation(f"{who} contains {len(strange)} local steps of {kind}")
        merged = {slot for slot in mine if self._merged[fragment].get(slot, base + 1) <= base}
        twice = steps & merged
        if twice:
            raise Violation(f"{who} contains {len(twice)} local steps that were merged before")
        missing = mine - steps - merged - self._book(host, fragment).discarded
        if missing:
            raise Violation(f"{who} lacks {len(missing)} local steps that were never merged")

    def _steps(self, who: str, values: F32) -> frozenset[int]:
        if not np.isin(values, (0.0, float(UNIT))).all():
            raise Violation(
                f"{who} is no set: {values.min() / UNIT:g} to {values.max() / UNIT:g} of a step"
            )
        return frozenset(np.flatnonzero(values).tolist())

    def _book(self, host: SimLearner, fragment: int) -> Books:
        return self._books.setdefault((host.key, host.trainer_number, fragment), Books())

    def check_cut(self, host: SimLearner, fragment: int) -> None:
        """A part was cut: what is not handed in is what this trainer did since it last did."""
        trainer = host.trainer
        assert isinstance(trainer, ProvenanceTrainer)
        local = trainer.theta[fragment]
        assert local is not None
        standing = host.bank.standing()[fragment]
        base = standing.base.version
        who = f"{host.name}: its part of fragment {fragment}"
        if not self.backend.is_uneven:
            steps = self._steps(who, self._values[fragment][base] - local)
            # What is known to be in the base and not taken off yet is told by the part, too.
            known = {
                slot
                for (key, _, sequence), (at, handed) in self.pushes.items()
                if key == host.key and at == fragment and sequence in standing.merged
                for slot in handed
                if self._merged[fragment].get(slot, base + 1) <= base
            }
            self._compare(host, fragment, base, who, steps - known)
            self.compared += 1

    def discarded(self, host: SimLearner) -> list[set[int]]:
        """Of its trainer, by fragment: what assignments overwrote so far."""
        return [set(self._book(host, at).discarded) for at in range(len(self._values))]

    def merged_of(self, learner: bytes) -> int:
        """Local steps of this learner that are in the global value, summed over fragments."""
        takers = self.backend.takers
        return sum(takers[slot] == learner for merged in self._merged for slot in merged)

    def go_back(self, versions: Sequence[int]) -> None:
        """Merges behind these versions never were."""
        for at, version in enumerate(versions):
            del self._values[at][version + 1 :]
            merged = self._merged[at]
            self._merged[at] = {slot: found for slot, found in merged.items() if found <= version}

    def go_on(self, host: SimLearner, discarded: list[set[int]]) -> None:
        """A trainer went on from a part: whatever was overwritten behind the cut never was."""
        for at, slots in enumerate(discarded):
            self._book(host, at).discarded = set(slots)

    # What the log says.

    def _on_merge(self, merged: FragmentMerged, payload: bytes | None) -> None:
        fragment, former = merged.fragment, self._values[merged.fragment][-1]
        if payload is None:
            raise Violation(f"the payload of fragment {fragment} v{merged.version} is nowhere")
        values = decode(merged.codec, payload, self.backend.capacity)
        self._values[fragment].append((former - values).astype(np.float32))
        if self.backend.is_uneven:
            return
        expected = np.zeros(self.backend.capacity, np.float32)
        for part in merged.contributions:
            self._count(merged, (part.learner, part.incarnation, part.sequence), expected)
            _, steps = self.pushes[part.learner, part.incarnation, part.sequence]
            if part.steps != len(steps):
                raise Violation(
                    f"a push of fragment {fragment} claims {part.steps} local steps and "
                    f"contains {len(steps)}"
                )
        if (values != expected).any():
            raise Violation(f"fragment {fragment} v{merged.version} is not what was handed in")

    def _count(self, merged: FragmentMerged, push: Push, expected: F32) -> None:
        known = self.pushes.get(push)
        if known is None or known[0] != merged.fragment:
            raise Violation(f"push {push[1:]} was merged and never handed in")
        for slot in known[1]:
            if slot in self._merged[merged.fragment]:
                raise Violation(f"local step {slot} of fragment {merged.fragment} was merged twice")
            self._merged[merged.fragment][slot] = merged.version
            expected[slot] += UNIT
