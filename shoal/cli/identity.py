"""The verbs of `shoal identity`: the keys of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from host.files.home import Role
from shoal.common.choices import THIS_MACHINE, HomeHere, say, switch

identity_app = App(
    name="identity", help="The keys of this machine: show, back up, restore.", group=THIS_MACHINE
)

PassphraseFile = Annotated[
    Path | None,
    Parameter(help="Its first line is the passphrase; SHOAL_PASSPHRASE otherwise."),
]


@identity_app.command
def show(*, home: HomeHere) -> int:
    """Print the public keys of this machine and where the private ones are."""
    from shoal.machine import identity_command

    return say(identity_command.show(home))


@identity_app.command
def export(
    to: Annotated[Path, Parameter(help="File to write; must not exist.")],
    *,
    role: Annotated[Role | None, Parameter(help="Which key, if there are several.")] = None,
    instance: Annotated[str | None, Parameter(help="Which instance's.")] = None,
    passphrase_file: PassphraseFile = None,
    home: HomeHere,
) -> int:
    """Back up a key, encrypted if a passphrase is given."""
    from shoal.machine import identity_command

    return say(
        identity_command.export(
            home, to, role=role, instance=instance, passphrase_file=passphrase_file
        )
    )


@identity_app.command(name="import")
def import_key(
    source: Annotated[Path, Parameter(help="A file that `shoal identity export` wrote.")],
    *,
    instance: Annotated[
        str | None, Parameter(help="For this instance instead of the one it was exported from.")
    ] = None,
    replace: Annotated[bool, switch("Move an existing key aside.")] = False,
    passphrase_file: PassphraseFile = None,
    home: HomeHere,
) -> int:
    """Restore a key from its backup, on this machine or another."""
    from shoal.machine import identity_command

    return say(
        identity_command.bring_back(
            home,
            source,
            instance=instance,
            passphrase_file=passphrase_file,
            is_replacing=replace,
        )
    )
