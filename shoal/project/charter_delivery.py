"""Charters on their way between a signed file and the voters' daemons of this home."""

from __future__ import annotations

import contextlib
from pathlib import Path

from host.control import client
from host.files.home import Daemon, Home
from host.files.signed_project import OpenedProject, read_signed
from protocol import wire
from protocol.errors import RemoteError, ShoalError, UserError
from protocol.messages import Envelope
from protocol.status import NodeStatus, SeatStatus
from shoal.common import daemons


def kept_charters(home: Home, project: OpenedProject) -> list[Envelope]:
    """Charters of this project that daemons of this home have kept."""
    found: list[Envelope] = []
    with contextlib.suppress(ShoalError):
        place = home.root / "projects" / project.id.hex() / "project.shoal"
        found.append(read_signed(place).envelope)
    for store in home.voter_stores(project.id):
        with contextlib.suppress(OSError, RemoteError):
            found.append(wire.decode((store / "charter").read_bytes(), Envelope))
    return found


def hand_over(home: Home, project: OpenedProject, target: Path) -> list[str]:
    """Give the charter to the voters of this home; what came of it, in words."""
    revision, lines, is_handed = project.charter.revision, list[str](), False
    envelope = wire.encode(project.envelope).hex()
    for daemon, status in voters_here(home, project, lines):
        called = f"{daemon.role} {daemon.instance}"
        try:
            answer = client.call(daemon.socket, "charter", envelope=envelope)
        except ShoalError as error:
            lines.append(f"{called} rejected it: {error}")
            continue
        known = int(answer.get("revision", revision))
        if known > revision:
            raise UserError(
                f"{called} knows revision {known} already, which is newer than {revision}. Two "
                "owners' machines change this project: go on with the newer signed file."
            )
        is_handed = True
        lines.append(
            f"sent to the running {called}; `shoal status` says when revision {revision} is in "
            f"force (now {status.charter_revision})"
        )
    if not is_handed:
        lines.append(
            f"no voter of this project answers in {home.root}: it takes effect when one starts "
            f"with this file. To any other voter's host, copy {target} and start its daemon again; "
            "from one voter it spreads to all."
        )
    return lines


def voters_here(
    home: Home, project: OpenedProject, lines: list[str]
) -> list[tuple[Daemon, SeatStatus]]:
    """The voters of this project that run in this home; a line for each that does not answer."""
    found = []
    for daemon in home.daemons():
        if daemon.role == "learner":
            continue
        try:
            status = daemons.ask_status(daemon)
        except ShoalError as error:
            lines.append(f"{daemon.role} {daemon.instance} does not answer: {error}")
            continue
        if isinstance(status, NodeStatus) or status.seat is None:
            continue
        if status.project.id == project.id.hex():
            found.append((daemon, status.seat))
    return found
