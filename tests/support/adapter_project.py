"""A project that trains an adapter beside a tiny published model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from host.files.held_base import HeldBase
from node.trainer import base_model
from node.trainer.adapters.table import describe
from node.trainer.text.tokenizer_files import pin_tokenizer
from protocol.project import AdapterSpec, Genesis, MergeRules, ModelSpec
from tests.support.tiny_project import data_spec, tiny_genesis

ADAPTER = AdapterSpec(4, 8.0, 0.0, ("all-linear",), "both", "bf16")


def adapter_genesis(place: Path, folder: Path, **changes: object) -> Genesis:
    """On text in `place`, whose frozen base lies in `place / "cache"`.

    folder: the published model. changes: of the adapter.
    """
    wanted = msgspec.structs.replace(ADAPTER, **changes)
    plain, said = tiny_genesis(place), base_model.describe(folder)
    bare = ModelSpec(said.architecture, said.config, ())
    table = describe(bare, wanted, MergeRules())
    tokenizer = pin_tokenizer("base", folder, place / "cache")
    data = data_spec(plain.data.location, tokenizer="base", blocks=plain.data.blocks)
    genesis = msgspec.structs.replace(
        plain,
        model=msgspec.structs.replace(bare, tensors=table.tensors),
        data=data,
        tokenizer=tokenizer,
        adapter=msgspec.structs.replace(wanted, targets=table.targets, frozen=table.frozen),
    )
    genesis, held = base_model.freeze(folder, genesis, "folder:model")
    HeldBase(place / "cache", genesis).keep_all(memoryview(held))
    return genesis
