"""The loss over a large vocabulary without all of its logits at once.

A batch of 8 texts of 1,024 tokens over 50,000 words has logits of 1.6 GB in f32, and as much again
for their gradient. Here they are made for some tokens at a time, and turned into loss and gradients
before those of the next ones are made, so that nothing is computed twice.

The last layer of the model lets hidden states pass meanwhile. Whether that is all that a model does
behind them is found out by trying: one that caps its logits is left as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY_MIN: Final = 16_384
"""Below this logits are no larger than what the layers before them keep."""

LOGITS_MAX: Final = 1 << 23
"""Numbers at a time: 32 MiB in f32."""

ROWS_MIN: Final = 16
AGREES: Final = 1e-4
"""How far, relative to the loss, the two ways may differ in f32."""


def chunkable_head(model: nn.Module) -> nn.Linear | None:
    """The last layer of a decoder, where its loss can be had chunk by chunk; else None.

    It is one where the vocabulary is large, the last layer is a plain one, and nothing is done to
    logits behind it.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if type(head) is not nn.Linear or head.out_features < VOCABULARY_MIN:
        return None
    return head if _is_last(model, head) else None


def _is_last(model: nn.Module, head: nn.Linear) -> bool:
    """Whether logits are what the head makes of what comes to it, and nothing else."""
    ids = (torch.arange(8, device=head.weight.device) * 37 % head.out_features)[None]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            with passing(head):
                hidden = model(input_ids=ids, use_cache=False).logits
            if hidden.shape[-1] != head.in_features:
                return False
            found = head(hidden)
    finally:
        model.train(was_training)
    if found.shape != logits.shape:
        return False
    scale = float(logits.float().abs().max()) or 1.0
    return float((found.float() - logits.float()).abs().max()) <= AGREES * scale


@contextlib.contextmanager
def passing(head: nn.Linear) -> Iterator[None]:
    """Inside, the head gives what comes to it, so that a model's logits are its hidden states."""
    head.forward = _as_it_is  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del head.forward


def _as_it_is(hidden: Tensor) -> Tensor:
    return hidden


def loss_of_hidden(
    hidden: Tensor, head: nn.Linear, targets: Tensor, *, ignored: int, z_loss: float = 0.0
) -> Tensor:
    """Summed cross-entropy, f32, of what the head says of hidden states [..., size], and the z-loss
    weighed by `z_loss`; targets [...], of which those that are `ignored` count nothing."""
    is_learned = targets != ignored
    return _ChunkedLoss.apply(  # type: ignore[no-any-return, no-untyped-call]
        hidden[is_learned], head.weight, head.bias, targets[is_learned], z_loss
    )


class _ChunkedLoss(torch.autograd.Function):
    """Loss and gradients in one pass over the tokens."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, z: float
    ) -> Tensor:
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        kind = _kind(hidden)
        cast = weight.to(kind)
        shift = None if bias is None else bias.to(kind)
        total = torch.zeros((), device=hidden.device)
        by_hidden = torch.empty_like(hidden) if wants_hidden else None
        by_weight = torch.zeros_like(weight) if wants_weight else None
        by_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        rows = max(LOGITS_MAX // weight.shape[0], ROWS_MIN)
        for start in range(0, len(hidden), rows):
            part, asked = hidden[start : start + rows].to(kind), targets[start : start + rows]
            logits = functional.linear(part, cast, shift).float()
            whole = logits.logsumexp(dim=1)
            said = logits.gather(1, asked[:, None])[:, 0]
            total += (whole - said).sum() + z * whole.square().sum()
            if by_hidden is None and by_weight is None and by_bias is None:
                continue
            # The gradient of the loss by the logits, in their own memory.
            slope = logits.sub_(whole[:, None]).exp_()
            slope.mul_((1.0 + 2.0 * z * whole)[:, None])
            slope.scatter_add_(
                1, asked[:, None], torch.full_like(asked[:, None], -1.0, dtype=slope.dtype)
            )
            slope = slope.to(kind)
            if by_hidden is not None:
                by_hidden[start : start + rows] = slope @ cast
            if by_weight is not None:
                by_weight += (slope.T @ part).to(by_weight.dtype)
            if by_bias is not None:
                by_bias += slope.sum(dim=0).to(by_bias.dtype)
        ctx.gradients = (by_hidden, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        found = [None if one is None else one.mul_(outer.to(one.dtype)) for one in ctx.gradients]
        del ctx.gradients
        return (*found, None, None)


def _kind(hidden: Tensor) -> torch.dtype:
    """In what numbers logits are made: those of an autocast, where there is one."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype
