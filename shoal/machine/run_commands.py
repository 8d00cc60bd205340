"""The verbs that start and stop daemons; the daemons themselves are elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from host.control import client
from host.files import memberships
from host.files.home import DaemonRole, Home, VoterRole, checked_instance
from host.join_link import parse_link
from host.options import LEARNER_TAPE_MIB_MAX, MonitorAt, TapeOptions, bulk_at
from protocol import limits
from protocol.errors import TransientError, UserError
from protocol.ids import short
from protocol.status import SyncerStatus
from shoal.common import daemons, durations, failures, settings_file
from shoal.common.choices import monitor_at, tape_options
from shoal.common.exit_codes import ExitCode
from shoal.project import file_commands

STOP_S = 30.0
"""Every kind of daemon says goodbye and frees everything well before."""

DRAIN_S = 60.0
"""The rounds in flight end within their patience, and a handover takes a second."""


def run_voter(
    role: VoterRole,
    path: Path,
    home: Home,
    *,
    instance: str,
    link: str | None = None,
    **choices: Any,
) -> int:
    """Runs a syncer or a witness in the foreground and returns its exit code."""
    from host.options import SyncerOptions, WitnessOptions

    known = _entrance(path, home, role, instance, link, choices)
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
    choices: dict[str, Any],
) -> dict[str, Any]:
    """A voter's choices, checked, with a join link's addresses among them; keeps a copy.

    Before this host has a store one of the addresses must answer. Later it may begin alone: all
    voters may be starting at once, and the one that the link names may be gone for good.
    """
    from host import addresses

    signed = file_commands.signed_path(path).absolute()
    for address in choices["announce"]:
        addresses.check_listen(address)
    for address in choices["bootstrap"]:
        addresses.parse_peer(address)
    project = file_commands.keep_copy(signed, home)
    known = {**choices, "project_path": signed, "instance": checked_instance(instance)}
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


def drain(home: Home, *, instance: str) -> int:
    """Asks a syncer to give the seat away, and waits until another one leads.

    NOT_REACHABLE if none does in time. UserError if there is no standby that could.
    """
    (daemon,) = daemons.find_daemons(home, role="syncer", instance=instance)
    called = f"syncer {instance}"
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


def join(
    link: str,
    home: Home,
    *,
    instance: str,
    flags: Mapping[str, object],
    anyway: bool = False,
    **choices: Any,
) -> int:
    """Runs a learner in the foreground and returns its exit code; `run` can repeat it later.

    flags: what the command line says of the owner's settings, by key; None where it says nothing.
    anyway: also where this machine is too small or too slow for the project.
    """
    from host.options import NodeOptions
    from node.trainer.devices import ranks_wanted
    from shoal.doctor.suitability import judge_of

    settings = settings_file.load(flags=flags).values
    learner = settings.learner
    if choices.get("data") is not None:
        choices["data"] = os.path.abspath(choices["data"])
    parsed = parse_link(link)
    options = NodeOptions(
        home=home,
        link=parsed,
        instance=checked_instance(instance),
        name=_name(learner.name, home, instance),
        threads=learner.threads,
        micro_batch=learner.micro_batch,
        device=learner.device,
        ranks=ranks_wanted(learner.device, learner.ranks),
        evaluates=learner.evaluate,
        shares_moments=learner.moments,
        bulk=bulk_at(learner.bulk_port),
        settings=lambda: settings_file.load(flags=flags).values,
        judge=None if anyway else judge_of(home, parsed.project, settings),
        **choices,
    )
    given = {**flags, **choices, "log_json": None, "tape": _tape_text(options.tape)}
    given["anyway"] = anyway or None
    given["monitor"] = _monitor_text(options.monitor)
    memberships.remember(home, memberships.now_joined(link, instance, given))
    try:
        from node.daemon import learner_daemon

        return learner_daemon.run(options)
    except KeyboardInterrupt:
        return ExitCode.DONE  # Ctrl-C is how a foreground daemon is stopped


def run(home: Home, project: str | None, *, instance: str, log_json: bool | None) -> int:
    """Joins again what this learner joined last, or the project that is named, as it was then.

    UserError where nothing fits.
    """
    found = memberships.named(memberships.memberships(home, instance=instance), project)
    chosen, others = found[0], found[1:]
    print(f"learner {instance} goes on with {chosen.called}", flush=True)
    for one in others:
        print(f"joined earlier: {one.called}; shoal run {one.link.project.hex()[:8]}")
    options: dict[str, Any] = dict(chosen.joined.options)
    options["tape"] = tape_options(str(options.get("tape", "on")), LEARNER_TAPE_MIB_MAX)
    options["monitor"] = monitor_at(options.get("monitor"))
    flags = {name: options.pop(name) for name in list(options) if "." in name}
    return join(
        chosen.joined.link, home, instance=instance, flags=flags, log_json=log_json, **options
    )


def _monitor_text(place: MonitorAt | None) -> str | None:
    """What `--monitor` said."""
    return None if place is None else f"[{place.host}]:{place.port}"


def _tape_text(tape: TapeOptions) -> str:
    """What `--tape` said."""
    return str(tape.folder or "on") if tape.is_on else "off"


def _name(name: str | None, home: Home, instance: str) -> str:
    """The name others see. Not the host name by default: that is nobody's business unasked."""
    if name is None:
        from host.files import keystore

        key = keystore.load_or_create(home.identity("learner", instance)).key
        return f"learner-{short(key)}"
    if not 1 <= len(name) <= limits.NAME_CHARS_MAX or not name.isprintable():
        raise UserError(
            f"The name {name!r} cannot be used. Use 1 to {limits.NAME_CHARS_MAX} printable "
            "characters."
        )
    return name


def stop(home: Home, *, role: DaemonRole | None, instance: str | None) -> int:
    """Stops the daemons that fit; NOT_REACHABLE if one of them does not answer or stays."""
    code = ExitCode.DONE
    for daemon in daemons.find_daemons(home, role=role, instance=instance):
        called = f"{daemon.role} {daemon.instance}"
        try:
            if daemons.stop_and_wait(daemon, timeout_s=STOP_S):
                print(f"{called} has stopped")
                continue
            failures.complain(f"{called} was asked to stop and still runs after {STOP_S:g} s.")
        except TransientError as error:
            failures.complain(f"{called}: {error}")
        code = ExitCode.NOT_REACHABLE
    return code


def pause(home: Home, length: str | None, *, instance: str | None) -> int:
    """Asks learners to hold their local steps; NOT_REACHABLE if one does not answer."""
    seconds = None if length is None else durations.seconds(length)
    said = "until `shoal resume`" if length is None else f"for {length}"
    return _tell_learners(home, instance, "pause", f"pauses {said}", seconds=seconds)


def resume(home: Home, *, instance: str | None) -> int:
    """Asks learners to go on."""
    return _tell_learners(home, instance, "resume", "goes on")


def finish(home: Home, *, instance: str | None) -> int:
    """Asks learners to hand in what they did and to stop."""
    return _tell_learners(home, instance, "finish", "pushes what it has and then stops")


def _tell_learners(home: Home, instance: str | None, verb: str, words: str, **fields: Any) -> int:
    code = ExitCode.DONE
    for daemon in daemons.find_daemons(home, role="learner", instance=instance):
        try:
            because = client.call(daemon.socket, verb, **fields).get("because")
            still = f", but not yet: it is paused because {because}" if because else ""
            print(f"learner {daemon.instance} {words}{still}")
        except TransientError as error:
            failures.complain(f"learner {daemon.instance}: {error}")
            code = ExitCode.NOT_REACHABLE
    return code
