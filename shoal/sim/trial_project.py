"""The project on which whole runs with a real model are tried out: the built-in one, or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from host.files.home import Home
from protocol.errors import UserError
from protocol.project import Charter, Genesis, encode, project_id
from shoal.project import project_file
from shoal.project.project_file import ProjectFile
from shoal.project.template import Value, create_text
from simulator.compare.setting import Setting

NAME = "comparison"
CHANGES: Mapping[str, Value] = {
    "model.config.hidden_size": 64,
    "model.config.intermediate_size": 168,
    "model.config.num_hidden_layers": 2,
    "data.sequence_tokens": 64,
    "limits.heldout_sequences": 1024,
}
"""What a comparison changes in the project that `shoal project create` writes, to be affordable."""

SHORT: Sequence[str] = (
    "training.final_learning_rate_frac=0.1",
    "outer.learning_rate=0.4",
    "outer.momentum=0.7",
    "rounds.local_steps=8",
)
"""Of runs of so few local steps that merges every 24 would be too few to show anything."""

NEVER = 1_000_000
"""Evaluations within a run would only cost time."""


def read(path: Path | None, changes: Sequence[str]) -> ProjectFile:
    """The project to compare on. UserError if it cannot be used."""
    if path is None:
        text = create_text(NAME, changes={**CHANGES, **_changes(changes)})
        return project_file.parse(text, Path(f"{NAME}.toml"))
    if changes:
        raise UserError("--set is for the built-in project; with --project, edit the file.")
    file = project_file.read_file(path)
    if file.base is not None:
        raise UserError(
            f"{path} starts from a base model, and a comparison draws its first weights. Name a"
            " project without `from`."
        )
    if file.mixture is not None:
        raise UserError(
            f"{path} trains on a mixture, and what is tried out here reads one text. Name a project"
            " with one source."
        )
    if file.data.source == "chats":
        raise UserError(
            f"{path} trains on chats, and what is tried out here learns all of its text. Name a"
            " project with another source."
        )
    return file


def sign(
    file: ProjectFile, setting: Setting, home: Home, *, learners: int | None = None
) -> tuple[Genesis, Charter]:
    """The project of one seed. learners: who share its token budget; all by default.

    UserError if its model is no decoder.
    """
    file = msgspec.structs.replace(file, seed=setting.seed)
    genesis = project_file.make_genesis(file, owner=bytes(32), data_cache=home.data_cache())
    if not genesis.writes:
        raise UserError(
            f"{file.path.name} trains no decoder with Shoal's own loop, and only such projects can"
            " be tried out in virtual time. Name one, or leave --project out."
        )
    budget = (
        (learners or setting.learners)
        * setting.steps
        * file.inner.batch_sequences
        * file.data.sequence_tokens
    )
    charter = project_file.make_charter(
        file, project=project_id(encode(genesis)), this_host=bytes([1]) * 32, former=None
    )
    limits = msgspec.structs.replace(charter.limits, tokens=budget, evaluate_every=NEVER)
    return genesis, msgspec.structs.replace(charter, limits=limits)


def _changes(settings: Sequence[str]) -> dict[str, Value]:
    """`key=value` as the project file has them. UserError for what it does not have."""
    from shoal.project.charters import read_setting
    from shoal.project.template import SECTIONS

    known = {f"{section.name}.{line.key}": line for section in SECTIONS for line in section.lines}
    found: dict[str, Value] = {}
    for setting in settings:
        key, is_given, text = setting.partition("=")
        if not is_given or key not in known:
            raise UserError(
                f"--set {setting}: a setting is written as in --set rounds.local_steps=8, with a"
                " key of the project file; `shoal project create` explains them all."
            )
        found[key] = cast(Value, read_setting(text))
    return found
