"""Options and arguments that several verbs have in common."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter, validators

from host.files.home import DaemonRole, Home
from host.options import MonitorAt, TapeOptions
from protocol.errors import UserError

TAKE_PART = Group("Take part", sort_key=1)
HOST = Group("Host a project", sort_key=2)
THIS_MACHINE = Group("This machine", sort_key=3)
TRY_OUT = Group("Try out and check", sort_key=4)


def area(name: str) -> App:
    """A verb that has verbs of its own."""
    return App(name=name, group_commands=Group.create_default_commands())


Validator = Callable[[Any, Any], None]
"""Gets the type and the value; raises ValueError with what is wrong."""

Known = Literal["instances", "projects", "learners", "voters"]


def option(
    help: str, validator: Validator | None = None, *, known: Known | None = None
) -> Parameter:
    """An option or argument with a value. known: the names that a shell may complete it with."""
    completer = partial(_known, known) if known is not None else None
    return Parameter(help=help, validator=validator, completer=completer)


def _known(kind: Known, context: object) -> dict[str, str]:
    """What a shell may complete, of this machine and this moment."""
    from shoal.common import known_names

    names: dict[str, str] = getattr(known_names, kind)(known_names.here())
    return names


def switch(help: str, *, name: str | list[str] | None = None) -> Parameter:
    """An option that is off unless it is given, and has no opposite."""
    return Parameter(name=name, help=help, negative="")


def several(help: str, validator: validators.Number | None = None) -> Parameter:
    """An option that takes all the values behind it."""
    return Parameter(help=help, validator=validator, negative="", consume_multiple=True)


HomeHere = Annotated[Home, Parameter(parse=False)]
CommandCheck = Annotated[Callable[[Sequence[str]], None], Parameter(parse=False)]
"""Raises UserError for words that the command would not understand."""

Instance = Annotated[
    str, option("Name that tells daemons of one role in one home apart.", known="instances")
]
OnlyInstance = Annotated[str | None, option("Only daemons with this name.", known="instances")]
OnlyRole = Annotated[DaemonRole | None, option("Only daemons of this role.")]
Port = Annotated[
    int, option("TCP port to listen on; 0 takes any free one.", validators.Number(gte=0, lte=65535))
]


def _can_be_listened_on(_: object, text: str) -> None:
    from host.addresses import EVERY_VERSION

    if text != EVERY_VERSION:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ValueError(
                "It is no IP address. Give one of this machine, such as 0.0.0.0 for all of IPv4, "
                f"or the word {EVERY_VERSION}."
            ) from None


Listen = Annotated[
    str,
    option(
        "Address of this machine to listen on; 0.0.0.0 is all of IPv4, :: all of IPv6, and the "
        "word all both.",
        _can_be_listened_on,
    ),
]
BulkPort = Annotated[
    str | None,
    Parameter(
        name="--bulk-port",
        help="TCP port for direct connections that carry bulk data; any, the default, takes a "
        "free one; off: all goes through --port.",
    ),
]
MONITOR_VARIABLE = "SHOAL_MONITOR"
"""For a whole environment, as a container's."""

LogJson = Annotated[
    bool | None,
    Parameter(
        help="Print log lines as JSON, or as text; text on a terminal, JSON otherwise.",
        negative="--log-text",
    ),
]
MonitorPlace = Annotated[
    str | None,
    Parameter(
        name="--monitor",
        help="Port, or ADDRESS:PORT, for /metrics, /healthz and /api/v1/status; a port alone is "
        "for this machine only.",
        env_var=MONITOR_VARIABLE,
        show_env_var=True,
    ),
]
PagePlace = Annotated[
    str | None,
    Parameter(
        name="--page",
        help="Serve the project's page to everybody: ADDRESS:PORT, such as 0.0.0.0:8080, or a port "
        "of this machine alone; off: not, whatever page.at says.",
    ),
]
ProjectPath = Annotated[
    Path, option("A signed project (.shoal), or the .toml beside which it lies.")
]
AtLeastOne = validators.Number(gte=1)
Positive = validators.Number(gt=0)
NotNegative = validators.Number(gte=0)
Seed = Annotated[int, option("Same seed, same rows.", NotNegative)]

TapeAt = Annotated[
    str,
    Parameter(
        name="--tape",
        help="Where to record what `shoal replay` needs: a directory, on (in the home) or off.",
    ),
]
TapeMib = Annotated[
    int,
    Parameter(
        name="--tape-mib-max",
        help="Space for the tape in MiB; the oldest records go first.",
        validator=validators.Number(gte=4),
    ),
]
Key = Annotated[str, option("The voter's key; its first 8 digits are enough.", known="voters")]
WholeKey = Annotated[str, option("The whole key, 64 hex digits.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Files:
    """Where rows go besides the terminal."""

    json: Annotated[Path | None, option("Also write the rows as JSON.")] = None
    csv: Annotated[Path | None, option("Also write the rows as CSV.")] = None
    plot: Annotated[Path | None, option("Also draw them, as a PNG or, by its name, an SVG.")] = None


TERMINAL_ONLY = Files()


def tape_options(tape: str, mib_max: int) -> TapeOptions:
    """What `--tape` and `--tape-mib-max` mean together."""
    if tape in ("on", "off"):
        return TapeOptions(is_on=tape == "on", mib_max=mib_max)
    return TapeOptions(folder=Path(tape).absolute(), mib_max=mib_max)


def monitor_at(text: str | None) -> MonitorAt | None:
    """What `--monitor` says: PORT, ADDRESS:PORT or [ADDRESS]:PORT. UserError for others."""
    return None if text is None else address_and_port(text, "the monitor", "9464")


def address_and_port(text: str, what: str, port: str) -> MonitorAt:
    """PORT on this machine alone, ADDRESS:PORT or [ADDRESS]:PORT. UserError for others.

    what, port: who listens there, and a port of it as an example.
    """
    host, _, behind = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    try:
        ipaddress.ip_address(host)
        number = int(behind)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        raise UserError(
            f"{text!r} is not an address for {what}. Give a port, such as {port}, or an address "
            f"of this machine and a port, such as 192.0.2.7:{port}."
        )
    return MonitorAt(host, number)
