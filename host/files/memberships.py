"""What a machine has joined: kept so that it can go on later without the link.

One small JSON file per learner in the project's directory. It is written by the command before the
daemon starts, and removed by `shoal leave`.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from host.files.home import DEFAULT_INSTANCE, Home, checked_instance
from host.join_link import JoinLink, parse_link
from host.runtime.atomic_files import replace_file
from protocol import decoders
from protocol.errors import UserError

FILE_BYTES_MAX = 1 << 16
_PREFIX = "joined-"


class Joined(Struct, frozen=True, kw_only=True):
    """That a learner of this machine takes part in a project."""

    link: str
    """The join link, whole."""
    instance: str = DEFAULT_INSTANCE
    options: dict[str, str | int | float | bool] = {}
    """What its owner decided with flags, by name; only what was given."""
    at_s: float = 0.0
    """Wall clock, Unix seconds, of the last time it was joined."""

    def parsed(self) -> JoinLink:
        """What the link says. UserError if it cannot be read."""
        return parse_link(self.link)


class Membership(Struct, frozen=True):
    """A kept `Joined` and what its link says."""

    joined: Joined
    link: JoinLink
    path: Path

    @property
    def called(self) -> str:
        """The project's name and the beginning of its id."""
        return f"{self.link.name} ({self.link.project.hex()[:8]})"


def remember(home: Home, joined: Joined) -> Path:
    """Keeps it in place of what was known of this learner in this project; its file."""
    name = f"{_PREFIX}{checked_instance(joined.instance)}.json"
    place = home.project(joined.parsed().project) / name
    try:
        replace_file(place, msgspec.json.format(msgspec.json.encode(joined)))
    except OSError as error:
        raise UserError(
            f"{place} cannot be written ({error.strerror}). Free some room, or name another place "
            "with --home."
        ) from error
    return place


def memberships(home: Home, *, instance: str | None = None) -> list[Membership]:
    """What the learners of this home have joined, the newest first. Makes no directory.

    UserError for a file that cannot be read as one.
    """
    found = []
    for path in (home.root / "projects").glob(f"*/{_PREFIX}*.json"):
        one = _read(path)
        if one is not None and instance in (None, one.instance):
            found.append(Membership(one, one.parsed(), path))
    return sorted(found, key=lambda one: -one.joined.at_s)


def named(found: list[Membership], project: str | None) -> list[Membership]:
    """Those whose project is called so, or whose id begins so; all of them for None.

    UserError where there is none, or where the word fits several projects.
    """
    if not found:
        raise UserError(
            "No project has been joined here yet. Join with the link from the project's host: "
            "shoal join 'shoal:...'"
        )
    if project is None:
        return found
    fitting = [
        one
        for one in found
        if project == one.link.name or one.link.project.hex().startswith(project)
    ]
    known = ", ".join(one.called for one in found)
    if not fitting:
        raise UserError(f"No project {project!r} has been joined here. Joined projects: {known}.")
    if len({one.link.project for one in fitting}) > 1:
        raise UserError(f"{project!r} matches several projects. Name one by its id: {known}.")
    return fitting


def others(home: Home, project: bytes) -> list[Membership]:
    """Who of this home takes part in the project."""
    return [one for one in memberships(home) if one.link.project == project]


def forget(membership: Membership) -> None:
    """From now on this learner has not joined this project."""
    membership.path.unlink(missing_ok=True)


def now_joined(link: str, instance: str, given: dict[str, object]) -> Joined:
    """A membership that begins now, with those of the options that a file can hold."""
    options = {
        name: value
        for name, value in given.items()
        if isinstance(value, str | int | float | bool) and value != ""
    }
    text = "".join(link.split()).strip("\"'<>")
    return Joined(link=text, instance=instance, options=options, at_s=round(time.time(), 3))


def _read(path: Path) -> Joined | None:
    """None if it has just been removed."""
    with contextlib.suppress(FileNotFoundError):
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError("it is too long")
            return decoders.json_decoder(Joined).decode(path.read_bytes())
        except (msgspec.MsgspecError, ValueError) as error:
            raise UserError(
                f"{path} does not say what was joined ({error}). Remove it and join again with "
                "the link."
            ) from error
        except PermissionError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    return None
