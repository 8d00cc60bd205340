"""What of this machine a project may read."""

from __future__ import annotations

from node.host.options import NodeOptions
from protocol.errors import UserError
from protocol.project import Genesis


def data_location(options: NodeOptions, genesis: Genesis) -> str:
    """Where the training text lies here. UserError where that needs the owner's word.

    A project names paths, and paths of a stranger's choice are not read: either the owner says
    where the text is, or this very machine hosts the project and so chose the path itself.
    """
    data = genesis.data
    if options.data is not None:
        return options.data
    is_local = data.source in ("file", "folder", "parquet")
    if is_local and not options.home.project_file(options.link.project).is_file():
        raise UserError(
            f"This project trains on text that every host has itself: {data.source} "
            f"{data.location!r} at its owner's. Nothing of yours is read unless you name it: "
            "shoal join --data PATH 'LINK'"
        )
    return data.location
