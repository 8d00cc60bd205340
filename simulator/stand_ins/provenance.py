"""Sets of local steps in place of weights: the strongest way to see what was counted how often.

Each local step anywhere gets a number, and element `number` of every fragment goes down by one when
it is taken. So a displacement is the set of steps it stands for, as zeros and units, which every
codec carries exactly; pushes are summed, the outer step is plain subtraction, and the global value
is the multiset of all that was ever merged. The banks, codecs and machines are the daemons' own:
steps that are counted twice, lost or made up show as sets that differ.

With `is_uneven` steps weigh differently, so that lossy codecs leave something out: then sets cannot
be compared, but a hand-in still must be the encoded displacement and nothing else. Whoever compares
is `simulator.checkers.provenance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.fragments import Fragment
from protocol.numerics.codecs import F32, decode
from protocol.numerics.merge import Contribution, MergeResult, Reference, norm
from protocol.project import OuterSpec
from simulator.stand_ins.backends import Backend
from simulator.stand_ins.tiny import TinyTrainer

OUTER = OuterSpec(1.0, 0.0, 3.0)
"""The outer step that makes the global value the sum of all merged pushes."""

UNIT = np.float32(127.0)
"""What a step weighs: int8 carries it exactly, for its scale is then 1; so do int4 and bf16."""


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


class ProvenanceBackend(Backend):
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
        contributions: Sequence[Contribution],
        fragment: Fragment,
        clip_to_median: float,
        reference: Reference | None = None,
    ) -> MergeResult:
        """The sum of all pushes, none of them clipped."""
        decoded = [decode(c.codec, c.payload, fragment.numel) for c in contributions]
        total: F32 = np.add.reduce(np.stack(decoded), axis=0, dtype=np.float32)
        whole, nothing = (1.0,) * len(decoded), (0.0,) * len(decoded)
        weights = sum(one.weight for one in contributions)
        shares = tuple(one.weight / weights for one in contributions)
        return MergeResult(
            total,
            norms=tuple(map(norm, decoded)),
            scales=whole,
            cosines=nothing,
            trusts=whole,
            shares=shares,
        )
