"""An inner loop over a Llama of 58 000 parameters, and text that it can learn."""

from __future__ import annotations

import numpy as np
import torch

from node.trainer.builtin import builtin_loop
from node.trainer.loop import make_accelerator
from node.trainer.model import build_model, describe_model
from node.trainer.text.reader import BlockReader
from protocol.project import Genesis
from tests.support.tiny_project import CONFIG, INNER, data_spec

GENESIS = Genesis(
    wire_version=1,
    name="tiny",
    owner=bytes(32),
    model=describe_model("LlamaForCausalLM", CONFIG),
    data=data_spec("unused"),
    seed=11,
    strategy="balanced",
    fragments=3,
)


class Repeating:
    """Learnable text: every sequence counts upwards from a random letter."""

    def sequences(self, position):
        first = np.random.default_rng(position).integers(0, 200, size=(4, 1))
        return (first + np.arange(33)) % 257


def make_loop(
    source=None,
    *,
    inner=INNER,
    seed=11,
    blocks=100,
    block_sequences=4,
    model=None,
    accelerator=None,
    **options,
):
    reader = BlockReader(source or Repeating(), block_sequences=block_sequences)
    reader.append(((0, blocks),))
    model = model or build_model(GENESIS.model, seed=seed)
    accelerator = accelerator or make_accelerator("cpu")
    return builtin_loop(model, reader, inner, accelerator=accelerator, **options)


def weights_of(loop):
    return torch.cat([one.detach().flatten().clone() for one in loop.trainer.model.parameters()])
