"""A signed project whose owner's key is in a home, as the verbs of owners find it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from host.files import keystore
from host.files.home import Home
from host.files.signed_project import seal_project, write_signed
from protocol.project import encode, project_id
from simulator.stand_ins.tiny import tiny_project


def owned_project(home: Home, folder: Path, **changes: Any) -> Path:
    """The signed file of a project whose only voter is this home's syncer.

    changes: to its charter.
    """
    owner = keystore.load_or_create(home.identity("owner"))
    here = keystore.load_or_create(home.identity("syncer"))
    tiny = tiny_project(here.key)
    genesis = msgspec.structs.replace(tiny.genesis, owner=owner.key)
    project = project_id(encode(genesis))
    charter = msgspec.structs.replace(tiny.charter, project=project, **changes)
    path = folder / "tiny.shoal"
    write_signed(path, seal_project(genesis, charter, owner))
    (folder / "tiny.toml").write_text("# a person's file\n")
    os.utime(folder / "tiny.toml", (1, 1))
    return path
