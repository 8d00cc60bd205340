"""A witness's status as text: who leads, who votes, and how far the log is."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.status import WitnessStatus
from tui import rows, seats, words


def render(status: WitnessStatus, *, width: int, names: seats.Names) -> RenderableType:
    """The whole view. names: what daemons of this machine are called, by key."""
    return Group(
        rows.heading(status.project, "witness", status.name, pid=status.pid, width=width),
        Text(words.clean(status.sentence, 500), style="bold"),
        Text(),
        rows.grid(_facts(status, names)),
    )


def _facts(status: WitnessStatus, names: seats.Names) -> list[rows.Row]:
    seat = status.seat
    log = f"certified to record {status.log_index:,}"
    if status.stored_from > 1:
        log += f", kept from {status.stored_from:,}"
    return [
        ("role", f"witness · up {words.duration(status.uptime_s)}"),
        ("seat", seats.line(seat, names)),
        *(("voter", seats.voter_line(row, names)) for row in seat.voters),
        ("charter", seats.charter(seat)),
        ("log", log),
        ("trouble", words.clean(seat.trouble, 500)),
        ("faults", rows.faults(status.faults)),
        ("network", rows.network(status.network)),
        ("reached", rows.reached(status.network)),
    ]
