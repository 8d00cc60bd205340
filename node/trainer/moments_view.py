"""The optimizer's moments as fragments: read for another learner, written from one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from node.machine.moments import moments_numel
from node.trainer.model import Floats
from node.trainer.optimizers import InnerOptimizer, MuonAndAdamW
from protocol.errors import InternalError
from protocol.fragments import Fragment, Layout


class MomentsView:
    """The optimizer's state in the layout of `node.machine.moments`; nothing is kept here.

    A tensor that Muon moves has a momentum in place of the first moment, zeros in place of the
    second, and counts 1 once it has moved.
    """

    def __init__(self, model: nn.Module, optimizer: InnerOptimizer, layout: Layout) -> None:
        self.layout = layout
        self._optimizer = optimizer
        self._tensors = dict(model.named_parameters())

    def read(self, fragment: int, out: Floats) -> None:
        """Copies a fragment's moments into `out`; zeros where the optimizer has none yet."""
        cut = self._check(fragment, out)
        n = cut.numel
        out[:] = 0.0
        kept = self._optimizer.state
        for number, span in enumerate(cut.spans):
            state = kept.get(self._tensors[span.name])
            if not state:
                continue
            end = span.offset + span.numel
            for key, base in (("momentum_buffer", 0), ("exp_avg", 0), ("exp_avg_sq", n)):
                if key in state:
                    target = torch.from_numpy(out[base + span.offset : base + end])
                    target.copy_(state[key].detach().reshape(-1))
            out[2 * n + number] = float(state.get("step", 1.0))

    def write(self, fragment: int, values: Floats) -> None:
        """Replaces a fragment's moments and step counters; padding is ignored."""
        cut = self._check(fragment, values)
        n = cut.numel
        for number, span in enumerate(cut.spans):
            tensor = self._tensors[span.name]
            first, second = (
                _like(tensor, values[base + span.offset : base + span.offset + span.numel])
                for base in (0, n)
            )
            if isinstance(self._optimizer, MuonAndAdamW):
                home = self._optimizer.home_of(tensor)
                if self._optimizer.has_in_muon(tensor):
                    home[tensor] = {"momentum_buffer": first} if values[2 * n + number] else {}
                    continue
            else:
                home = self._optimizer.state
            # The fused kernel wants its counter where the tensor is.
            steps = torch.tensor(
                float(values[2 * n + number]), dtype=torch.float32, device=tensor.device
            )
            home[tensor] = {"step": steps, "exp_avg": first, "exp_avg_sq": second}

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
