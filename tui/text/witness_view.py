"""A witness's status as text: who leads, who votes, and how far the log is."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.status import WitnessStatus
from tui.text import election, fmt, status_rows


def render(
    status: WitnessStatus, *, width: int, names: election.Names, said: str = ""
) -> RenderableType:
    """The whole view. names: what daemons of this machine are called, by key; said: the verdict."""
    return Group(
        status_rows.heading(status.project, "witness", status.name, pid=status.pid, width=width),
        Text(said or fmt.clean(status.sentence, 500), style="bold"),
        Text(),
        status_rows.grid(_facts(status, names)),
    )


def _facts(status: WitnessStatus, names: election.Names) -> list[status_rows.Row]:
    seat = status.seat
    return [
        ("role", f"witness · up {fmt.duration(status.uptime_s)}"),
        ("election", election.line(seat, names)),
        *(("voter", election.voter_line(row, names)) for row in seat.voters),
        ("charter", election.charter(seat)),
        ("log", status_rows.certified(status)),
        ("trouble", fmt.clean(seat.trouble, 500)),
        ("faults", status_rows.faults(status.faults)),
        ("network", status_rows.network(status.network)),
        ("reached", status_rows.reached(status.network)),
        *(("address", fmt.clean(one, 200)) for one in status.network.addresses[:1]),
    ]
