"""The verbs that start and stop daemons; the daemons themselves are elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node.host import control_client
from node.host.home import DaemonRole, Home, checked_instance
from node.host.joinlink import parse_link
from protocol import limits
from protocol.errors import TransientError, UserError
from protocol.ids import short
from shoal import daemons, durations, failures, projects
from shoal.exit_codes import ExitCode

STOP_S = 30.0
"""Both kinds of daemon say goodbye and free everything well before."""


def run_syncer(path: Path, home: Home, *, instance: str, **choices: Any) -> int:
    """Runs the syncer in the foreground and returns its exit code."""
    from node.host import addresses
    from node.host.options import SyncerOptions

    options = SyncerOptions(
        home=home,
        project_path=projects.signed_path(path).absolute(),
        instance=checked_instance(instance),
        **choices,
    )
    for address in options.announce:
        addresses.check_listen(address)
    for address in options.bootstrap:
        addresses.parse_peer(address)
    projects.keep_copy(options.project_path, home)
    try:
        from syncer_node import daemon

        return daemon.run(options)
    except KeyboardInterrupt:
        return ExitCode.DONE  # Ctrl-C is how a foreground daemon is stopped


def join(link: str, home: Home, *, name: str | None, instance: str, **choices: Any) -> int:
    """Runs a learner in the foreground and returns its exit code."""
    from node.host.options import NodeOptions

    options = NodeOptions(
        home=home,
        link=parse_link(link),
        instance=checked_instance(instance),
        name=_name(name, home, instance),
        **choices,
    )
    try:
        from node import daemon

        return daemon.run(options)
    except KeyboardInterrupt:
        return ExitCode.DONE  # Ctrl-C is how a foreground daemon is stopped


def _name(name: str | None, home: Home, instance: str) -> str:
    """The name others see. Not the host name by default: that is nobody's business unasked."""
    if name is None:
        from node.host import keystore

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
    return _tell_learners(home, instance, "finish", "hands in what it did and then stops")


def _tell_learners(home: Home, instance: str | None, verb: str, words: str, **fields: Any) -> int:
    code = ExitCode.DONE
    for daemon in daemons.find_daemons(home, role="learner", instance=instance):
        try:
            control_client.call(daemon.socket, verb, **fields)
            print(f"learner {daemon.instance} {words}")
        except TransientError as error:
            failures.complain(f"learner {daemon.instance}: {error}")
            code = ExitCode.NOT_REACHABLE
    return code
