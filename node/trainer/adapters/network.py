"""The network of a project with an adapter: a frozen base in the dtype in which it is held, and the
adapter's matrices in f32 beside it.

There is never a copy of the base in f32 unless it is held so: its layers are built without memory,
and get the held values one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import accelerate
import torch
import transformers
from torch import Tensor, nn

from host.files.held_base import HeldBase
from node.trainer import architectures
from node.trainer.adapters.draws import first_matrix
from node.trainer.adapters.table import base_name, check_table, inject, is_first
from node.trainer.failures import is_out_of_memory
from node.trainer.model import build_model
from protocol import project
from protocol.errors import UserError

STAND_IN_SPREAD: Final = 0.02
"""Of random weights, as models usually begin: larger ones overflow."""

DTYPES: Final = {"bf16": torch.bfloat16, "f32": torch.float32}


def network_of(genesis: project.Genesis, cache: Path) -> transformers.PreTrainedModel:
    """The model that a learner of this project trains, on the CPU, in training mode.

    cache: the home's, where a frozen base lies. What is not trained needs no gradient. UserError if
    the model cannot be built, or its frozen base is not here whole.
    """
    if genesis.adapter is None:
        return build_model(genesis.model, seed=genesis.seed)
    check_table(genesis)  # Before any memory is taken.
    return adapted(genesis, genesis.adapter, HeldBase(cache, genesis))


def adapted(
    genesis: project.Genesis, adapter: project.AdapterSpec, held: HeldBase
) -> transformers.PreTrainedModel:
    """The same from a base that is held anywhere. Cost: memory for the base, as it is held."""
    dtype = DTYPES[adapter.base_dtype]
    network = _skeleton(genesis.model, dtype)
    places = _places(network)
    for tensor, content in held.tensors():
        values = torch.frombuffer(bytearray(content), dtype=dtype).view(tensor.shape)
        _freeze(places[tensor.name], values)
    begin_adapter(network, adapter, genesis.seed)
    return network.train()


def stand_in(spec: project.ModelSpec, adapter: project.AdapterSpec) -> transformers.PreTrainedModel:
    """As large and as fast as the model of a project, with values that mean nothing."""
    network = _skeleton(spec, DTYPES[adapter.base_dtype])
    named = dict(network.named_parameters())
    for name, places in _places(network).items():
        shape, dtype = named[name].shape, DTYPES[adapter.base_dtype]
        _freeze(places, torch.randn(shape, dtype=dtype).mul_(STAND_IN_SPREAD))
    begin_adapter(network, adapter, seed=0)
    return network.train()


def begin_adapter(
    network: transformers.PreTrainedModel, adapter: project.AdapterSpec, seed: int
) -> None:
    """Puts the adapter with its first weights into a base model, in place."""
    inject(network, adapter)
    for name, one in list(network.named_parameters()):
        if base_name(name) is not None:
            continue
        if is_first(name):
            values = torch.from_numpy(first_matrix(seed, name, tuple(one.shape)))
        else:
            values = torch.zeros(tuple(one.shape), dtype=torch.float32)
        layer, _, last = name.rpartition(".")
        began = nn.Parameter(values, requires_grad=one.requires_grad)
        setattr(network.get_submodule(layer), last, began)


def _skeleton(spec: project.ModelSpec, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The base model with its tables of positions, and without memory for its weights."""
    configuration = architectures.configuration(spec)
    try:
        with _default_dtype(dtype), torch.random.fork_rng(devices=[]):
            with accelerate.init_empty_weights(include_buffers=False):
                network = architectures.find(spec.architecture).model(configuration)
            network.tie_weights()
    except (*architectures.REFUSALS, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"{spec.architecture} cannot be built from this configuration ({error!r}). Correct the"
            " values under [model.config]."
        ) from error
    return network


def _freeze(places: list[tuple[nn.Module, str]], values: Tensor) -> None:
    frozen = nn.Parameter(values, requires_grad=False)
    for module, name in places:
        setattr(module, name, frozen)


def _places(network: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Where each tensor stands, under its first name: in several modules, if it is tied."""
    first: dict[int, str] = {}
    found: dict[str, list[tuple[nn.Module, str]]] = defaultdict(list)
    for path, module in network.named_modules():
        for name, one in module.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            found[first.setdefault(id(one), full)].append((module, name))
    return found


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def held_values(network: transformers.PreTrainedModel, adapter: project.AdapterSpec) -> bytearray:
    """A base model's weights as they are held, one tensor after the other.

    network: with all its weights, before any adapter. Cost: their memory once more.
    """
    dtype, named = DTYPES[adapter.base_dtype], dict(network.named_parameters())
    out = bytearray(adapter.held_bytes)
    whole, first = torch.frombuffer(out, dtype=dtype), 0
    for tensor in adapter.frozen:
        values: Tensor = named[tensor.name].detach().float().reshape(-1)
        # A subnormal number counts as 0, as in the digest of the tensor.
        tiny = torch.finfo(torch.float32).tiny
        whole[first : first + tensor.numel] = torch.where(values.abs() < tiny, 0.0, values)
        first += tensor.numel
    return out
