"""What local steps lower: cross-entropy, and a router's auxiliary loss where there are experts.

The auxiliary loss keeps a mixture of experts from sending every token to the same few. It is the
one that `transformers` computes, weighed by the coefficient in the model's configuration; 0 there
switches it off. Held-out loss is cross-entropy alone, so that models can be compared by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional

Forward = Callable[..., Any]
"""A model, or what torch compiled of it."""

LossSum = Callable[[Forward, Tensor], Tensor]
"""Summed loss of the model on sequences [batch, sequence_tokens + 1]."""

_COEFFICIENTS: Final = ("router_aux_loss_coef", "aux_loss_coef")
_WITHOUT: Final = frozenset({"deepseek_v4", "flint"})
"""Have a coefficient, and a router whose logits `transformers` does not collect."""


def cross_entropy_sum(model: Forward, sequences: Tensor) -> Tensor:
    """Summed cross-entropy of each token given those before it, in f32 whatever the autocast."""
    return _summed(model(input_ids=sequences[:, :-1], use_cache=False).logits, sequences)


def objective_of(model: nn.Module) -> LossSum:
    """What training lowers: cross-entropy of each token, and for each of them the auxiliary loss.

    The auxiliary loss is a mean over the tokens of one pass, so it depends a little on how a batch
    is cut into passes.
    """
    coefficient = router_coefficient(model)
    if not coefficient:
        return cross_entropy_sum

    def with_router(forward: Forward, sequences: Tensor) -> Tensor:
        output = forward(input_ids=sequences[:, :-1], use_cache=False, output_router_logits=True)
        loss = _summed(output.logits, sequences)
        if not isinstance(output.aux_loss, Tensor):
            return loss  # A model of this kind without a single layer of experts.
        tokens = sequences.shape[0] * (sequences.shape[1] - 1)
        return loss + coefficient * tokens * output.aux_loss.float()

    return with_router


def router_coefficient(model: nn.Module) -> float:
    """The weight of the auxiliary loss beside a token's cross-entropy; 0 where there is none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "output_router_logits") or config.model_type in _WITHOUT:
        return 0.0
    said = [getattr(config, key, None) for key in _COEFFICIENTS]
    return float(next((one for one in said if one), 0.0))


def _summed(logits: Tensor, sequences: Tensor) -> Tensor:
    targets = sequences[:, 1:].reshape(-1)
    flat = logits.float().view(-1, logits.shape[-1])
    return functional.cross_entropy(flat, targets, reduction="sum")
