"""Names that this machine knows, for a shell to complete: instances, projects, learners, voters.

Asked while somebody waits for the Tab key, so all is quick and quiet: what does not answer at
once has no names. Names of strangers are told without anything that could move a cursor.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from host.files.home import DEFAULT_INSTANCE, HOME_VARIABLE, Daemon, Home
from protocol.errors import ShoalError
from protocol.log.accounts import printable
from protocol.status import DaemonStatus, NodeStatus, SyncerStatus
from shoal.common import daemons

ANSWER_S: Final = 1.0
DAEMONS_ASKED_MAX: Final = 4
NAMES_MAX: Final = 200

Names = dict[str, str]
"""What to type, and what it is."""


def home_of(words: Iterable[str]) -> Home:
    """The home that a command line names, or that of the environment."""
    given = list(words)
    for at, word in enumerate(given):
        if word == "--home" and at + 1 < len(given):
            return Home(Path(given[at + 1]).expanduser())
        if word.startswith("--home="):
            return Home(Path(word.partition("=")[2]).expanduser())
    told = os.environ.get(HOME_VARIABLE)
    return Home(Path(told) if told else None)


def here() -> Home:
    """That of the command line which is completed."""
    return home_of(sys.argv[1:])


def instances(home: Home) -> Names:
    """Daemons of this home: those that run, and learners that joined something."""
    found = {daemon.instance: f"{daemon.role}, running" for daemon in home.daemons()}
    for instance, name in _joined(home):
        found.setdefault(instance, f"learner of {name}")
    return _bounded(found)


def projects(home: Home) -> Names:
    """Projects that were joined or hosted here, by name."""
    found = {name: "joined here" for _, name in _joined(home)}
    for path in home.hosted_projects(DEFAULT_INSTANCE):
        from host.files.signed_project import read_signed

        with contextlib.suppress(ShoalError, OSError):
            found.setdefault(printable(read_signed(path).genesis.name), "hosted here")
    return _bounded(found)


def learners(home: Home) -> Names:
    """Learners that the syncers of this home know: names that one key alone has, else keys."""
    rows: list[tuple[str, str, str]] = []
    for status in _syncers(home):
        rows += [(row.key, row.name, "learner") for row in status.peers]
        rows += [(row.key, row.name, "learner") for row in status.contributors]
    return _told_apart(rows)


def voters(home: Home) -> Names:
    """The same of voters; those without a name by how their keys begin."""
    seats = [status.seat for status in _syncers(home) if status.seat is not None]
    return _told_apart([(row.key, row.name, row.role) for seat in seats for row in seat.voters])


def _told_apart(rows: Iterable[tuple[str, str, str]]) -> Names:
    """rows: key, name and role of each."""
    keys: dict[str, dict[str, str]] = {}
    for key, name, role in rows:
        keys.setdefault(printable(name), {})[key] = role
    found: Names = {}
    for name, those in keys.items():
        if name and len(those) == 1:
            ((key, role),) = those.items()
            found[name] = f"{role} {key[:8]}"
        else:
            found |= {key[:16]: f"{role} {name}".strip() for key, role in sorted(those.items())}
    return _bounded(found)


def _joined(home: Home) -> list[tuple[str, str]]:
    """Instance and project's name, the newest first."""
    from host.files.memberships import memberships

    try:
        return [(one.joined.instance, printable(one.link.name)) for one in memberships(home)]
    except ShoalError:
        return []  # A file that cannot be read is told by the verb itself.


def _syncers(home: Home) -> list[SyncerStatus]:
    asked: list[Daemon] = daemons.fitting(home, None, None)[:DAEMONS_ASKED_MAX]
    found: list[SyncerStatus] = []
    for daemon in asked:
        with contextlib.suppress(ShoalError):
            status: DaemonStatus = daemons.ask_status(daemon, timeout_s=ANSWER_S)
            if isinstance(status, SyncerStatus):
                found.append(status)
            elif isinstance(status, NodeStatus) and status.swarm_seen is not None:
                found += [status.swarm_seen.status] if status.swarm_seen.status else []
    return found


def _bounded(found: Names) -> Names:
    return dict([(name, about) for name, about in found.items() if name][:NAMES_MAX])
