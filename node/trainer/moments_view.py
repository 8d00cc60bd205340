"""The optimizer's moments as fragments: read for another learner, written from one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from node.machine.moments import moments_numel
from node.trainer.model import Floats
from node.trainer.own.interface import Trainer
from protocol.errors import InternalError
from protocol.fragments import Fragment, Layout, TensorSpan


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
                    target = torch.from_numpy(out[base + span.offset :][: span.numel])
                    whole = self._whole(state[key]).detach().reshape(-1)
                    target.copy_(whole[span.start : span.end])
            out[2 * n + number] = float(state.get("step", 1.0))

    def write(self, fragment: int, values: Floats) -> None:
        """Replaces a fragment's moments and step counters; padding is ignored.

        A tensor that lies in several fragments has the counter of the one that was written last.
        """
        cut = self._check(fragment, values)
        tensors, kept = self._trainer.tensors(), self._trainer.state()
        first, second, steps = np.split(values, (cut.numel, 2 * cut.numel))
        states: dict[str, dict[str, Tensor]] = {}
        for span, step in zip(cut.spans, steps.tolist(), strict=True):
            tensor = tensors[span.name]
            # Other rows of it may lie in this fragment, or have come with another one.
            former = states.get(span.name, kept.get(span.name, {}))
            states[span.name] = {
                "first": self._with(tensor, former.get("first"), span, first),
                "second": self._with(tensor, former.get("second"), span, second),
                "step": torch.tensor(step, dtype=torch.float32),
            }
        self._trainer.load_state(states)

    def _whole(self, moments: Tensor) -> Tensor:
        """One of the moments of a whole tensor."""
        return moments

    def _with(
        self, tensor: Tensor, former: Tensor | None, span: TensorSpan, values: Floats
    ) -> Tensor:
        """A new tensor as the optimizer keeps its moments, with these values where the span lies:
        `values` of its whole fragment. former: what else is there; None for zeros."""
        moments = torch.zeros_like(tensor, memory_format=torch.preserve_format)
        if former is not None and span.numel < tensor.numel():
            moments.copy_(former)
        here = torch.from_numpy(values[span.offset :][: span.numel].copy())
        moments.view(-1)[span.start : span.end].copy_(here)
        return moments

    def _check(self, fragment: int, values: Floats) -> Fragment:
        if not 0 <= fragment < len(self.layout.fragments):
            raise InternalError(f"there is no fragment {fragment}")
        cut = self.layout.fragments[fragment]
        if values.shape != (moments_numel(cut),) or values.dtype != np.float32:
            raise InternalError(f"moments of fragment {fragment} are not {values.shape}")
        return cut
