"""The `project invite` verb: the join link of a syncer that runs here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from host.files.home import DEFAULT_INSTANCE, Home
from host.files.signed_project import read_signed
from protocol.errors import TransientError
from protocol.status import SyncerStatus
from shoal.common import daemons, durations
from shoal.common.choices import HomeHere, Instance, option
from shoal.common.exit_codes import ExitCode
from shoal.project import file_commands


def invite(
    project: Annotated[
        Path | None, option("Only this signed project; otherwise whatever the syncer here serves.")
    ] = None,
    *,
    wait: Annotated[
        str | None, option("How long to wait for a syncer: 30s, 5m; not at all by default.")
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Prints the link alone, so that scripts can use it. TransientError if there is none."""
    wanted = read_signed(file_commands.signed_path(project)).id.hex() if project else None
    link = _link(home, wanted, instance)
    if link is None and wait is not None:
        for _ in daemons.again(durations.seconds(wait)):
            link = _link(home, wanted, instance)
            if link is not None:
                break
    if link is None:
        raise TransientError(
            f"No syncer {instance} of {'this' if wanted else 'a'} project answers in {home.root}, "
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
