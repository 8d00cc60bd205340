"""The verbs of `shoal contributions`: what this machine gave, and proof of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.common.choices import HomeHere, switch

contributions_app = App(name="contributions", help="Show what this machine contributed.")


@contributions_app.default
def show(
    *,
    json: Annotated[bool, switch("Print one JSON list.")] = False,
    home: HomeHere,
) -> int:
    """Show what this machine contributed to each project, by its newest receipts."""
    from shoal.machine import contributions_command

    return contributions_command.show(home, as_json=json)


@contributions_app.command
def verify(
    *files: Annotated[
        Path, Parameter(help="Files of receipts, from anybody; those of this machine by default.")
    ],
    home: HomeHere,
) -> int:
    """Verify files of receipts without a syncer or the network, and say who signed what.

    Exit code 0: every byte is proven. 1: a file is altered, cut off or forged; the output says why.
    """
    from shoal.machine import contributions_command

    return contributions_command.verify(home, files)
