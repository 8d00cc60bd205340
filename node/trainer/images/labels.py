"""What a classifier is trained to say: the class of each image, by cross-entropy."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from node.trainer.objective import Forward, Objective
from node.trainer.own.interface import Images
from protocol.project import ImageSpec

BLANK: Final = -1
"""Number of an image without a meaning: nothing needs to be here for it."""


def class_of(images: Images, spec: ImageSpec) -> Objective:
    """The class of each image, by its number: samples [n]."""
    mean = torch.tensor(spec.mean).view(1, -1, 1, 1)
    std = torch.tensor(spec.std).view(1, -1, 1, 1)

    def losses(forward: Forward, numbers: Tensor) -> Tensor:
        pixels, classes = images.look(numbers.cpu().numpy())
        # Bytes go to the device, not numbers four times as large.
        shown = torch.from_numpy(pixels).to(numbers.device).float().div_(255.0)
        shown = (shown - mean.to(shown.device)) / std.to(shown.device)
        logits = forward(pixel_values=shown).logits
        labels = torch.from_numpy(classes).to(numbers.device)
        return functional.cross_entropy(logits.float(), labels, reduction="none")

    def summed(forward: Forward, numbers: Tensor) -> Tensor:
        return losses(forward, numbers).sum()

    return Objective(
        lowered=summed,
        measured=summed,
        each=losses,
        terms=len,
        blank=lambda count: np.full(count, BLANK),
    )
