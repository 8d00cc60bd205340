"""What tensors are in a simulated swarm: numbers that are trained, or sets of local steps.

The banks, the codecs, the outer step and the log are the daemons' own either way. A back-end says
what the first weights are, what a local step does to a value, and how pushes are put together.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from protocol.messages import Gain, SequencePlaces
from protocol.numerics.codecs import F32
from protocol.numerics.merge import merge_fragment
from simulator.stand_ins.tiny import TinyTrainer, tiny_target, tiny_weights
from syncer_node.storage.merge_bank import MergeFunction

SPREAD_FRAC: Final = 0.25
"""Of a stand-in's gain: how far the gains of single sequences lie apart."""

SURPLUS_FRAC: Final = 0.1
"""... and by how much the gain on its own text is larger: 2.3 standard errors of 64 sequences."""


class Backend:
    """One for a whole swarm; here, a few dozen floats that approach a target."""

    merge: MergeFunction = staticmethod(merge_fragment)
    """How the pushes of a round become one displacement."""

    def weights(self, numel: int, fragment: int) -> F32:
        """Version 0 of a fragment."""
        return tiny_weights(numel, fragment)

    def adopt(self, trainer: TinyTrainer, learner: bytes) -> TinyTrainer:
        """The trainer that this learner gets."""
        return trainer

    def gains(
        self, pushed: list[F32], fragment: int, own: SequencePlaces, other: SequencePlaces
    ) -> tuple[Gain, Gain]:
        """What a push does to the loss of two texts. pushed: as `FragmentBank.pushed` has it.

        These few floats are trained on no text: every push passes for one that was trained on its
        own, which it serves a little better, as honest pushes do on average.
        """
        *values, changed = pushed
        before = self.loss(values)
        gain = before - self.loss([*values[:fragment], changed, *values[fragment + 1 :]])
        surplus, spread = SURPLUS_FRAC * abs(gain), SPREAD_FRAC * abs(gain)
        return (
            Gain(before, gain + surplus, spread, len(own)),
            Gain(before, gain, spread, len(other)),
        )

    def loss(self, fragments: list[F32]) -> float:
        """Held-out loss of a model."""
        errors = [np.mean((v - tiny_target(v.size, at)) ** 2) for at, v in enumerate(fragments)]
        return float(np.mean(errors))
