"""Base models: published weights as version 0 of a project.

A folder as `save_pretrained` writes it, or as the hub has it: `config.json`, and the weights as
safetensors. It is read where a project is signed, and where its first weights are made; everybody
else gets them from peers. What is pinned is what the model holds once `transformers` has loaded it,
as f32, so neither how the files are cut nor how they hold a number matters: the values do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import torch
import transformers
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from host.files.held_base import pieces_of
from node.trainer import architectures
from node.trainer.adapters.draws import first_adapter
from node.trainer.adapters.network import held_values
from node.trainer.failures import is_out_of_memory
from node.trainer.model import (
    Floats,
    FragmentView,
    build_model,
    initial_weights,
    layout_of,
    outline,
)
from protocol import decoders, project
from protocol.errors import UserError
from protocol.fragments import Layout
from protocol.numerics.codecs import flush
from protocol.numerics.versions import state_manifests
from protocol.project import Fraction, Spread

CONFIG_FILE: Final = "config.json"
CONFIG_BYTES_MAX: Final = 1 << 20
ADAPTER_FILE: Final = "adapter_config.json"
SHOWN_FILE: Final = "preprocessor_config.json"

Stored = Literal["F32", "BF16", "F16"]
_STORED: Final[Mapping[str, Stored]] = {"F32": "F32", "BF16": "BF16", "F16": "F16"}
_NO_WEIGHTS: Final = frozenset({"BOOL", "I16", "I32", "I64", "U16", "U32", "U64"})
"""What tables of positions and masks are stored as; a quantised weight is I8, U8 or F8."""


class Description(NamedTuple):
    """What `config.json` says."""

    architecture: str
    config: dict[str, project.ConfigValue]
    """Every value that the architecture declares, also those that the file leaves to it."""
    dropped: tuple[str, ...]
    """Keys of the file that nothing in the model reads."""


def describe(folder: Path) -> Description:
    """Architecture and configuration of the base model in a folder.

    UserError if it is not one that a project can start from.
    """
    if (folder / ADAPTER_FILE).exists():
        raise UserError(
            f"{folder} holds an adapter, not a whole model. Merge it into its model first"
            " (`merge_and_unload` of peft), and name the folder of the result."
        )
    said = _read_json(folder / CONFIG_FILE)
    if said.get("quantization_config"):
        raise UserError(
            f"The model in {folder} is quantised, and Shoal trains whole numbers of f32. Name the"
            " model that it was made from."
        )
    names = _strings(said.get("architectures"))
    by_type = architectures.find(str(said.get("model_type")))
    known = architectures.find(architectures.name_of(by_type.config(), names))
    kept = architectures.declared(known, said)
    read = {known.config.attribute_map.get(key, key) for key in kept} | set(kept)
    dropped = sorted(set(said) - read - architectures.bookkeeping())
    try:
        loaded = known.config(**kept)
    except architectures.REFUSALS as error:
        words = " ".join(str(error).split())
        raise UserError(f"{folder / CONFIG_FILE} cannot be used ({words}).") from error
    values = architectures.declared(known, loaded.to_dict())
    name = architectures.name_of(loaded, names)
    try:
        config = decoders.convert(values, dict[str, project.ConfigValue], strict=True)
    except msgspec.ValidationError as error:
        raise UserError(f"{folder / CONFIG_FILE} says more than plain values ({error}).") from error
    architectures.configuration(project.ModelSpec(name, config, ()))
    return Description(name, config, tuple(dropped))


def normalisation(folder: Path, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation, by channel, of what the model in the folder is shown.

    As its `preprocessor_config.json` says, else a half each. UserError for values that are none.
    """
    said = _read_json(folder / SHOWN_FILE) if (folder / SHOWN_FILE).is_file() else {}
    try:
        return (
            decoders.convert(said.get("image_mean", [0.5] * channels), tuple[Fraction, ...]),
            decoders.convert(said.get("image_std", [0.5] * channels), tuple[Spread, ...]),
        )
    except msgspec.ValidationError as error:
        raise UserError(f"{folder / SHOWN_FILE} cannot be used ({error}).") from error


def pin(folder: Path, model: project.ModelSpec, layout: Layout, source: str) -> project.BaseSpec:
    """What a genesis says of the base model in a folder.

    model: with its tensor table. UserError if the weights are not that model's, not finite, or not
    of a kind that can be trained. Cost: reads all of it; memory for the weights in f32, twice.
    """
    network = _load(folder, model)
    stored = _stored(folder)
    usual = Counter(stored.values()).most_common(1)[0][0]
    tensors = tuple(
        project.BaseTensor(stored.get(name, usual), digest)
        for name, digest in _digests(network, model)
    )
    states = tuple(_first_states(FragmentView(network, layout)))
    return project.BaseSpec(source, tensors, states)


def first_weights(genesis: project.Genesis, folder: Path | None) -> list[Floats]:
    """Version 0 of every fragment, f32 [numel]: of the base model in `folder`, or drawn.

    UserError if the project goes on from a base model and the folder is missing or holds another
    one. An adapter is drawn.
    """
    if genesis.adapter is not None:
        return first_adapter(genesis)
    if genesis.base is None:
        return initial_weights(genesis)
    network = _load_pinned(genesis.base, genesis.model, folder)
    return FragmentView(network, layout_of(genesis)).copies()


def freeze(
    folder: Path, genesis: project.Genesis, source: str
) -> tuple[project.Genesis, bytearray]:
    """The genesis with what it says of the frozen base in a folder, and that base as it is held.

    genesis: with its adapter's tables. UserError and cost as in `pin`.
    """
    adapter = genesis.adapter
    assert adapter is not None, "only beside an adapter a base model is frozen"
    whole = _whole(genesis.model, adapter)
    network = _load(folder, whole)
    stored = _stored(folder)
    usual = Counter(stored.values()).most_common(1)[0][0]
    tensors = tuple(
        project.BaseTensor(stored.get(name, usual), digest)
        for name, digest in _digests(network, whole)
    )
    held = held_values(network, adapter)
    adapter = msgspec.structs.replace(adapter, pieces=tuple(pieces_of(memoryview(held))))
    states = tuple(map(_first_state, first_adapter(genesis)))
    base = project.BaseSpec(source, tensors, states)
    return msgspec.structs.replace(genesis, base=base, adapter=adapter), held


def frozen_values(genesis: project.Genesis, folder: Path | None) -> bytearray:
    """The frozen base as it is held, from a folder. UserError if that has another model."""
    base, adapter = genesis.base, genesis.adapter
    assert base is not None, "an adapter stands beside a base model"
    assert adapter is not None, "only beside an adapter a base model is frozen"
    return held_values(_load_pinned(base, _whole(genesis.model, adapter), folder), adapter)


def _whole(model: project.ModelSpec, adapter: project.AdapterSpec) -> project.ModelSpec:
    """The base model, as one that is trained."""
    table = tuple(project.TensorSpec(one.name, one.shape, "mean") for one in adapter.frozen)
    return msgspec.structs.replace(model, tensors=table)


def _load_pinned(
    base: project.BaseSpec, model: project.ModelSpec, folder: Path | None
) -> transformers.PreTrainedModel:
    """The base model in a folder. UserError if it is not the one that the project names."""
    if folder is None:
        raise UserError(
            f"This project starts from {base.source}, which is not here. Name its folder with"
            " --from FOLDER."
        )
    if len(base.tensors) != len(model.tensors):
        raise UserError("The project names another number of digests than its model has tensors.")
    network = _load(folder, model)
    pinned = zip(_digests(network, model), base.tensors, strict=True)
    for (name, digest), one in pinned:
        if digest != one.digest:
            raise UserError(
                f"The tensor {name} in {folder} is not the one that the project names: the files"
                f" are damaged, or of another revision than {base.source}. Get them anew."
            )
    return network


def _strings(said: object) -> list[str]:
    return [one for one in said if isinstance(one, str)] if isinstance(said, list) else []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as handle:
            content = handle.read(CONFIG_BYTES_MAX + 1)
        said = json.loads(content) if len(content) <= CONFIG_BYTES_MAX else None
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} has no {path.name}. Name a folder as `save_pretrained` of transformers"
            " writes it."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from error
    if not isinstance(said, dict):
        raise UserError(f"{path} is not the configuration of a model.")
    return said


def _load(folder: Path, model: project.ModelSpec) -> transformers.PreTrainedModel:
    """The model with the folder's weights as f32, every one of them."""
    transformers.utils.logging.disable_progress_bar()
    _stored(folder)  # Says what is wrong with the files in our own words.
    known = architectures.find(model.architecture)
    try:
        network, report = known.model.from_pretrained(
            folder,
            config=architectures.configuration(model),
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except (*architectures.REFUSALS, OSError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        words = " ".join(str(error).split())[:400]
        raise UserError(f"The weights in {folder} cannot be loaded ({words}).") from error
    wanting = _without_head(network, model, report)
    if wanting:
        raise UserError(
            f"The weights in {folder} lack {len(wanting)} tensors of the model that its"
            f" configuration describes, {wanting[0]} for one. Check the values under"
            " [model.config], and get the files anew."
        )
    network = network.float().train()
    _require_trainable(network, model, folder)
    return network


def _without_head(
    network: transformers.PreTrainedModel, model: project.ModelSpec, report: Mapping[str, Any]
) -> list[str]:
    """Tensors that the files lack, but for the head of a classifier.

    A head for other classes than those of the files begins with zeros, which are the same on every
    machine.
    """
    mismatched = (one if isinstance(one, str) else one[0] for one in report["mismatched_keys"])
    wanting = sorted({*report["missing_keys"], *mismatched})
    classes = model.config.get(architectures.NUM_LABELS)
    if not wanting or not isinstance(classes, int):
        return wanting
    bare = msgspec.structs.replace(model, tensors=())
    more = {**bare.config, architectures.NUM_LABELS: classes + 1}
    other = dict(outline(msgspec.structs.replace(bare, config=more)).named_parameters())
    head = {name: one for name, one in network.named_parameters() if one.shape != other[name].shape}
    if not set(wanting) <= set(head):
        return wanting
    for one in head.values():
        one.data.zero_()
    return []


def _require_trainable(
    network: transformers.PreTrainedModel, model: project.ModelSpec, folder: Path
) -> None:
    """UserError if the model keeps something learned that no learner would ever be sent."""
    trained = {id(one) for one in network.parameters() if one.requires_grad}
    named = network.state_dict(keep_vars=True)
    beside = {name: one for name, one in named.items() if id(one) not in trained}
    if not beside:
        return
    fresh = build_model(model, seed=0).state_dict()
    for name, one in beside.items():
        if not torch.equal(one.detach(), fresh[name]):
            raise UserError(
                f"The model in {folder} keeps {name}, which is not trained and is not what a new"
                " model has. Shoal sends trained tensors only, so it cannot start from this one."
            )


def _stored(folder: Path) -> dict[str, Stored]:
    """How each tensor of the files is stored, by its name there."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"{folder} has no weights as .safetensors, the only kind that Shoal opens: others can"
            " hold code. Convert them with `save_pretrained` of transformers."
        )
    found: dict[str, Stored] = {}
    for path in files:
        for name, stored in _header(path):
            if stored in _NO_WEIGHTS:
                continue
            if stored not in _STORED:
                raise UserError(
                    f"{path} stores {name} as {stored}; a project can start from F32, BF16 and F16."
                    " Name the model as it was before it was quantised."
                )
            found[name] = _STORED[stored]
    if not found:
        raise UserError(f"The files of {folder} hold no weights. Get them anew.")
    return found


def _header(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with safe_open(path, framework="numpy") as handle:
            for name in handle.keys():  # noqa: SIM118 - not a dictionary
                yield name, str(handle.get_slice(name).get_dtype())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}). Get it anew.") from error


def _digests(
    network: transformers.PreTrainedModel, model: project.ModelSpec
) -> Iterator[tuple[str, bytes]]:
    """Name and digest of each tensor, in the order of the table. UserError if one is not finite."""
    held = dict(network.named_parameters())
    for spec in model.tensors:
        values = held[spec.name].detach().numpy().reshape(-1).copy()
        if not np.isfinite(values).all():
            raise UserError(
                f"The tensor {spec.name} of the base model has values that are no"
                " numbers. Get the files anew."
            )
        flush(values)
        yield spec.name, blake3(values.view(np.uint8)).digest()


def _first_states(view: FragmentView) -> Iterator[project.FirstState]:
    for fragment in view.layout.fragments:
        theta = np.empty(fragment.numel, np.float32)
        view.read(fragment.index, theta)
        yield _first_state(theta)


def _first_state(theta: Floats) -> project.FirstState:
    """theta: without subnormals from here on."""
    flush(theta)
    state = state_manifests(theta, np.zeros_like(theta)).digests
    return project.FirstState(state.theta, state.momentum)
