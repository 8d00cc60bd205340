"""Training code that is installed on this machine, found by the name that a project gives it.

The name is looked up among the entry points of installed distributions, in the group
`shoal.trainers`. A project can so choose only among what the owner of this machine installed for
Shoal; nothing is fetched. Looking up imports nothing; `load` does.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

import msgspec

from protocol import decoders
from protocol.errors import UserError
from protocol.project import TrainerSpec

GROUP: Final = "shoal.trainers"

_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

_WANTED: Final = ("tensors", "step", "state", "load_state", "heldout_loss")
"""Methods without which nobody can train."""


class Installed(NamedTuple):
    """Training code of an installed distribution."""

    place: str
    """`package.module:Class`."""
    spec: TrainerSpec


def find(name: str) -> Installed | None:
    """What is installed under this name; None if nothing is. UserError where two claim it."""
    found = {_described(name, point) for point in entry_points(group=GROUP, name=name)}
    if len(found) > 1:
        packages = ", ".join(sorted(f"{one.spec.package} {one.spec.version}" for one in found))
        raise UserError(
            f"Several installed packages bring a trainer {name}: {packages}. Uninstall all but one."
        )
    return next(iter(found), None)


def _described(name: str, point: EntryPoint) -> Installed:
    package = point.dist
    said = ["" if package is None else package.name, "" if package is None else package.version]
    try:
        spec = decoders.convert([name, *said], TrainerSpec)
    except msgspec.ValidationError as error:
        raise UserError(
            f"The trainer {name} is installed by {' '.join(said)!r}, which cannot be named in a"
            f" project ({error})."
        ) from error
    return Installed(checked_place(point.value), spec)


def pin(name: str) -> Installed:
    """What is installed under this name, for a project to name. UserError if nothing is."""
    found = find(name)
    if found is None:
        raise UserError(
            f"No trainer {name} is installed on this machine. Install the package that brings it"
            f" (an entry point {name} of the group {GROUP}), and sign again."
        )
    return found


def require(spec: TrainerSpec) -> str:
    """Where the trainer of a project is: `package.module:Class`.

    UserError if it is not installed here, or in another version.
    """
    found = find(spec.name)
    wanted = f"{spec.package} {spec.version}"
    install = (
        "It is code that runs on this machine: if you trust who wrote it, install it with"
        f" pip install {spec.package}=={spec.version}, and start again."
    )
    if found is None:
        raise UserError(
            f"This project trains with code of its own, the trainer {spec.name} of the package"
            f" {wanted}, which is not installed here. {install}"
        )
    if found.spec != spec:
        raise UserError(
            f"This project trains with the trainer {spec.name} of {wanted}, and"
            f" {found.spec.package} {found.spec.version} is installed here: results of two versions"
            f" do not add up. {install}"
        )
    return found.place


def checked_place(place: str) -> str:
    """The same. UserError unless it reads PACKAGE.MODULE:CLASS."""
    if _PLACE.fullmatch(place) is None:
        raise UserError(f"{place!r} names no class. Write PACKAGE:CLASS or PACKAGE.MODULE:CLASS.")
    return place


def load(place: str) -> Any:
    """The class there. UserError if it cannot be imported or is no training code."""
    module, _, name = checked_place(place).partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"The trainer {place} cannot be imported ({error}). Install its package for the Python"
            " that runs shoal, or put its folder into PYTHONPATH."
        ) from error
    lacking = [method for method in _WANTED if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or lacking:
        what = f"the class lacks {', '.join(lacking)}" if isinstance(found, type) else "it is none"
        raise UserError(
            f"{place} is no class that can train: {what}. docs/own-loop.md says what it needs."
        )
    return found
