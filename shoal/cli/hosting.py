"""The verbs of `shoal syncer` and `shoal witness`: the hosts whose votes a project needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from host.files.home import DEFAULT_INSTANCE
from host.options import TAPE_MIB_MAX, bulk_at
from shoal.common.choices import (
    HOST,
    AtLeastOne,
    BulkPort,
    HomeHere,
    Instance,
    Key,
    Listen,
    LogJson,
    MonitorPlace,
    Port,
    ProjectPath,
    TapeAt,
    TapeMib,
    monitor_at,
    say,
    switch,
    tape_options,
)

syncer_app = App(name="syncer", help="Host a project: merge what learners push.", group=HOST)
witness_app = App(
    name="witness", help="Vote for a project: keep its log, decide who leads.", group=HOST
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VoterNetwork:
    """How a voter is reached, and finds the others."""

    bulk_port: BulkPort = None
    announce: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--announce", "--host-address"],
            help="Address to give to others if this machine cannot know it, such as "
            "/dns4/example.org/tcp/4100; repeatable.",
            negative="",
        ),
    ] = ()
    join: Annotated[
        str | None, Parameter(help="The project's join link, if other hosts already run.")
    ] = None
    bootstrap: Annotated[
        tuple[str, ...],
        Parameter(help="Full address of a host already in the swarm; repeatable.", negative=""),
    ] = ()
    listen: Listen = "0.0.0.0"

    def choices(self) -> dict[str, Any]:
        """As a voter's daemon takes them."""
        return {
            "bulk": bulk_at(self.bulk_port or "any"),
            "announce": self.announce,
            "link": self.join,
            "bootstrap": self.bootstrap,
            "listen_host": self.listen,
        }


ANYWHERE = VoterNetwork()


@syncer_app.command(name="run")
def run_syncer(
    project: ProjectPath,
    *,
    port: Port = 4100,
    network: VoterNetwork = ANYWHERE,
    instance: Instance = DEFAULT_INSTANCE,
    threads: Annotated[
        int | None,
        Parameter(help="CPU threads that merge; every core otherwise.", validator=AtLeastOne),
    ] = None,
    exit_when_done: Annotated[bool, switch("End when the token budget is reached.")] = False,
    tape: TapeAt = "on",
    tape_mib_max: TapeMib = TAPE_MIB_MAX,
    monitor: MonitorPlace = None,
    log_json: LogJson = None,
    home: HomeHere,
) -> int:
    """Run a syncer of a project, until Ctrl-C or `shoal stop`; the first one begins the swarm."""
    from shoal.machine import run_commands

    return run_commands.run_voter(
        "syncer",
        project,
        home,
        instance=instance,
        port=port,
        **network.choices(),
        threads=threads,
        exit_when_done=exit_when_done,
        tape=tape_options(tape, tape_mib_max),
        monitor=monitor_at(monitor),
        log_json=log_json,
    )


@syncer_app.command
def key(*, instance: Instance = DEFAULT_INSTANCE, home: HomeHere) -> int:
    """Print the key of this machine's syncer, for [[voters]] in a project file."""
    from host.files import keystore

    identity = keystore.load_or_create(home.identity("syncer", instance))
    return say([identity.key.hex()])


@syncer_app.command
def status(
    *,
    json: Annotated[bool, switch("Print one JSON list; with --watch one per line.")] = False,
    watch: Annotated[bool, switch("Look again every second.")] = False,
    instance: Annotated[str | None, Parameter(help="Only the syncer with this name.")] = None,
    home: HomeHere,
) -> int:
    """Show the status of the syncers on this machine."""
    from shoal.machine import status_command

    return status_command.status(
        home, instance=instance, as_json=json, is_watching=watch, role="syncer"
    )


@syncer_app.command
def drain(*, instance: Instance = DEFAULT_INSTANCE, home: HomeHere) -> int:
    """Hand the lead to a standby before taking this host down; wait until another one leads.

    Exit code 0: another syncer leads. 2: no standby is up to date. 3: not within a minute.
    """
    from shoal.machine import run_commands

    return run_commands.drain(home, instance=instance)


@syncer_app.command
def snapshot(
    *,
    list_kept: Annotated[
        bool, switch("Take none; check and list those on this disk.", name="--list")
    ] = False,
    json: Annotated[bool, switch("With --list: as one JSON list.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Take a consistent snapshot of the whole swarm now, and wait until it is kept.

    Training does not stop for it. Every learner keeps its own part on its own disk; one that dies
    meanwhile is named and left out. `shoal project restore-snapshot` goes back to one.
    """
    from shoal.project import snapshot_command

    if list_kept or json:
        return say(snapshot_command.show(home, instance=instance, as_json=json))
    return snapshot_command.take(home, instance=instance)


@syncer_app.command
def ledger(
    *,
    json: Annotated[bool, switch("Print it as JSON.")] = False,
    csv: Annotated[Path | None, Parameter(help="Write it to this file as CSV.")] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Show who contributed how much, and what did not count and why."""
    from shoal.machine import ledger_command

    return ledger_command.ledger(home, instance=instance, as_json=json, csv_path=csv)


@syncer_app.command(name="readmit")
def readmit_syncer(key: Key, project: ProjectPath, *, home: HomeHere) -> int:
    """The same as `shoal project readmit`."""
    from shoal.project import charter_commands

    return say(charter_commands.readmit(project, home, key=key))


@witness_app.command(name="run")
def run_witness(
    project: ProjectPath,
    *,
    port: Port = 4101,
    network: VoterNetwork = ANYWHERE,
    instance: Instance = DEFAULT_INSTANCE,
    monitor: MonitorPlace = None,
    log_json: LogJson = None,
    home: HomeHere,
) -> int:
    """Run a witness of a project, until Ctrl-C or `shoal stop`: it votes and keeps the log."""
    from shoal.machine import run_commands

    return run_commands.run_voter(
        "witness",
        project,
        home,
        instance=instance,
        port=port,
        **network.choices(),
        monitor=monitor_at(monitor),
        log_json=log_json,
    )


@witness_app.command(name="key")
def witness_key(*, instance: Instance = DEFAULT_INSTANCE, home: HomeHere) -> int:
    """Print the key of this machine's witness, for `shoal project add-witness`."""
    from host.files import keystore

    identity = keystore.load_or_create(home.identity("witness", instance))
    return say([identity.key.hex()])
