"""A witness's status as text: who leads, who votes, and how far the log is."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.snapshot import VoterRow, WitnessStatus
from tui import rows, words


def render(status: WitnessStatus, *, width: int) -> RenderableType:
    """The whole view."""
    return Group(
        rows.heading(status.project, "witness", status.name, pid=status.pid, width=width),
        Text(words.clean(status.sentence, 500), style="bold"),
        Text(),
        rows.grid(_facts(status)),
    )


def _facts(status: WitnessStatus) -> list[rows.Row]:
    seat = status.seat
    charter = f"revision {seat.charter_revision} in force"
    if seat.newest_charter_revision > seat.charter_revision:
        charter += f", {seat.newest_charter_revision} not adopted yet"
    log = f"certified to record {status.log_index:,}"
    if status.stored_from > 1:
        log += f", kept from {status.stored_from:,}"
    return [
        ("role", f"{words.clean(seat.role)} · up {words.duration(status.uptime_s)}"),
        ("leader", f"{words.clean(seat.leader, 64)[:8] or 'none'} in term {seat.term}"),
        *(("voter", _voter(row)) for row in seat.voters),
        ("charter", charter),
        ("log", log),
        ("trouble", words.clean(seat.trouble, 500)),
        ("faults", rows.faults(status.faults)),
        ("network", rows.network(status.network)),
    ]


def _voter(row: VoterRow) -> str:
    said = f"{words.clean(row.key, 64)[:8]} {words.clean(row.role, 12)}, priority {row.priority}"
    if row.is_self:
        return f"{said}: this one"
    if row.is_leader:
        return f"{said}: leads"
    if row.trouble:
        return f"{said}: {words.clean(row.trouble, 300)}"
    return f"{said}: {'here' if row.is_here else 'not here'}"
