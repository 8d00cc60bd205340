"""What a push does to the loss of two texts: sequence by sequence, without it and with it.

The same sequences are read twice, in the same micro-batches, so that how they differ from each
other does not hide what the push does, and a push of nothing has a gain of exactly nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from node.trainer.loop import Worked, view_of
from node.trainer.model import Floats
from node.trainer.own.interface import Losses, Samples, TellsLosses, Trainer
from protocol.errors import InternalError
from protocol.fragments import Layout
from protocol.messages import Gain

if TYPE_CHECKING:
    from node.trainer.loop import InnerLoop

LOSS_MAX: Final = 1e4
"""Nats per token. With the push, a loss beyond this, or one that is no number, counts as this."""


class NotFinite(Exception):
    """The model has no loss without the push either."""


@dataclass(frozen=True, slots=True)
class Change:
    """Other values of one fragment."""

    fragment: int
    values: Floats


def measure_gain(
    loop: InnerLoop[Trainer],
    layout: Layout,
    values: Floats,
    change: Change,
    texts: tuple[Samples, ...],
    worked: Worked,
) -> tuple[Gain, ...]:
    """By how much the change lowers the loss of each text, in nats per token.

    values: every fragment, one after the other; texts: [n, sequence_tokens + 1] each. The weights
    in training and the random stream are not touched. Cost: a second copy of the weights, and two
    forward passes over each text. NotFinite if there is nothing to compare with; what the device
    raises where memory is short, and what `worked` raises, pass through.
    """
    with loop.other(layout, values) as trainer, torch.no_grad():
        if not isinstance(trainer, TellsLosses):
            raise InternalError("this trainer measures no losses of single samples")
        before = [_losses(trainer, text, worked) for text in texts]
        if not all(np.isfinite(losses).all() for losses in before):
            raise NotFinite
        view_of(trainer, layout).write(change.fragment, change.values)
        after = [_losses(trainer, text, worked) for text in texts]
    return tuple(map(_gain, before, after))


def _losses(trainer: TellsLosses, text: Samples, worked: Worked) -> Losses:
    since = time.monotonic()

    def rest() -> None:
        nonlocal since
        worked(time.monotonic() - since)
        since = time.monotonic()

    return trainer.losses(text, rest)


def _gain(before: Losses, after: Losses) -> Gain:
    before = np.minimum(before, LOSS_MAX)
    after = np.minimum(np.nan_to_num(after, nan=LOSS_MAX, posinf=LOSS_MAX), LOSS_MAX)
    gains = before - after
    return Gain(float(before.mean()), float(gains.mean()), float(gains.std()), len(gains))
