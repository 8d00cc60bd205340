"""The `syncer ledger` verb: the ledgers of this home as a table, JSON or CSV.

A running syncer is asked; without one the ledger is folded from the log on its disk, which says the
same up to the record that it ends with.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from host.control import client
from host.files.home import DEFAULT_INSTANCE, Home
from host.files.signed_project import read_signed
from protocol import decoders
from protocol.errors import RemoteError, ShoalError, UserError
from protocol.status import ContributorRow
from shoal.common import writing
from shoal.common.choices import HomeHere, Instance, switch
from shoal.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from syncer_node.storage.ledger import Ledger

ANSWER_S = 10.0
COLUMNS = (
    "project", "epoch", "record", "key", "name", "tokens", "fragment tokens", "merges", "clipped",
    "refused", "reasons", "last merged",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that spreadsheets take for more than text."""


def ledger(
    *,
    json: Annotated[bool, switch("Print it as JSON.")] = False,
    csv_path: Annotated[
        Path | None, Parameter(name="--csv", help="Write it to this file as CSV.")
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Shows every ledger of this instance; WRONG_INPUT if there is none."""
    ledgers = read_ledgers(home, instance)
    if csv_path is not None:
        _write_csv(csv_path, ledgers)
        told = sum(len(one.contributors) for one in ledgers)
        # With --json the answer on stdout is JSON and nothing else.
        print(f"wrote {told} contributors to {csv_path}", file=sys.stderr if json else None)
    if json:
        print(msgspec.json.encode(ledgers).decode())
    if not json and csv_path is None:
        _print(ledgers)
    return ExitCode.DONE


def read_ledgers(home: Home, instance: str) -> list[Ledger]:
    """A ledger of each project that this syncer works or worked for. UserError without any."""
    from syncer_node.storage.ledger import ledger_of, read_state

    asked = _ask(home, instance)
    ledgers = [] if asked is None else [asked]
    for path in home.hosted_projects(instance):
        project = read_signed(path)
        if asked is not None and asked.project == project.id.hex():
            continue
        store = home.syncer_store(project.id, instance)
        try:
            state = read_state(store, project)
        except (OSError, RemoteError, ShoalError) as error:
            raise UserError(
                f"The log in {store} cannot be read: {error}. Start the syncer with: "
                "shoal syncer run; it says what is damaged and what to do."
            ) from error
        ledgers.append(ledger_of(project, state, (), time.time()))
    if not ledgers:
        raise UserError(
            f"No syncer called {instance!r} has a log in {home.root}. Start one with: "
            "shoal syncer run PROJECT"
        )
    return ledgers


def _ask(home: Home, instance: str) -> Ledger | None:
    """What the running syncer says; None without one, or where it does not answer."""
    from syncer_node.storage.ledger import Ledger

    socket = home.socket("syncer", instance)
    if not socket.exists():
        return None
    try:
        answer = client.call(socket, "ledger", ANSWER_S)
        return decoders.convert(answer.get("ledger"), Ledger)
    except (ShoalError, msgspec.ValidationError):
        print("no syncer answers here, so this comes from its disk", file=sys.stderr)
        return None


def _print(ledgers: Sequence[Ledger]) -> None:
    from rich.text import Text

    from tui.text import fmt

    console = writing.console()
    for one in ledgers:
        heading = f"{fmt.clean(one.project_name)} {one.project[:8]}"
        console.print(Text(heading, style="bold"))
        tokens = one.fragment_tokens // max(1, one.fragments)
        told = (
            f"{fmt.plural(len(one.contributors), 'contributor')}: {tokens:,} tokens in "
            f"{fmt.plural(one.merges, 'merge')}, {fmt.plural(one.refused, 'push', 'pushes')} "
            "not counted",
            f"epoch {one.epoch}, up to record {one.log_index:,} ({one.head[:8]}), "
            f"read {fmt.date(one.at_s)}",
        )
        console.print("\n".join(told), highlight=False)
        if one.contributors:
            console.print(_table(one.contributors))


def _table(rows: Sequence[ContributorRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from tui.text import fmt

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("name", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("key", no_wrap=True)
    for title in ("tokens", "merges", "clipped"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("not counted", overflow="fold")
    for place, row in enumerate(rows, start=1):
        cells = (
            f"{place}",
            fmt.clean(row.name),
            row.key[:8],
            f"{row.tokens:,}",
            f"{row.merges:,}",
            f"{row.clipped:,}",
            fmt.tally(row.refused),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _write_csv(path: Path, ledgers: Sequence[Ledger]) -> None:
    with writing.writing(path), path.open("w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerow(COLUMNS)
        for one in ledgers:
            for row in one.contributors:
                rows.writerow((one.project, one.epoch, one.log_index, *_cells(row)))


def _cells(row: ContributorRow) -> tuple[str | int, ...]:
    from tui.text import fmt

    name = f"'{row.name}" if row.name.startswith(FORMULA) else row.name
    merged = fmt.date(row.merged_at_s) if row.merged_at_s else ""
    counts = (row.tokens, row.fragment_tokens, row.merges, row.clipped)
    refused = (sum(row.refused.values()), fmt.tally(row.refused))
    return (row.key, name, *counts, *refused, merged)
