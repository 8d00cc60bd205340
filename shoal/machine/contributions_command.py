"""The `contributions` verbs: what this machine's keys gave, and whether a file proves it.

Nothing here asks a daemon or the network: receipts are in files, and each file proves itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Struct

from host.files.receipts_file import read_book
from protocol.errors import RemoteError
from protocol.log.receipts import OpenedBook
from shoal.common import failures, writing
from shoal.common.choices import HomeHere, area, option, switch
from shoal.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.table import Table


contributions_app = area("contributions")


class FormerEpoch(Struct, kw_only=True):
    """What the last receipt of an epoch says that the owner ended by going back."""

    epoch: int
    tokens: int
    merges: int
    log_index: int
    at_s: float


class Contribution(Struct, kw_only=True):
    """What one key gave to one project; keys are hex, times Unix seconds."""

    project: str
    project_name: str
    learner: str
    name: str
    """As it called itself last."""
    tokens: int
    """Read and merged: the mean over fragments."""
    merges: int
    clipped: int
    epoch: int
    log_index: int
    """Last record that the receipt counts."""
    at_s: float
    """When it was signed."""
    signer: str
    receipts: int
    file: str
    former: list[FormerEpoch]
    """Epochs before this one, oldest first."""


def contribution_of(opened: OpenedBook, path: Path) -> Contribution:
    """The newest receipt of a book, in words and numbers for people."""
    newest, genesis = opened.newest, opened.genesis
    return Contribution(
        project=newest.project.hex(),
        project_name=genesis.name,
        learner=newest.learner.hex(),
        name=newest.name,
        tokens=newest.tokens // genesis.fragments,
        merges=newest.merges,
        clipped=newest.clipped,
        epoch=newest.epoch,
        log_index=newest.index,
        at_s=newest.at_s,
        signer=opened.proven[-1].signer.hex(),
        receipts=len(opened.proven),
        file=str(path),
        former=_former(opened),
    )


def _former(opened: OpenedBook) -> list[FormerEpoch]:
    last = {proven.credit.epoch: proven.credit for proven in opened.proven}
    return [
        FormerEpoch(
            epoch=credit.epoch,
            tokens=credit.tokens // opened.genesis.fragments,
            merges=credit.merges,
            log_index=credit.index,
            at_s=credit.at_s,
        )
        for epoch, credit in sorted(last.items())
        if epoch != opened.newest.epoch
    ]


def _former_words(one: Contribution) -> list[str]:
    """A line for each epoch that the owner ended."""
    from tui.text import fmt

    return [
        f"{fmt.clean(one.project_name)} {one.project[:8]}: {former.tokens:,} tokens in "
        f"{fmt.plural(former.merges, 'merge')} up to record {former.log_index:,} of epoch "
        f"{former.epoch}, which the owner ended by going back"
        for former in one.former
    ]


@contributions_app.default
def show(
    *,
    everybody: Annotated[
        bool, switch("Everybody who gave, and teams, of the projects that run here.", name="--all")
    ] = False,
    json: Annotated[bool, switch("Print one JSON list.")] = False,
    home: HomeHere,
) -> int:
    """Show what this machine contributed to each project, by its newest receipts."""
    if everybody:
        from shoal.machine import leaderboard

        return leaderboard.show(home, as_json=json)
    found: list[Contribution] = []
    is_whole = True
    for path in home.contribution_files():
        opened = _opened(path)
        if isinstance(opened, str):
            failures.complain(f"{path} proves nothing: {opened}")
            is_whole = False
            continue
        found.append(contribution_of(opened, path))
    found.sort(key=lambda one: (-one.tokens, one.project, one.learner))
    if json:
        print(msgspec.json.encode(found).decode())
    elif found:
        console = writing.console()
        console.print(_table(found))
        for line in (line for one in found for line in _former_words(one)):
            console.print(line, highlight=False, markup=False, style="dim")
    elif is_whole:
        print(
            f"No receipts in {home.root / 'contributions'} yet. The first one comes with the first "
            "merge that a learner of this machine is in."
        )
    return ExitCode.DONE if is_whole else ExitCode.FAILED


def _table(found: Sequence[Contribution]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from tui.text import fmt

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("project", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("name", no_wrap=True, overflow="ellipsis", max_width=24)
    for title in ("tokens", "merges", "clipped"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("last receipt", no_wrap=True)
    for one in found:
        cells = (
            f"{fmt.clean(one.project_name)} {one.project[:8]}",
            fmt.clean(one.name),
            f"{one.tokens:,}",
            f"{one.merges:,}",
            f"{one.clipped:,}",
            fmt.date(one.at_s),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


@contributions_app.command
def verify(
    *files: Annotated[
        Path, option("Files of receipts, from anybody; those of this machine by default.")
    ],
    home: HomeHere,
) -> int:
    """Verify files of receipts without a syncer or the network, and say who signed what.

    Exit code 0: every byte is proven. 1: a file is altered, cut off or forged; the output says why.
    """
    chosen = list(files) or home.contribution_files()
    if not chosen:
        failures.complain(
            f"There is no file of receipts in {home.root / 'contributions'}. Name one: "
            "shoal contributions verify FILE"
        )
        return ExitCode.WRONG_INPUT
    is_whole = True
    for path in chosen:
        opened = _opened(path)
        if isinstance(opened, str):
            failures.complain(f"{path} proves nothing: {opened}")
            is_whole = False
        else:
            print("\n".join(_checked(path, opened)))
    return ExitCode.DONE if is_whole else ExitCode.FAILED


def _checked(path: Path, opened: OpenedBook) -> list[str]:
    from tui.text import fmt

    one = contribution_of(opened, path)
    signers = sorted({proven.signer.hex()[:8] for proven in opened.proven})
    owner = opened.genesis.owner.hex()[:8]
    charters = fmt.plural(len(opened.book.charters), "charter")
    return [
        f"{path}: every byte is proven",
        f"  {fmt.clean(one.name)} (key {one.learner[:8]}) gave {fmt.clean(one.project_name)} "
        f"{one.tokens:,} tokens in {fmt.plural(one.merges, 'merge')}, {one.clipped:,} of them "
        "clipped,",
        f"  up to record {one.log_index:,}, by the receipt of {fmt.date(one.at_s)}",
        f"  project    {one.project}: the hash of the genesis",
        f"  owner      {owner} of the genesis signed {charters}",
        f"  syncer     {', '.join(signers)} of the charter signed "
        f"{fmt.plural(one.receipts, 'receipt')}; no count ever decreases",
        f"  you        {one.learner[:8]} signed the file",
        *(f"  before     {line}" for line in _former_words(one)),
    ]


def _opened(path: Path) -> OpenedBook | str:
    """The book, or why there is none."""
    try:
        return read_book(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except RemoteError as error:
        return str(error)
