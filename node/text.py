"""What the owner of this machine decided about training here: the text, the device, the share."""

from __future__ import annotations

import os

from node.host.keystore import Identity
from node.host.options import NodeOptions
from node.trainer_port import TrainerSettings
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


def trainer_settings(
    options: NodeOptions, identity: Identity, genesis_bytes: bytes, genesis: Genesis
) -> TrainerSettings:
    """How trainers are started here. UserError as in `data_location`."""
    return TrainerSettings(
        genesis=genesis_bytes,
        data_cache=options.home.data_cache(),
        log_path=options.home.logs() / f"trainer-{options.instance}.log",
        data_location=data_location(options, genesis),
        threads=options.threads or max(1, (os.cpu_count() or 2) - 1),
        duty_frac=options.duty_frac,
        device=options.device,
        salt=int.from_bytes(identity.key[:6], "big"),
    )
