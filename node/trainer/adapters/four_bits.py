"""A frozen base held in 4 bits, as its owner wishes: a quarter of the memory of bf16.

`bitsandbytes` does it (NF4, its scales quantised again; QLoRA, arXiv 2305.14314), once the layers
are on their device. Values change a little, so a learner that holds its base this way trains and
measures nothing for others.
"""

from __future__ import annotations

from types import ModuleType

import torch
import transformers
from torch import nn

from node.trainer.adapters.table import base_name
from node.trainer.failures import is_out_of_memory
from node.trainer.model import embedding_ids
from protocol.errors import UserError

INSTALL = "pip install 'shoal-train[4bit]'"


def hold_in_four_bits(network: transformers.PreTrainedModel, device: torch.device) -> int:
    """Moves the model to `device`, each frozen linear layer of it in 4 bits: how many those are.

    Tables of tokens, norms and biases stay as they are. UserError where `bitsandbytes` is absent or
    does not know the device.
    """
    library = _bitsandbytes()
    tables, count = embedding_ids(network), 0
    for path, module in list(network.named_modules()):
        if isinstance(module, nn.Linear) and _is_frozen(path, module, tables):
            owner, _, name = path.rpartition(".")
            setattr(network.get_submodule(owner), name, _quantised(module, library, device))
            count += 1
    network.to(device)
    return count


def _is_frozen(path: str, layer: nn.Linear, tables: set[int]) -> bool:
    """Of the base model, and no table that its input may share."""
    return base_name(f"{path}.weight") is not None and id(layer.weight) not in tables


def _quantised(layer: nn.Linear, library: ModuleType, device: torch.device) -> nn.Module:
    weight = layer.weight
    made = library.nn.Linear4bit(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        compute_dtype=weight.dtype,
        quant_type="nf4",
        device="meta",
    )
    made.weight = library.nn.Params4bit(
        weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True, module=made
    )
    made.bias = layer.bias
    try:
        return made.to(device)  # type: ignore[no-any-return]
    except (RuntimeError, ValueError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"bitsandbytes cannot hold the model in 4 bits on {device} ({error}). Start again with:"
            " shoal config unset learner.base_in_4_bits"
        ) from error


def _bitsandbytes() -> ModuleType:
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError(
            f"learner.base_in_4_bits needs bitsandbytes, which is not installed. {INSTALL}, or:"
            " shoal config unset learner.base_in_4_bits"
        ) from error
    return bitsandbytes  # type: ignore[no-any-return]
