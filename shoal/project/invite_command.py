"""The `project invite` verb: the join link of a syncer that runs here."""

from __future__ import annotations

import sys
from pathlib import Path

from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.errors import TransientError
from protocol.status import SyncerStatus
from shoal.common import daemons, durations
from shoal.common.exit_codes import ExitCode
from shoal.project import file_commands


def invite(home: Home, path: Path | None, *, instance: str, wait: str | None) -> int:
    """Prints the link alone, so that scripts can use it.

    wait: how long to wait for a syncer that is still starting. TransientError if there is none.
    """
    project = read_signed(file_commands.signed_path(path)).id.hex() if path is not None else None
    link = _link(home, project, instance)
    if link is None and wait is not None:
        for _ in daemons.again(durations.seconds(wait)):
            link = _link(home, project, instance)
            if link is not None:
                break
    if link is None:
        raise TransientError(
            f"No syncer {instance} of {'this' if project else 'a'} project answers in {home.root}, "
            "or it has no address yet. Start one with `shoal syncer run PROJECT`, or name another "
            "place with --home."
        )
    print(link)
    if sys.stdout.isatty():
        print("\nothers join with: shoal join 'LINK'", file=sys.stderr)
    return ExitCode.DONE


def _link(home: Home, project: str | None, instance: str) -> str | None:
    """The link that a fitting syncer of this home gives now."""
    fitting = [one for one in home.daemons() if (one.role, one.instance) == ("syncer", instance)]
    statuses, _ = daemons.ask_all(fitting)
    for one in statuses:
        if isinstance(one, SyncerStatus) and project in (None, one.project.id):
            return one.join_link or None
    return None
