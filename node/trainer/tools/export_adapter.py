"""An adapter, exported alone as `peft` loads it, or merged into its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers
from safetensors.torch import save_file

from host.files.held_base import HeldBase
from node.trainer.adapters.draws import first_matrix
from node.trainer.adapters.network import adapted
from node.trainer.adapters.table import NAME, is_first, lora_config
from node.trainer.model import Floats, FragmentView, layout_of, whole_tensors
from protocol.errors import UserError
from protocol.project import AdapterSpec, Genesis, hub_source

WEIGHTS_FILE: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
"""Of every name in an adapter's file: where `peft` keeps the model that it wraps."""


class Merged(NamedTuple):
    """A whole model with an adapter merged into it, f32."""

    network: transformers.PreTrainedModel
    moved: dict[str, float]
    """By name of each tensor that the adapter stood beside: the sum of the squares of what it
    added."""


def merged_model(
    genesis: Genesis, adapter: AdapterSpec, fragments: Sequence[Floats], cache: Path
) -> Merged:
    """The whole model with the adapter merged into it.

    fragments: f32 [numel] each, in fragment order. cache: the home's. UserError if the frozen base
    is not there.
    """
    from peft.tuners.lora import LoraLayer

    held = HeldBase(cache, genesis)
    if held.missing():
        raise UserError(
            f"The frozen base model {held.source} is not on this machine, so the adapter cannot be"
            " merged into it. Export the adapter alone with --adapter, or run this where the"
            " project was signed or a learner of it runs."
        )
    network = adapted(genesis, adapter, held).float()
    view = FragmentView(network, layout_of(genesis))
    for index, values in enumerate(fragments):
        view.write(index, values)
    moved = {}
    for name, layer in list(network.named_modules()):
        if isinstance(layer, LoraLayer):
            wrapped: Any = layer
            moved[f"{name}.weight"] = float(wrapped.get_delta_weight(NAME).detach().square().sum())
            wrapped.merge()
            above, _, last = name.rpartition(".")
            setattr(network.get_submodule(above), last, wrapped.get_base_layer())
    return Merged(network, moved)


def write_adapter(genesis: Genesis, fragments: Sequence[Floats], directory: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, which `peft` loads.

    fragments: f32 [numel] each, in fragment order. UserError if the project trains whole models, or
    the folder cannot be written.
    """
    adapter = genesis.adapter
    if adapter is None:
        raise UserError("This project trains a whole model and no adapter. Leave out --adapter.")
    tensors = _tensors(genesis, adapter, fragments)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _config(genesis, adapter).save_pretrained(str(directory))
        save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    except OSError as error:
        raise UserError(
            f"{directory} cannot be written ({error}). Free disk space or name another folder."
        ) from error


def _tensors(
    genesis: Genesis, adapter: AdapterSpec, fragments: Sequence[Floats]
) -> dict[str, torch.Tensor]:
    """By the names that `peft` gives them in a file."""
    values = whole_tensors(layout_of(genesis), fragments)
    found = {name: torch.from_numpy(one) for name, one in values.items()}
    shapes = {one.name: one.shape for one in adapter.frozen}
    for name in list(found) if adapter.trains == "b" else ():
        layer = name.partition(".lora_B.")[0]
        first = f"{layer}.lora_A.{NAME}.weight"
        assert not is_first(name), "only the second matrices are trained"
        # What `peft` calls the input of a layer that is kept transposed is its first dimension.
        out, inner = found[name].shape[0], shapes[f"{layer}.weight"]
        width = inner[1] if inner[0] == out else inner[0]
        drawn = first_matrix(genesis.seed, first, (adapter.rank, width))
        found[first] = torch.from_numpy(drawn)
    return {_PREFIX + name.replace(f".{NAME}.", "."): one for name, one in found.items()}


def _config(genesis: Genesis, adapter: AdapterSpec) -> Any:
    base = genesis.base
    assert base is not None, "an adapter stands beside a base model"
    hub = hub_source(base.source)
    return lora_config(
        adapter,
        base_model_name_or_path=hub[0] if hub is not None else base.source.partition(":")[2],
        revision=hub[1] if hub is not None else None,
        inference_mode=True,
    )
