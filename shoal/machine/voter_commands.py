"""The verbs of `shoal syncer` and `shoal witness`: the hosts whose votes a project needs."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from host.control import client
from host.files import keystore
from host.files.home import DEFAULT_INSTANCE, Daemon, Home, VoterRole, checked_instance
from host.join_link import parse_link
from host.options import TAPE_MIB_MAX, bulk_at
from protocol.errors import TransientError, UserError
from protocol.ids import short
from protocol.status import SyncerStatus
from shoal.common import choices, daemons, failures, settings_file
from shoal.common.exit_codes import ExitCode
from shoal.common.toml_tables import shown
from shoal.machine import track_command
from shoal.machine.trackers import Kind
from shoal.page.beside import beside, page_at
from shoal.project import file_commands
from shoal.project.charters import KEY_DIGITS_MIN

DRAIN_S = 60.0
"""The rounds in flight end within their patience, and a handover takes a second."""

syncer_app, witness_app = choices.area("syncer"), choices.area("witness")
syncer_app.command(
    "shoal.machine.status_command:of_syncers",
    name="status",
    help="Show the status of the syncers on this machine.",
)
syncer_app.command(
    "shoal.project.snapshot_command:snapshot",
    help="""Take a consistent snapshot of the whole swarm now, and wait until it is kept.

    Training does not stop for it. Every learner keeps its own part on its own disk; one that dies
    meanwhile is named and left out. `shoal project restore-snapshot` goes back to one.
    """,
)
syncer_app.command(
    "shoal.machine.ledger_command:ledger",
    help="Show who contributed how much, and what did not count and why.",
)
syncer_app.command(
    "shoal.project.charter_commands:readmit", help="The same as `shoal project readmit`."
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VoterNetwork:
    """How a voter is reached, and finds the others."""

    bulk_port: choices.BulkPort = None
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
        str | None, choices.option("The project's join link, if other hosts already run.")
    ] = None
    bootstrap: Annotated[
        tuple[str, ...],
        Parameter(help="Full address of a host already in the swarm; repeatable.", negative=""),
    ] = ()
    listen: choices.Listen = "0.0.0.0"

    def wishes(self) -> dict[str, Any]:
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
    project: choices.ProjectPath,
    *,
    port: choices.Port = 4100,
    network: VoterNetwork = ANYWHERE,
    instance: choices.Instance = DEFAULT_INSTANCE,
    base: Annotated[
        Path | None,
        Parameter(
            name="--from",
            help="Folder of the base model, for a project that starts from one; the first syncer "
            "needs it.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        choices.option("CPU threads that merge; every core otherwise.", choices.AtLeastOne),
    ] = None,
    weights_on_disk: Annotated[
        bool,
        choices.switch("Keep weights and momentum in files: less memory, more disk."),
    ] = False,
    exit_when_done: Annotated[
        bool, choices.switch("End when the token budget is reached.")
    ] = False,
    tape: choices.TapeAt = "on",
    tape_mib_max: choices.TapeMib = TAPE_MIB_MAX,
    monitor: choices.MonitorPlace = None,
    track: Annotated[
        Kind | None,
        choices.option("Also follow the run with tensorboard, trackio or wandb, in ./runs."),
    ] = None,
    page: choices.PagePlace = None,
    log_json: choices.LogJson = None,
    home: choices.HomeHere,
) -> int:
    """Run a syncer of a project, until Ctrl-C or `shoal stop`; the first one begins the swarm."""
    own = settings_file.load().values.page
    with track_command.beside(track, home, instance), beside(page, home, instance, own):
        return _run_voter(
            "syncer",
            project,
            home,
            instance=instance,
            port=port,
            **network.wishes(),
            base=base.absolute() if base is not None else None,
            threads=threads,
            weights_on_disk=weights_on_disk,
            exit_when_done=exit_when_done,
            tape=choices.tape_options(tape, tape_mib_max),
            monitor=choices.monitor_at(monitor),
            log_json=log_json,
        )


@syncer_app.command
def key(*, instance: choices.Instance = DEFAULT_INSTANCE, home: choices.HomeHere) -> list[str]:
    """Print the key of this machine's syncer, for [[voters]] in a project file."""
    return [keystore.load_or_create(home.identity("syncer", instance)).key.hex()]


@syncer_app.command
def drain(
    syncer: Annotated[
        str | None,
        choices.option(
            "Which syncer of this machine, as status calls it, or its key's first digits."
        ),
    ] = None,
    *,
    instance: choices.Instance = DEFAULT_INSTANCE,
    home: choices.HomeHere,
) -> int:
    """Hand the lead to a standby before taking this host down; wait until another one leads.

    Exit code 0: another syncer leads. 2: no standby is up to date. 3: not within a minute.
    """
    if syncer is None:
        (daemon,) = daemons.find_daemons(home, role="syncer", instance=instance)
    else:
        daemon = _syncer_here(home, syncer)
    called = f"syncer {daemon.instance}"
    answer = client.call(daemon.socket, "drain")
    if not answer.get("was_leading"):
        print(f"{called} does not lead. It will not stand for election until it is restarted.")
        return ExitCode.DONE
    others = ", ".join(str(key)[:8] for key in answer.get("standbys", []))
    print(
        f"{called} ends the rounds in flight and hands over the lead; ready: {others}", flush=True
    )
    said, began_s = "", time.monotonic()
    for status in daemons.statuses_of(daemon, timeout_s=DRAIN_S):
        seat = status.seat if isinstance(status, SyncerStatus) else None
        if seat is not None and seat.leader not in ("", status.key):
            took_s = time.monotonic() - began_s
            print(
                f"syncer {seat.leader[:8]} leads in term {seat.term}, after {took_s:.1f} s. "
                f"{called} stands by and does not stand for election until it is restarted."
            )
            return ExitCode.DONE
        if isinstance(status, SyncerStatus) and status.sentence != said:
            said = status.sentence
            print(said, flush=True)
    failures.complain(
        f"No other syncer leads after {DRAIN_S:g} s. {called} goes on trying; `shoal status` says "
        "what it waits for. A standby that was drained itself leads only after a restart. "
        f"To take the request back, restart {called}."
    )
    return ExitCode.NOT_REACHABLE


def _syncer_here(home: Home, text: str) -> Daemon:
    """The syncer of this machine that is meant: by its name, or by how its key begins.

    TransientError where none runs here, UserError where none or several fit.
    """
    found = daemons.find_daemons(home, role="syncer")
    word = text.strip().rstrip("…").removeprefix("syncer ")
    fitting = [one for one in found if one.instance == word]
    if len(fitting) == 1:
        return fitting[0]
    keys = {one: _key_of(one) for one in found}
    if len(word) >= KEY_DIGITS_MIN:
        fitting = [one for one, key in keys.items() if key.startswith(word.lower())]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(
        f"syncer {one.instance}" + (f" ({key[:16]}…)" if key else "") for one, key in keys.items()
    )
    raise UserError(
        f"{shown(text)} is no syncer that runs on this machine. Here: {listed}. Drain another "
        "machine's syncer there."
    )


def _key_of(daemon: Daemon) -> str:
    """Its key in hex; empty where it does not answer."""
    with contextlib.suppress(TransientError):
        return daemons.ask_status(daemon).key
    return ""


@witness_app.command(name="run")
def run_witness(
    project: choices.ProjectPath,
    *,
    port: choices.Port = 4101,
    network: VoterNetwork = ANYWHERE,
    instance: choices.Instance = DEFAULT_INSTANCE,
    monitor: choices.MonitorPlace = None,
    page: choices.PagePlace = None,
    log_json: choices.LogJson = None,
    home: choices.HomeHere,
) -> int:
    """Run a witness of a project, until Ctrl-C or `shoal stop`: it votes and keeps the log."""
    own = settings_file.load().values.page
    if page_at(page, own) is not None and network.join is None:
        raise UserError(
            "A witness knows of the run only what it votes on. Its page follows the leader: give "
            "the project's join link with --join."
        )
    with beside(page, home, instance, own, network.join):
        return _run_voter(
            "witness",
            project,
            home,
            instance=instance,
            port=port,
            **network.wishes(),
            monitor=choices.monitor_at(monitor),
            log_json=log_json,
        )


@witness_app.command(name="key")
def witness_key(
    *, instance: choices.Instance = DEFAULT_INSTANCE, home: choices.HomeHere
) -> list[str]:
    """Print the key of this machine's witness, for `shoal project add-witness`."""
    return [keystore.load_or_create(home.identity("witness", instance)).key.hex()]


def _run_voter(
    role: VoterRole,
    path: Path,
    home: Home,
    *,
    instance: str,
    link: str | None = None,
    **wishes: Any,
) -> int:
    """Runs a syncer or a witness in the foreground and returns its exit code."""
    from host.options import SyncerOptions, WitnessOptions

    known = _entrance(path, home, role, instance, link, wishes)
    try:
        if role == "syncer":
            from syncer_node.daemon import syncer_daemon

            return syncer_daemon.run(SyncerOptions(home=home, **known))
        from syncer_node.daemon import witness_daemon

        return witness_daemon.run(WitnessOptions(home=home, **known))
    except KeyboardInterrupt:
        return ExitCode.DONE  # Ctrl-C is how a foreground daemon is stopped


def _entrance(
    path: Path,
    home: Home,
    role: VoterRole,
    instance: str,
    link: str | None,
    wishes: dict[str, Any],
) -> dict[str, Any]:
    """A voter's choices, checked, with a join link's addresses among them; keeps a copy.

    Before this host has a store one of the addresses must answer. Later it may begin alone: all
    voters may be starting at once, and the one that the link names may be gone for good.
    """
    from host import addresses

    signed = file_commands.signed_path(path).absolute()
    for address in wishes["announce"]:
        addresses.check_listen(address)
    for address in wishes["bootstrap"]:
        addresses.parse_peer(address)
    project = file_commands.keep_copy(signed, home)
    known = {**wishes, "project_path": signed, "instance": checked_instance(instance)}
    known["network"] = settings_file.load().values.network
    if link is None:
        return known
    found = parse_link(link)
    if found.project != project.id:
        raise UserError(
            f"This link leads to the project {found.name} ({short(found.project)}), but {signed} "
            f"is {project.genesis.name} ({short(project.id)}). Ask for the link of this one."
        )
    has_store = (home.voter_store(project.id, role, instance) / "ballot").exists()
    at = "hints" if has_store else "bootstrap"
    known[at] = (*known.get(at, ()), *found.addresses)
    return known
