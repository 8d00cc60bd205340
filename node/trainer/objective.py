"""What local steps lower and what is measured: cross-entropy of what a model says.

A decoder says the next token, an encoder the hidden ones. Where there are experts, local steps
lower a router's auxiliary loss beside it, which keeps a mixture of experts from sending every token
to the same few. It is the one that `transformers` computes, weighed by the coefficient in the
model's configuration; 0 there switches it off. Held-out loss is cross-entropy alone, so that models
can be compared by it. What a classifier of images says is in `node.trainer.images.labels`.

A token that is context only, given as -1 - id, is read like any other and never a target. Where
documents are separate, `apart` has a decoder read each of a sequence's as if it were alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from node.trainer.chunked_loss import chunkable_head, loss_of_hidden, passing
from node.trainer.own.interface import Samples
from node.trainer.text.masking import LABELS, READ, UNASKED, blank_masked
from node.trainer.text.reader import STARTS, learned_tokens
from protocol.project import DocumentRule

Forward = Callable[..., Any]
"""A model, or what torch compiled of it."""

LossSum = Callable[[Forward, Tensor], Tensor]
"""Summed loss of the model on samples, such as sequences [batch, sequence_tokens + 1]."""

IGNORED: Final = -100
"""A target that torch leaves out of a cross-entropy, and `transformers` out of `labels`."""

_IDS: Final = STARTS - 1
_COEFFICIENTS: Final = ("router_aux_loss_coef", "aux_loss_coef")
_WITHOUT: Final = frozenset({"deepseek_v4", "flint"})
"""Have a coefficient, and a router whose logits `transformers` does not collect."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a model is trained to say of samples."""

    lowered: LossSum
    """By local steps."""
    measured: LossSum
    """Of held-out samples; nats, like the others."""
    each: LossSum
    """Mean loss of each sample, f32 [samples]."""
    terms: Callable[[Samples], int]
    """Of how many losses the sum over these samples is one."""
    blank: Callable[[int], Samples]
    """So many samples of full size, to find out what fits."""


def next_token(
    model: nn.Module,
    *,
    vocabulary: int,
    sequence_tokens: int,
    documents: DocumentRule = None,
    z_loss: float = 0.0,
) -> Objective:
    """Each token given those before it, of sequences [n, sequence_tokens + 1]."""
    reading = apart if documents == "separate" else _as_it_is
    lowered = objective_of(model, z_loss)

    def blank(count: int) -> Samples:
        size = (count, sequence_tokens + 1)
        return np.random.default_rng(0).integers(0, vocabulary, size=size)

    return Objective(
        lowered=lambda forward, sequences: lowered(reading(forward), sequences),
        measured=lambda forward, sequences: cross_entropy_sum(reading(forward), sequences),
        each=lambda forward, sequences: cross_entropy_means(reading(forward), sequences),
        terms=lambda sequences: max(1, learned_tokens(sequences)),
        blank=blank,
    )


def apart(model: Forward) -> Forward:
    """The decoder, reading each document of a sequence as if it were alone.

    It is given no mask and positions that begin anew, from which `transformers` makes a mask that
    lets no token look beyond its document. `keeps_apart` says whether a model goes by them.
    """

    def read(*, input_ids: Tensor, **words: Any) -> Any:
        starts = (input_ids & STARTS) != 0
        at = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        begun = torch.cummax(at.where(starts, 0), dim=1).values
        return model(input_ids=input_ids & _IDS, position_ids=at - begun, **words)

    return read


def _as_it_is(model: Forward) -> Forward:
    return model


def keeps_apart(model: nn.Module, vocabulary: int) -> bool:
    """Whether the second of two short documents in a sequence is read as if it were alone.

    Found out by reading both: what is left of the first one's influence is at most a tenth.
    """
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, size=(1, 16)))
    ids = ids.to(next(model.parameters()).device)
    marked = ids.clone()
    marked[0, 8] |= STARTS
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            alone = model(input_ids=ids[:, 8:], use_cache=False).logits
            behind = model(input_ids=ids, use_cache=False).logits[:, 8:]
            found = apart(model)(input_ids=marked, use_cache=False).logits[:, 8:]
    except TypeError:
        return False  # It takes no positions.
    finally:
        model.train(was_training)
    return bool((found - alone).norm() <= 0.1 * (behind - alone).norm())


def hidden_tokens(*, vocabulary: int, sequence_tokens: int, frac: float) -> Objective:
    """The tokens that are hidden in what the model reads: samples [n, 2, sequence_tokens]."""

    def spoken(forward: Forward, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Logits where a token is to be said, in f32, and these tokens."""
        is_asked = samples[:, LABELS] != UNASKED
        logits = forward(input_ids=samples[:, READ]).logits
        return logits[is_asked].float(), samples[:, LABELS][is_asked]

    def loss(forward: Forward, samples: Tensor) -> Tensor:
        return functional.cross_entropy(*spoken(forward, samples), reduction="sum")

    def each(forward: Forward, samples: Tensor) -> Tensor:
        losses = functional.cross_entropy(*spoken(forward, samples), reduction="none")
        return losses.view(len(samples), -1).mean(dim=1)

    return Objective(
        lowered=loss,
        measured=loss,
        each=each,
        terms=lambda samples: int((samples[:, LABELS] != UNASKED).sum()),
        blank=lambda count: blank_masked(count, sequence_tokens, vocabulary, frac),
    )


def cross_entropy_sum(model: Forward, sequences: Tensor) -> Tensor:
    """Summed cross-entropy of each token given those before it, in f32 whatever the autocast."""
    return _summed(model(input_ids=inputs_of(sequences), use_cache=False).logits, sequences)


def objective_of(model: nn.Module, z_loss: float = 0.0) -> LossSum:
    """What training of a decoder lowers: cross-entropy of each token, and for each of them the
    auxiliary loss of its router, where it has one, and the z-loss, weighed by `z_loss`.

    The auxiliary loss is a mean over the tokens of one pass, so it depends a little on how a batch
    is cut into passes.
    """
    coefficient = router_coefficient(model)
    head = chunkable_head(model)
    if not coefficient and not z_loss and head is None:
        return cross_entropy_sum
    router = {"output_router_logits": True} if coefficient else {}

    def with_more(forward: Forward, sequences: Tensor) -> Tensor:
        with contextlib.nullcontext() if head is None else passing(head):
            output = forward(input_ids=inputs_of(sequences), use_cache=False, **router)
        if head is not None and output.logits.shape[-1] == head.in_features:
            targets = targets_of(sequences)
            loss = loss_of_hidden(output.logits, head, targets, ignored=IGNORED, z_loss=z_loss)
        else:
            loss = _summed(output.logits, sequences)
            if z_loss:
                loss = loss + z_loss * _denominators(output.logits, sequences).square().sum()
        # A model of this kind may have not a single layer of experts.
        if coefficient and isinstance(output.aux_loss, Tensor):
            tokens = int((sequences[:, 1:] >= 0).sum())
            loss = loss + coefficient * tokens * output.aux_loss.float()
        return loss

    return with_more


def _denominators(logits: Tensor, sequences: Tensor) -> Tensor:
    """Of each learned token, the logarithm of what its softmax divides by, in f32."""
    return logits.float().logsumexp(dim=-1)[sequences[:, 1:] >= 0]


def router_coefficient(model: nn.Module) -> float:
    """The weight of the auxiliary loss beside a token's cross-entropy; 0 where there is none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "output_router_logits") or config.model_type in _WITHOUT:
        return 0.0
    said = [getattr(config, key, None) for key in _COEFFICIENTS]
    return float(next((one for one in said if one), 0.0))


def inputs_of(sequences: Tensor) -> Tensor:
    """The ids that a model reads, with `STARTS`: [batch, sequence_tokens], all 0 or more."""
    ids = sequences[:, :-1]
    return torch.maximum(ids, ~ids)


def targets_of(sequences: Tensor) -> Tensor:
    """The ids that it should predict, `IGNORED` where it need not: [batch, sequence_tokens]."""
    ids = sequences[:, 1:]
    return (ids & _IDS).masked_fill(ids < 0, IGNORED)


def cross_entropy_means(model: Forward, sequences: Tensor) -> Tensor:
    """Mean cross-entropy of each sequence's learned tokens given those before, in f32: [sequences].

    0 of a sequence without one.
    """
    logits = model(input_ids=inputs_of(sequences), use_cache=False).logits
    targets = targets_of(sequences)
    flat = logits.float().view(-1, logits.shape[-1])
    losses = functional.cross_entropy(flat, targets.reshape(-1), reduction="none")
    learned = (targets != IGNORED).sum(dim=1).clamp(min=1)
    # Where all are learned, a factor of exactly 1.
    return losses.view(len(sequences), -1).mean(dim=1) * (targets.shape[1] / learned)


def _summed(logits: Tensor, sequences: Tensor) -> Tensor:
    targets = targets_of(sequences).reshape(-1)
    flat = logits.float().view(-1, logits.shape[-1])
    return functional.cross_entropy(flat, targets, reduction="sum")
