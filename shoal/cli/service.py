"""The verbs of `shoal service`: daemons that systemd looks after."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from host.files.home import DEFAULT_INSTANCE, DaemonRole
from shoal.common.choices import THIS_MACHINE, CommandCheck, HomeHere, Instance, switch

service_app = App(
    name="service", help="Have systemd start a daemon and keep it running.", group=THIS_MACHINE
)

System = Annotated[bool, switch("A hardened system service; a user service by default.")]


@service_app.command
def install(
    work: Annotated[
        str | None,
        Parameter(
            help="For a learner a join link or a joined project, the last one otherwise; for a "
            "syncer or witness its signed project."
        ),
    ] = None,
    *options: Annotated[
        str,
        Parameter(
            help="After `--`: options of the daemon, such as -- --port 4200.",
            allow_leading_hyphen=True,
        ),
    ],
    role: Annotated[DaemonRole, Parameter(help="Which daemon.")] = "learner",
    instance: Instance = DEFAULT_INSTANCE,
    system: System = False,
    run_as: Annotated[
        str | None,
        Parameter(help="With --system: run as this user; by default systemd makes one up."),
    ] = None,
    print_unit: Annotated[
        bool, switch("Print the unit and change nothing.", name="--print")
    ] = False,
    start: Annotated[
        bool, Parameter(help="Start it at once (--no-start: at the next boot or login).")
    ] = True,
    home: HomeHere,
    check: CommandCheck,
) -> int:
    """Write a systemd unit for a daemon, enable and start it."""
    from shoal.machine import service_command

    return service_command.install(
        home,
        work,
        options,
        role=role,
        instance=instance,
        is_system=system,
        run_as=run_as,
        is_only_printing=print_unit,
        is_starting=start,
        check=check,
    )


@service_app.command
def status(
    *,
    json: Annotated[bool, switch("Print one JSON list.")] = False,
) -> int:
    """List the installed Shoal services and their state."""
    from shoal.machine import service_command

    return service_command.status(as_json=json)


@service_app.command
def uninstall(
    *,
    role: Annotated[DaemonRole | None, Parameter(help="Only daemons of this role.")] = None,
    instance: Annotated[str | None, Parameter(help="Only daemons with this name.")] = None,
    system: Annotated[
        bool | None, Parameter(help="Only system services (--no-system: only user services).")
    ] = None,
) -> int:
    """Stop services of Shoal and remove their units; keys and data stay."""
    from shoal.machine import service_command

    return service_command.uninstall(role=role, instance=instance, is_system=system)
