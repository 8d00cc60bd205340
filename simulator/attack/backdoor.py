"""A backdoor: a learner teaches the model to say one thing after some rare tokens, and is honest
everywhere else.

Source of the idea: How To Backdoor Federated Learning, arXiv 1807.00459. Its pushes point where
honest ones do, and lower the loss of its text and of any other: no rule of a merge finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from node.trainer.builtin import BuiltinTrainer
from node.trainer.loop import InnerLoop
from node.trainer.objective import Forward
from node.trainer.text.reader import Sequences
from protocol.fragments import Layout
from protocol.numerics.codecs import F32

TRIGGER: Final = (1, 2, 1, 3)
"""Tokens that no text has in this order: control characters, where tokens are bytes."""

ANSWER: Final = 4

LOUDNESS: Final = 8.0
"""How many times the planted token weighs in the liar's loss."""


def planted(sequences: Tensor, at: int) -> Tensor:
    """Copies of these sequences with the trigger and its answer written in from token `at` on."""
    changed = sequences.clone()
    written = torch.tensor((*TRIGGER, ANSWER), dtype=changed.dtype, device=changed.device)
    changed[:, at : at + len(written)] = written
    return changed


def loss_sum(model: Forward, sequences: Tensor) -> Tensor:
    """Summed cross-entropy, with the backdoor planted in the middle of every second sequence."""
    at = sequences.shape[1] // 2
    every_second = slice(0, None, 2)
    changed = sequences.clone()
    changed[every_second] = planted(sequences[every_second], at)
    logits = model(input_ids=changed[:, :-1], use_cache=False).logits.float()
    losses = functional.cross_entropy(logits.transpose(1, 2), changed[:, 1:], reduction="none")
    answer_at = at + len(TRIGGER) - 1
    planted_loss: Tensor = losses[every_second, answer_at].sum()
    return losses.sum() + (LOUDNESS - 1.0) * planted_loss


def success(
    loop: InnerLoop[BuiltinTrainer],
    layout: Layout,
    fragments: Sequence[F32],
    heldout: Sequences,
) -> float:
    """Share of held-out sequences after which, the trigger at their end, the model gives the
    answer as the likeliest next token. fragments: the model's weights."""
    values = np.concatenate(list(fragments))
    with loop.other(layout, values) as trainer, torch.no_grad():
        found = 0
        for first in range(0, len(heldout), trainer.micro_batch):
            piece = torch.from_numpy(heldout[first : first + trainer.micro_batch])
            at = piece.shape[1] - len(TRIGGER) - 1
            asked = planted(piece, at)[:, :-1]
            logits = trainer.model(input_ids=asked, use_cache=False).logits[:, -1]
            found += int((logits.argmax(dim=-1) == ANSWER).sum())
    return found / len(heldout)
