"""The `invite` verb: the join link of a syncer that runs here, with an invite in it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter, validators

from host import qr_code
from host.files import keystore
from host.files.home import DEFAULT_INSTANCE, Home
from host.files.keystore import Identity
from host.files.signed_project import OpenedProject, newest_of, read_signed
from host.join_link import format_link, parse_link
from protocol import limits
from protocol.errors import TransientError, UserError
from protocol.invites import Invite, seal_invite
from protocol.status import SyncerStatus
from shoal.common import daemons, durations
from shoal.common.choices import HomeHere, Instance, option
from shoal.common.exit_codes import ExitCode
from shoal.project import charter_delivery, charters, file_commands, issued_invites

USES = 1
DAYS = 7.0
ID_BYTES = 16


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class InviteFlags:
    """What an invite says; where any is given, the link carries one in any project."""

    uses: Annotated[
        int | None,
        option(
            "How many different machines the invite may bring; 1 by default.",
            validators.Number(gte=1, lte=limits.INVITE_USES_MAX),
        ),
    ] = None
    days: Annotated[
        float | None,
        option("Days until it expires; 7 by default.", validators.Number(gt=0, lte=3650)),
    ] = None
    name: Annotated[str | None, option("What `shoal project invites` calls it.")] = None
    key: Annotated[
        str | None, option("The only key that it may bring: 64 hex digits, of `shoal identity`.")
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether an invite is asked for in so many words."""
        return any(one is not None for one in (self.uses, self.days, self.name, self.key))


AS_USUAL = InviteFlags()


def invite(
    project: Annotated[
        Path | None, option("Only this signed project; otherwise whatever the syncer here serves.")
    ] = None,
    *,
    flags: InviteFlags = AS_USUAL,
    wait: Annotated[
        str | None, option("How long to wait for a syncer: 30s, 5m; not at all by default.")
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Prints the link alone, so that scripts can use it. TransientError if there is none."""
    wanted = read_signed(file_commands.signed_path(project)).id.hex() if project else None
    link = _link(home, wanted, instance)
    if link is None and wait is not None:
        for _ in daemons.again(durations.seconds(wait)):
            link = _link(home, wanted, instance)
            if link is not None:
                break
    if link is None:
        raise TransientError(
            f"No syncer {instance} of {'this' if wanted else 'a'} project answers in {home.root}, "
            "or it has no address yet. Start one with `shoal syncer run PROJECT`, or name another "
            "place with --home."
        )
    link, note = _with_invite(home, link, flags)
    print(link)
    print(qr_code.beside(link), end="")
    if note:
        print(note, file=sys.stderr)
    if sys.stdout.isatty():
        print("\nothers join with: shoal join 'LINK'", file=sys.stderr)
    return ExitCode.DONE


def _link(home: Home, project: str | None, instance: str) -> str | None:
    """The link that a fitting syncer of this home gives now."""
    fitting = [one for one in home.daemons() if (one.role, one.instance) == ("syncer", instance)]
    statuses, _ = daemons.ask_all(fitting)
    for one in statuses:
        if isinstance(one, SyncerStatus) and project in (None, one.project.id):
            return one.join_link or None
    return None


def _with_invite(home: Home, link: str, flags: InviteFlags) -> tuple[str, str]:
    """The link, with an invite where one is asked for or needed; and what to say about it."""
    opened = _known(home, parse_link(link).project)
    rule = opened.charter.admission if opened is not None else "open"
    if not flags.are_given and rule == "open":
        return link, ""
    if rule == "list":
        if flags.are_given:
            raise UserError(
                "This project takes in listed keys alone, so an invite would bring nobody. List a "
                "key with `shoal project allow KEY PROJECT`, or take invites: shoal project set "
                "PROJECT admission=invite"
            )
        return link, "note: only keys listed with `shoal project allow` can join with this link"
    owner = _owner(home, opened)
    if opened is None or owner is None:
        if flags.are_given:
            raise UserError(
                f"Only the owner makes invites, and the owner's key of this project is not in "
                f"{home.root}. Run this with the owner's --home."
            )
        return link, (
            f"note: this link carries no invite, for the owner's key is not in {home.root}; only "
            "keys that came by an invite before, or are listed, can join with it"
        )
    made = _made(home, opened.id, flags)
    sealed = seal_invite(made, owner)
    text = format_link(msgspec.structs.replace(parse_link(link), invite=sealed))
    issued_invites.remember(home, made)
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made.expires_s))
    who = "1 machine" if made.uses == 1 else f"{made.uses} machines"
    return text, (
        f"invite {made.name}: for {who}, until {until}; whoever has the link can use it, so send "
        "it to those only whom you mean"
    )


def _known(home: Home, project: bytes) -> OpenedProject | None:
    """The project under its newest charter known here; None where there is no copy of it."""
    copy = home.project_file(project)
    if not copy.is_file():
        return None
    opened = read_signed(copy)
    return newest_of(opened, *charter_delivery.kept_charters(home, opened))


def _owner(home: Home, project: OpenedProject | None) -> Identity | None:
    """The key of the project's owner, if it is here."""
    path = home.identity("owner")
    if project is None or not path.is_file():
        return None
    owner = keystore.load_or_create(path)
    return owner if owner.key == project.genesis.owner else None


def _made(home: Home, project: bytes, flags: InviteFlags) -> Invite:
    """A new invite. UserError for a name that another one has, or that cannot be shown."""
    now_s = int(time.time())
    known = issued_invites.issued(home, project)
    names = {one.name for one in known if one.expires_s > now_s}
    name = flags.name
    if name is None:
        taken = {one.name for one in known}
        name = next(
            f"invite-{at}" for at in range(1, len(taken) + 2) if f"invite-{at}" not in taken
        )
    if not 1 <= len(name) <= limits.NAME_CHARS_MAX or not name.isprintable():
        raise UserError(
            f"The name {name!r} cannot be used. Use 1 to {limits.NAME_CHARS_MAX} printable "
            "characters."
        )
    if name in names:
        raise UserError(
            f"There is an invite {name} already. Give this one another --name; `shoal project "
            "invites` lists them."
        )
    days = DAYS if flags.days is None else flags.days
    return Invite(
        project=project,
        id=os.urandom(ID_BYTES),
        name=name,
        uses=flags.uses or USES,
        expires_s=now_s + max(1, int(days * durations.UNITS_S["d"])),
        key=charters.full_key(flags.key) if flags.key is not None else None,
    )
