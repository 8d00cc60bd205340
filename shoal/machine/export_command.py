"""The `export` verb: a checkpoint of the syncer as a model folder that the usual tools load."""

from __future__ import annotations

from pathlib import Path

from host.files.home import Home
from protocol.errors import UserError
from shoal.project import file_commands

WHICH = ("best", "latest")


def export(path: Path | None, home: Home, *, to: Path, checkpoint: str, instance: str) -> list[str]:
    """Writes the model to the directory `to` and returns what to say.

    UserError if the directory is in use, or the project or its checkpoint cannot be found.
    """
    if checkpoint not in WHICH and not checkpoint.isdecimal():
        raise UserError(f"--checkpoint is best, latest or a log index, not {checkpoint!r}.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is in use. Name a new or an empty directory with --to.")
    project = file_commands.to_export(path, home, instance=instance)

    from syncer_node.storage.store import find_checkpoint, read_checkpoint

    source = find_checkpoint(home.syncer_store(project.id, instance), checkpoint)
    fragments = read_checkpoint(source).theta

    from node.trainer.tools.export import export_model

    export_model(project.genesis, fragments, to)
    return [
        f"wrote the model of {project.genesis.name} ({source.name}) to {to}",
        f"load it with transformers.AutoModelForCausalLM.from_pretrained({str(to)!r})",
    ]
