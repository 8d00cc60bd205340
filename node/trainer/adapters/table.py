"""What an adapter consists of, without allocating anything: its tensors, and the frozen ones.

The adapter is `peft`'s LoRA, injected into a model of `transformers`; names and shapes are theirs.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import transformers
from torch import nn

from node.trainer.model import outline
from protocol import limits, project
from protocol.errors import UserError

ALL_LINEAR: Final = "all-linear"
NAME: Final = "default"
"""As `peft` calls an adapter that nobody named; part of the tensors' names."""

NAME_PARTS_MAX: Final = 3
"""Of a layer's name, to tell its kind from another one's."""

_TARGET: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_FIRST: Final = f".lora_A.{NAME}.weight"
_SECOND: Final = f".lora_B.{NAME}.weight"


class Table(NamedTuple):
    """What the project says of an adapter's tensors."""

    tensors: tuple[project.TensorSpec, ...]
    """Those that are trained."""
    frozen: tuple[project.FrozenTensor, ...]
    """Of the base model, in its own order."""
    targets: tuple[str, ...]
    """The layers, named one by one."""


def describe(
    bare: project.ModelSpec, adapter: project.AdapterSpec, rules: project.MergeRules
) -> Table:
    """The tables of an adapter on a model. UserError if the model has no such layers, or they are
    of a kind that no adapter fits.

    bare: without a tensor table.
    """
    network = outline(bare)
    frozen = tuple(
        project.FrozenTensor(name, tuple(one.shape)) for name, one in network.named_parameters()
    )
    targets = inject(network, adapter)
    tensors = tuple(
        project.TensorSpec(name, tuple(one.shape), rules.matrices)
        for name, one in network.named_parameters()
        if is_trained(name, adapter)
    )
    if len(tensors) > limits.TENSORS_MAX:
        raise UserError(
            f"The adapter has more than {limits.TENSORS_MAX} tensors; name fewer targets."
        )
    return Table(tensors, frozen, targets)


def check_table(genesis: project.Genesis) -> None:
    """UserError unless the configuration gives just the tensors that the project names."""
    adapter = genesis.adapter
    assert adapter is not None, "only an adapter has such a table"
    bare = msgspec.structs.replace(genesis.model, tensors=())
    found = describe(bare, adapter, project.MergeRules())
    ours = [(one.name, one.shape) for one in found.tensors]
    theirs = [(one.name, one.shape) for one in genesis.model.tensors]
    if ours != theirs or found.frozen != adapter.frozen:
        raise UserError(
            "The tensor table of the project's adapter is not the one that this machine's versions"
            f" of transformers ({transformers.__version__}) and peft ({_peft().__version__}) build."
            " Install the versions that the project's owner used."
        )


def inject(network: transformers.PreTrainedModel, adapter: project.AdapterSpec) -> tuple[str, ...]:
    """Puts the adapter into the model, in place; the names of its layers.

    All else is frozen. UserError if the model has no such layers.
    """
    peft, config = _peft(), lora_config(adapter)
    try:
        with _quiet():
            peft.inject_adapter_in_model(config, network, NAME, low_cpu_mem_usage=True)
    except (ValueError, TypeError, NotImplementedError) as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(
            f"No adapter fits this model with targets {', '.join(adapter.targets)} ({words})."
            f" Correct targets under [model.adapter]; {ALL_LINEAR} fits most models."
        ) from error
    _require_plain(network)
    for name, one in network.named_parameters():
        one.requires_grad_(is_trained(name, adapter))
    return _kinds(network) if ALL_LINEAR in adapter.targets else tuple(sorted(set(adapter.targets)))


def lora_config(adapter: project.AdapterSpec, **more: object) -> Any:
    """The adapter as `peft` describes it. UserError for a target that is no name."""
    named = list(adapter.targets)
    wrong = [one for one in named if _TARGET.fullmatch(one) is None and one != ALL_LINEAR]
    if wrong:
        raise UserError(
            f"{wrong[0]!r} is no layer's name. Name targets as the model does, q_proj, or"
            f" {ALL_LINEAR}."
        )
    alpha = adapter.alpha
    return _peft().LoraConfig(
        r=adapter.rank,
        lora_alpha=int(alpha) if alpha.is_integer() else alpha,
        lora_dropout=adapter.dropout,
        target_modules=ALL_LINEAR if ALL_LINEAR in named else named,
        bias="none",
        task_type="CAUSAL_LM",
        **more,
    )


def _kinds(network: nn.Module) -> tuple[str, ...]:
    """The shortest last parts of names that mean just the layers that have an adapter."""
    names = [name for name, _ in network.named_modules()]
    layers = {name.removesuffix(".lora_A") for name in names if name.endswith(".lora_A")}
    for depth in range(1, NAME_PARTS_MAX + 1):
        kinds = {".".join(one.split(".")[-depth:]) for one in layers}
        meant = {one for one in names if any(f".{one}".endswith(f".{kind}") for kind in kinds)}
        if meant == layers and len(kinds) <= limits.TARGETS_MAX:
            return tuple(sorted(kinds))
    raise UserError(
        f"{ALL_LINEAR} cannot be said by names in this model. Name some of its layers in targets"
        " under [model.adapter]."
    )


def is_trained(name: str, adapter: project.AdapterSpec) -> bool:
    """Whether the tensor with this name is one that the swarm trains."""
    return name.endswith(_SECOND) or (adapter.trains == "both" and name.endswith(_FIRST))


def is_first(name: str) -> bool:
    """Whether this is the first matrix of a layer, A."""
    return name.endswith(_FIRST)


def base_name(name: str) -> str | None:
    """What the base model calls a tensor of the injected one; None for the adapter's own."""
    if ".lora_" in name:
        return None
    return name.replace(".base_layer.", ".")


def _require_plain(network: nn.Module) -> None:
    """UserError if the adapter put something else than two matrices beside a layer of its own."""
    named = list(network.named_parameters(remove_duplicate=False))
    times = Counter(id(one) for _, one in named)
    for name, one in named:
        if base_name(name) is None and not (name.endswith((_FIRST, _SECOND)) and one.dim() == 2):
            layer = name.partition(".lora_")[0]
            raise UserError(
                f"The layer {layer} is not a linear one, and only those can have an adapter here."
                " Leave it out of targets under [model.adapter]."
            )
    for name, one in named:
        if ".base_layer." in name and times[id(one)] > 1:
            raise UserError(
                f"{base_name(name)} is also another table of the model, which an adapter would"
                " change with it. Leave it out of targets under [model.adapter]."
            )


def _peft() -> Any:
    """UserError if peft is not installed."""
    try:
        import peft
    except ImportError as error:
        raise UserError(
            f"This project trains an adapter, which needs peft ({error}). Install it: pip install"
            " 'shoal-train[train]'"
        ) from error
    return peft


@contextmanager
def _quiet() -> Iterator[None]:
    """`peft` warns of what it corrects by itself, and of tied tables, which are refused here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings")
        yield
