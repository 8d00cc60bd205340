"""The optimizer's moments as fragments: read for another learner, written from one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from node.machine.moments import moments_numel
from node.trainer.model import Floats
from node.trainer.own.interface import Trainer
from protocol.errors import InternalError
from protocol.fragments import Fragment, Layout


class MomentsView:
    """The optimizer's state in the layout of `node.machine.moments`; nothing is kept here.

    A tensor whose optimizer keeps less has zeros in place of the rest, and counts 1 once it has
    moved if nobody counts its steps.
    """

    def __init__(self, trainer: Trainer, layout: Layout) -> None:
        self.layout = layout
        self._trainer = trainer

    def read(self, fragment: int, out: Floats) -> None:
        """Copies a fragment's moments into `out`; zeros where the optimizer has none yet."""
        cut = self._check(fragment, out)
        n = cut.numel
        out[:] = 0.0
        kept = self._trainer.state()
        for number, span in enumerate(cut.spans):
            state = kept.get(span.name)
            if not state:
                continue
            for key, base in (("first", 0), ("second", n)):
                if key in state:
                    start = base + span.offset
                    target = torch.from_numpy(out[start : start + span.numel])
                    target.copy_(state[key].detach().reshape(-1))
            out[2 * n + number] = float(state.get("step", 1.0))

    def write(self, fragment: int, values: Floats) -> None:
        """Replaces a fragment's moments and step counters; padding is ignored."""
        cut = self._check(fragment, values)
        n = cut.numel
        tensors = self._trainer.tensors()
        self._trainer.load_state(
            {
                span.name: {
                    "first": _like(tensors[span.name], values[span.offset :][: span.numel]),
                    "second": _like(tensors[span.name], values[n + span.offset :][: span.numel]),
                    "step": torch.tensor(float(values[2 * n + number]), dtype=torch.float32),
                }
                for number, span in enumerate(cut.spans)
            }
        )

    def _check(self, fragment: int, values: Floats) -> Fragment:
        if not 0 <= fragment < len(self.layout.fragments):
            raise InternalError(f"there is no fragment {fragment}")
        cut = self.layout.fragments[fragment]
        if values.shape != (moments_numel(cut),) or values.dtype != np.float32:
            raise InternalError(f"moments of fragment {fragment} are not {values.shape}")
        return cut


def _like(tensor: Tensor, values: Floats) -> Tensor:
    """A new tensor of these values, as the optimizer keeps its moments."""
    moments = torch.zeros_like(tensor, memory_format=torch.preserve_format)
    moments.view(-1).copy_(torch.from_numpy(values.copy()))
    return moments
