"""The verbs about this machine: its logs, keys, memberships, settings and services."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter, validators

from host.files.home import DEFAULT_INSTANCE, DaemonRole
from host.runtime.log_lines import Level
from shoal.common.choices import TAKE_PART, THIS_MACHINE, HomeHere, Instance, LogJson, say


def add_machine(app: App) -> None:
    """Adds these verbs to the command."""
    app.command(init, group=THIS_MACHINE)
    app.command(doctor, group=THIS_MACHINE)
    app.command(version, group=THIS_MACHINE)
    app.command(logs, group=TAKE_PART)
    app.command(run, group=TAKE_PART)
    app.command(leave, group=TAKE_PART)


def init(*, home: HomeHere) -> int:
    """Create what is missing here: home, key, and a settings file that explains itself."""
    from shoal.machine import config_command

    return say(config_command.begin(home))


def doctor(
    project: Annotated[
        str | None,
        Parameter(help="A join link, a signed project, or the name of one joined here."),
    ] = None,
    *,
    device: Annotated[str | None, Parameter(help="Try this one: cpu, cuda, cuda:1 ...")] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="Port to check; a syncer's by default.",
            validator=validators.Number(gte=1, lte=65535),
        ),
    ] = None,
    quick: Annotated[
        bool, Parameter(help="Skip network engine, swarm and training.", negative="")
    ] = False,
    json: Annotated[bool, Parameter(help="Print one JSON object.", negative="")] = False,
    home: HomeHere,
) -> int:
    """Check this machine and, before joining a project, whether it can take part.

    Exit code 0: it can. 1: something is in trouble; the line says what to do.
    """
    from shoal.doctor import command as examination

    return examination.run(home, project, device=device, port=port, is_quick=quick, as_json=json)


def run(
    project: Annotated[
        str | None,
        Parameter(
            help="Name of a project joined here, or how its id begins; the last one by default."
        ),
    ] = None,
    *,
    instance: Instance = DEFAULT_INSTANCE,
    log_json: LogJson = None,
    home: HomeHere,
) -> int:
    """Continue with what was joined here before: no link needed, same options."""
    from shoal.machine import run_commands

    return run_commands.run(home, project, instance=instance, log_json=log_json)


def leave(
    project: Annotated[
        str | None,
        Parameter(help="Name of a project joined here, or how its id begins."),
    ] = None,
    *,
    purge: Annotated[
        bool,
        Parameter(help="Also remove its text, tape and logs; never the key.", negative=""),
    ] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Leave a project: push what is done, stop, and forget that it was joined."""
    from shoal.machine import leave_command

    return leave_command.leave(home, project, instance=instance, is_purging=purge)


def version(
    *,
    json: Annotated[bool, Parameter(help="Print one JSON object.", negative="")] = False,
) -> int:
    """Print what is installed: Shoal, its protocol, the network engine, PyTorch."""
    from shoal.common import versions

    return say(versions.shown(as_json=json))


def logs(
    *,
    follow: Annotated[
        bool,
        Parameter(name=["--follow", "-f"], help="Keep printing new lines.", negative=""),
    ] = False,
    lines: Annotated[
        int,
        Parameter(
            name=["--lines", "-n"],
            help="How many of the newest lines.",
            validator=validators.Number(gte=0),
        ),
    ] = 50,
    level: Annotated[Level, Parameter(help="Skip less important lines.")] = "info",
    role: Annotated[DaemonRole | None, Parameter(help="Only daemons of this role.")] = None,
    instance: Annotated[str | None, Parameter(help="Only daemons with this name.")] = None,
    json: Annotated[
        bool | None,
        Parameter(
            help="Print JSON lines, or text; text on a terminal, JSON otherwise.",
            negative="--text",
        ),
    ] = None,
    home: HomeHere,
) -> int:
    """Print what the daemons of this machine wrote to their logs, also after they ended."""
    from shoal.machine import logs_command

    return logs_command.show(
        home,
        role=role,
        instance=instance,
        level=level,
        lines=lines,
        is_following=follow,
        is_json=json,
    )
