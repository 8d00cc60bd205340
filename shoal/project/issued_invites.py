"""The invites that an owner made: a list in the owner's home, for people.

Nothing depends on it but names: an invite counts by its signature, and its uses by the log.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from host.files.home import Home
from host.runtime.atomic_files import replace_file
from protocol import decoders
from protocol.errors import UserError
from protocol.invites import Invite

FILE = "invites.json"
FILE_BYTES_MAX = 4 << 20
ISSUED_MAX = 8192
"""The oldest are forgotten; by then most have expired."""


class Issued(Struct, frozen=True, kw_only=True):
    """One invite."""

    id: str
    name: str
    uses: int
    expires_s: int
    key: str = ""
    """The only key that it may bring, if it is for one."""

    @classmethod
    def of(cls, invite: Invite) -> Issued:
        """What there is to remember of it."""
        key = invite.key.hex() if invite.key is not None else ""
        return cls(
            id=invite.id.hex(),
            name=invite.name,
            uses=invite.uses,
            expires_s=invite.expires_s,
            key=key,
        )


def issued(home: Home, project: bytes) -> list[Issued]:
    """The invites to this project that were made here, oldest first. UserError if unreadable."""
    place = _place(home, project)
    if not place.is_file():
        return []
    try:
        if place.stat().st_size > FILE_BYTES_MAX:
            raise ValueError("it is too long")
        return decoders.json_decoder(list[Issued]).decode(place.read_bytes())
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise UserError(
            f"{place} does not say which invites were made ({error}). Remove it: invites count all "
            "the same, only their names are lost."
        ) from error


def remember(home: Home, invite: Invite) -> None:
    """Put an invite on the list. UserError if it cannot be written."""
    known = [*issued(home, invite.project), Issued.of(invite)][-ISSUED_MAX:]
    place = _place(home, invite.project)
    try:
        replace_file(place, msgspec.json.format(msgspec.json.encode(known)))
    except OSError as error:
        raise UserError(
            f"{place} cannot be written ({error.strerror}). Free some room, or name another place "
            "with --home."
        ) from error


def _place(home: Home, project: bytes) -> Path:
    return home.project(project) / FILE
