"""The `version` verb: what is installed here, without importing any of it."""

from __future__ import annotations

from typing import Annotated

from host.runtime import software
from protocol.limits import WIRE_VERSION
from shoal.common.choices import switch

ENGINE = "hivemind"
TRAINING = ("torch", "transformers", "accelerate", "datasets")
COLUMN = 14
"""Width of the names."""


def line() -> str:
    """Shoal's version and that of its protocol, in one line."""
    return f"shoal {software.version() or 'from source'}, wire protocol {WIRE_VERSION}"


def table() -> list[tuple[str, str]]:
    """Name and version of what a report about this machine should name."""
    import platform

    return [
        ("shoal", software.version() or "from source"),
        ("protocol", str(WIRE_VERSION)),
        ("engine", f"{ENGINE} {_number(ENGINE) or 'not installed'}"),
        *((name, _number(name) or "not installed") for name in TRAINING),
        ("python", platform.python_version()),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]


def training() -> list[tuple[str, str]]:
    """Name and version of the libraries that build and train models, as far as they are here."""
    found = [(name, _number(name)) for name in TRAINING]
    return [(name, number) for name, number in found if number]


def shown(*, json: Annotated[bool, switch("Print one JSON object.")] = False) -> list[str]:
    """The lines of the verb."""
    if json:
        import msgspec

        return [msgspec.json.encode(dict(table())).decode()]
    notes = {"protocol": "  (hosts of other versions are refused)"}
    return [f"{name:<{COLUMN}}{text}{notes.get(name, '')}" for name, text in table()]


def _number(distribution: str) -> str:
    """The version of an installed distribution; empty if there is none."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
