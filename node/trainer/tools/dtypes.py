"""In which number format an exported model holds each tensor. Light: it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from protocol.project import Genesis

Dtype = Literal["f32", "bf16", "f16"]

_STORED: Final[Mapping[str, Dtype]] = {"F32": "f32", "BF16": "bf16", "F16": "f16"}


def dtypes_of(genesis: Genesis, wanted: Dtype | None) -> dict[str, Dtype]:
    """The dtype of each tensor, by its name.

    wanted: of all of them; None: as the base model's files stored each, f32 without a base model.
    """
    adapter, base = genesis.adapter, genesis.base
    if adapter is None:
        names = [one.name for one in genesis.model.tensors]
    else:
        names = [one.name for one in adapter.frozen]
    if wanted is not None or base is None:
        return dict.fromkeys(names, wanted or "f32")
    return {name: _STORED[known.stored] for name, known in zip(names, base.tensors, strict=True)}


def in_words(dtypes: Mapping[str, Dtype]) -> str:
    """As somebody reads it: `bf16`, or `bf16 and f32`."""
    return " and ".join(sorted(set(dtypes.values())))
