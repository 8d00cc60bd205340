"""The `leave` verb: hand in, stop, forget the project, and with `--purge` remove what it left."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Annotated

from host.control import client
from host.files import keystore, memberships
from host.files.home import DEFAULT_INSTANCE, TAPES, Daemon, Home
from host.files.memberships import Membership
from host.files.shard_files import learners_folder, shards_root
from protocol import limits, wire
from protocol.errors import RemoteError, TransientError, UserError
from protocol.project import Genesis
from protocol.status import NodeStatus
from shoal.common import daemons
from shoal.common.choices import HomeHere, Instance, option, switch
from shoal.common.exit_codes import ExitCode
from shoal.machine import service_command

END_S = 30.0
HAND_IN_S = 90.0
"""`finish` promises a minute; stopping takes seconds more."""


def leave(
    project: Annotated[
        str | None, option("Name of a project joined here, or how its id begins.", known="projects")
    ] = None,
    *,
    purge: Annotated[bool, switch("Also remove its text, tape and logs; never the key.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Leaves a project for good; NOT_REACHABLE if its learner would not stop.

    UserError where nothing was joined, or where several projects were and none is named.
    """
    found = memberships.named(memberships.memberships(home, instance=instance), project)
    if len({one.link.project for one in found}) > 1:
        known = ", ".join(one.called for one in found)
        raise UserError(f"Several projects have been joined here. Name one of them: {known}.")
    membership = found[0]
    running = _running(home, membership)
    if running is not None and not (_hand_in(running) and _is_over(home, instance)):
        raise TransientError(
            f"learner {instance} was asked to finish and still runs after {HAND_IN_S:g} s; nothing "
            f"was forgotten. Stop it with `shoal stop --instance {instance}`, then leave again."
        )
    memberships.forget(membership)
    print(f"learner {instance} has left {membership.called}; `shoal run` does not join it again")
    for unit in service_command.installed():
        if unit.name == f"shoal-learner-{instance}.service":
            print(
                f"{unit.name} would start it for nothing: "
                f"shoal service uninstall --instance {instance}"
            )
    if purge:
        print(_purge(home, membership))
    else:
        print("its data stays in place; `shoal leave --purge` would have removed it")
    return ExitCode.DONE


def _running(home: Home, membership: Membership) -> Daemon | None:
    """The daemon that works for this membership now. Raises TransientError where that is unclear.

    A learner of the same name may work for another project, which is not to be stopped.
    """
    for daemon in home.daemons():
        if daemon.role == "learner" and daemon.instance == membership.joined.instance:
            project = _project_of(daemon)
            return daemon if project == membership.link.project.hex() else None
    return None


def _project_of(daemon: Daemon) -> str | None:
    """The id of the project that a learner works for; None if it is dead. TransientError where it
    does not say."""
    try:
        status = daemons.ask_status(daemon)
    except TransientError:
        if daemons.is_dead(daemon):
            return None
        with contextlib.suppress(UserError):  # It is no longer on its way: the next try will do.
            return str(client.call(daemon.socket, client.ENTERING)["project"])
        raise
    assert isinstance(status, NodeStatus)
    return status.project.id


def _hand_in(daemon: Daemon) -> bool:
    """Asks the learner to finish; whether it was gone in time."""
    client.call(daemon.socket, "finish")
    print(f"learner {daemon.instance} pushes what it has and then stops", flush=True)
    return daemons.wait_until_gone(daemon, timeout_s=HAND_IN_S)


def _is_over(home: Home, instance: str) -> bool:
    """Whether the process has ended too: it says goodbye to others after its socket is gone."""
    key = home.identity("learner", instance)
    for _ in daemons.again(END_S):
        try:
            with keystore.lock(key, remedy=""):
                return True
        except UserError:
            continue
    return False


def _purge(home: Home, membership: Membership) -> str:
    """Removes what only this learner in this project needed; a line that says what stays.

    Keys stay, for they are who this machine is, and so does whatever other daemons here use.
    """
    project, instance = membership.link.project, membership.joined.instance
    places = [
        home.root / TAPES / project.hex() / f"learner-{instance}",
        home.suspended(instance),
        home.begun_weights(project, instance),
        home.logs() / f"trainer-{instance}.log",
        *sorted(home.logs().glob(f"learner-{instance}.*")),
        *_shards(home, project, instance),
    ]
    stays = [f"the key {home.identity('learner', instance)}"]
    if memberships.others(home, project) or home.voter_stores(project):
        stays.append("what other daemons here use of this project")
    else:
        places.append(home.root / "projects" / project.hex())
    if memberships.memberships(home) or any((home.root / "projects").glob("*/syncer-*")):
        stays.append("the tokenised text, which other projects here may use")
    else:
        places.append(home.root / "cache")
    freed = sum(_remove(place) for place in places)
    with contextlib.suppress(OSError):  # Others of this home may have tapes of it.
        (home.root / TAPES / project.hex()).rmdir()
    return f"removed {freed / 1e6:,.1f} MB; kept: {', '.join(stays)}"


def _shards(home: Home, project: bytes, instance: str) -> list[Path]:
    """The learner's folder of published data, if the project publishes any."""
    copy = home.project(project) / "genesis"
    if not copy.is_file():
        return []
    try:
        genesis = wire.decode(copy.read_bytes(), Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
    except RemoteError:
        return []  # Damaged: then nothing says where they lie.
    if genesis.published is None:
        return []
    root = shards_root(home.data_cache(), genesis)
    return [root / learners_folder(instance)]


def _remove(place: Path) -> int:
    """Removes a file or a directory; how many bytes it had."""
    if place.is_file():
        size = place.stat().st_size
        place.unlink()
        return size
    size = sum(
        os.lstat(Path(folder) / name).st_size
        for folder, _, names in os.walk(place)
        for name in names
    )
    if place.is_dir():
        shutil.rmtree(place)
    return size
