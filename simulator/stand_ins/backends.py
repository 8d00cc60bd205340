"""What tensors are in a simulated swarm: numbers that are trained, or sets of local steps.

The banks, the codecs, the outer step and the log are the daemons' own either way. A back-end says
what the first weights are, what a local step does to a value, and how pushes are put together.
"""

from __future__ import annotations

import numpy as np

from protocol.numerics.codecs import F32
from protocol.numerics.merge import merge_fragment
from simulator.stand_ins.tiny import TinyTrainer, tiny_target, tiny_weights
from syncer_node.storage.merge_bank import MergeFunction


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

    def loss(self, fragments: list[F32]) -> float:
        """Held-out loss of a model."""
        errors = [np.mean((v - tiny_target(v.size, at)) ** 2) for at, v in enumerate(fragments)]
        return float(np.mean(errors))
