"""Where a base model lies: a folder of this machine, or a revision of a repository of the hub.

Only the project's owner and the host that makes the first weights ever ask; everybody else gets
weights from peers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.trainer import hub
from protocol.errors import UserError
from protocol.project import hub_source

HUB: Final = "hub:"
FOLDER: Final = "folder:"

WANTED_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""Of a repository: nothing that holds code, and no second copy of the weights."""


def find_base(source: str, folder: Path | None) -> Path:
    """The folder with the base model that a project names.

    source: as the genesis has it. folder: where this host has it, if somebody said so. UserError if
    it is nowhere, with what to do.
    """
    if folder is not None:
        if folder.is_dir():
            return folder
        raise UserError(
            f"There is no folder {folder} with the base model {source}. Put it back, or name"
            " another place: shoal syncer run --from FOLDER PROJECT"
        )
    if source.startswith(HUB):
        return fetch(source)
    raise UserError(
        f"This project starts from the base model {source}, which is a folder of its owner's. Start"
        " the first syncer on the owner's machine, or copy the folder here: shoal syncer run --from"
        " FOLDER PROJECT"
    )


def fetch(source: str) -> Path:
    """A revision of the hub, from this machine's cache where it is complete there.

    UserError if `source` is no such name or the files are neither here nor there.
    """
    named = hub_source(source)
    if named is None:
        raise UserError(
            f"{source!r} is not a model of the hub. Write hub:OWNER/NAME@REVISION; the revision is"
            " a commit, a tag or a branch."
        )
    name, revision = named
    try:
        return hub.snapshot(name, WANTED_FILES, revision)
    except UserError as error:
        raise UserError(
            f"{source} cannot be fetched ({error}). Check the name, the network and your access"
            " (`hf auth login`), or fetch it elsewhere and name its folder with --from."
        ) from error
