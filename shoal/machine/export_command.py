"""The `export` verb: a checkpoint of the syncer as a model folder that the usual tools load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from host.files.home import DEFAULT_INSTANCE
from protocol.errors import UserError
from shoal.common.choices import HomeHere, Instance, option
from shoal.project import file_commands

WHICH = ("best", "latest")


def export(
    project: Annotated[
        Path | None, option("A signed project; not needed where the syncer has served only one.")
    ] = None,
    *,
    to: Annotated[Path, option("Directory for the model; must not hold one yet.")],
    checkpoint: Annotated[str, option("best, latest, or the log index of a checkpoint.")] = "best",
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> list[str]:
    """Writes the model to the directory `to` and returns what to say.

    UserError if the directory is in use, or the project or its checkpoint cannot be found.
    """
    if checkpoint not in WHICH and not checkpoint.isdecimal():
        raise UserError(f"--checkpoint is best, latest or a log index, not {checkpoint!r}.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is in use. Name a new or an empty directory with --to.")
    opened = file_commands.to_export(project, home, instance=instance)

    from syncer_node.storage.store import find_checkpoint, read_checkpoint

    source = find_checkpoint(home.syncer_store(opened.id, instance), checkpoint)
    fragments = read_checkpoint(source).theta

    from node.trainer.tools.export import export_model

    export_model(opened.genesis, fragments, to)
    return [
        f"wrote the model of {opened.genesis.name} ({source.name}) to {to}",
        f"load it with transformers.AutoModelForCausalLM.from_pretrained({str(to)!r})",
    ]
