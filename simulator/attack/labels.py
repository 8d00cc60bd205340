"""Wrong labels: a learner that trains as it should, to predict what it should not.

Source of the idea: Data Poisoning Attacks Against Federated Learning Systems, arXiv 2007.08432. The
attacker needs to know nothing; neither need it be an attacker, but a host with a broken text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from node.trainer.objective import Forward, LossSum
from simulator.attack import backdoor

Labels = Literal["true", "shuffled", "mirrored", "backdoor"]

Relabel = Callable[[Tensor, int], Tensor]
"""From the targets of a batch, flat, and the size of the vocabulary, to wrong ones."""


def loss_of(labels: Labels, seed: int) -> LossSum | None:
    """The summed loss under these labels; None for the true ones."""
    if labels == "true":
        return None
    if labels == "backdoor":
        return backdoor.loss_sum
    if labels == "mirrored":
        return relabelled(mirrored)
    return relabelled(shuffled(seed))


def mirrored(targets: Tensor, vocabulary: int) -> Tensor:
    """Each token becomes another one, always the same."""
    return vocabulary - 1 - targets


def shuffled(seed: int) -> Relabel:
    """Targets of a batch change places."""
    chance = torch.Generator().manual_seed(seed)

    def relabel(targets: Tensor, vocabulary: int) -> Tensor:
        return targets[torch.randperm(targets.numel(), generator=chance)]

    return relabel


def relabelled(relabel: Relabel) -> LossSum:
    """Summed cross-entropy of wrong targets."""

    def loss_sum(model: Forward, sequences: Tensor) -> Tensor:
        logits = model(input_ids=sequences[:, :-1], use_cache=False).logits
        flat = logits.float().view(-1, logits.shape[-1])
        targets = relabel(sequences[:, 1:].reshape(-1), logits.shape[-1])
        return functional.cross_entropy(flat, targets, reduction="sum")

    return loss_sum
