"""A home that hosts a project of real keys, with a log of a test's choice on its disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from host.files import keystore
from host.files.home import Home
from host.files.signed_project import OpenedProject, open_project, write_signed
from protocol.log.records import Body
from protocol.project import encode, project_id
from protocol.signing import seal
from simulator.stand_ins.tiny import tiny_project
from syncer_node.storage.store import Store
from tests.support.builders import Log


class Hosted(NamedTuple):
    """The home, the store of its syncer, the project, and the log in the store."""

    home: Home
    root: Path
    opened: OpenedProject
    log: Log


def hosted_log(place: Path, timed: Iterable[tuple[float, Body]]) -> Hosted:
    """timed: Unix seconds and body of each record."""
    keys = {name: keystore.load_or_create(place / f"{name}.key") for name in ("owner", "syncer")}
    tiny = tiny_project(keys["syncer"].key)
    genesis = structs.replace(tiny.genesis, owner=keys["owner"].key)
    content = encode(genesis)
    charter = structs.replace(tiny.charter, project=project_id(content))
    envelope = seal("charter", charter.project, encode(charter), keys["owner"])
    opened = open_project(content, envelope)
    home = Home(place / "home")
    home.project(opened.id)
    write_signed(home.project_file(opened.id), opened.stored())
    log = Log(tiny=replace(tiny, project=opened.id))
    for at_s, body in timed:
        log.add(body, at_s)
    root = home.syncer_store(opened.id)
    store = Store(root)
    store.voter.append(0, log.encoded)
    store.close()
    return Hosted(home, root, opened, log)
