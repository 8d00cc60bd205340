"""The `syncer ledger` verb: the ledgers of this home as a table, JSON or CSV.

A running syncer is asked to write its ledger down first; without one the file tells how things were
when it stopped, and says of which record that is.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from node.host import control_client
from node.host.home import Home
from protocol.errors import CorruptState, ShoalError, UserError
from protocol.status import ContributorRow
from shoal import failures
from shoal.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from syncer_node.ledger import StoredLedger

_NOT_A_TERMINAL_CHARS = 100
COLUMNS = ("project", "key", "name", "tokens", "merges", "clipped", "not counted", "seen")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that spreadsheets take for more than text."""


def ledger(home: Home, *, instance: str, as_json: bool, csv_path: Path | None) -> int:
    """Shows every ledger of this instance; WRONG_INPUT if there is none."""
    from syncer_node.ledger import read_ledger

    _refresh(home, instance)
    paths = home.ledgers(instance)
    if not paths:
        raise UserError(
            f"No syncer called {instance!r} has kept a ledger in {home.root}. Start one with: "
            "shoal syncer run PROJECT"
        )
    ledgers = []
    for path in paths:
        try:
            ledgers.append(read_ledger(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}).") from error
        except CorruptState as error:
            raise UserError(
                f"{error}. Start the syncer: it puts the file aside and makes a new one, with the "
                "log's totals."
            ) from error
    if csv_path is not None:
        _write_csv(csv_path, ledgers)
        print(f"wrote {sum(len(one.contributors) for one in ledgers)} contributors to {csv_path}")
    if as_json:
        print(msgspec.json.encode(ledgers).decode())
    if not as_json and csv_path is None:
        _print(ledgers)
    return ExitCode.DONE


def _refresh(home: Home, instance: str) -> None:
    """Have the running syncer write down how things are now."""
    socket = home.root / "run" / f"syncer-{instance}.sock"
    if not socket.exists():
        return
    try:
        control_client.call(socket, "ledger")
    except ShoalError as error:
        failures.complain(f"The syncer does not answer, so this is what it kept last: {error}")


def _print(ledgers: Sequence[StoredLedger]) -> None:
    from rich.console import Console
    from rich.text import Text

    from tui.words import clean, plural

    console = Console(width=None if sys.stdout.isatty() else _NOT_A_TERMINAL_CHARS)
    for one in ledgers:
        heading = f"{clean(one.project_name)} {one.project[:8]}"
        console.print(Text(heading, style="bold"))
        console.print(
            f"{plural(len(one.contributors), 'contributor')}, up to record {one.log_index:,}, "
            f"as of {_date(one.at_s)}",
            highlight=False,
        )
        if one.contributors:
            console.print(_table(one.contributors))


def _table(rows: Sequence[ContributorRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from tui import words

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
            words.clean(row.name),
            row.key[:8],
            f"{row.tokens:,}",
            f"{row.merges:,}",
            f"{row.clipped:,}",
            words.tally(row.not_counted),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _write_csv(path: Path, ledgers: Sequence[StoredLedger]) -> None:
    from tui import words

    try:
        with path.open("w", newline="", encoding="utf-8") as handle:
            rows = csv.writer(handle)
            rows.writerow(COLUMNS)
            for one in ledgers:
                for row in one.contributors:
                    name = f"'{row.name}" if row.name.startswith(FORMULA) else row.name
                    refused = words.tally(row.not_counted)
                    seen = _date(row.seen_at_s) if row.seen_at_s else ""
                    counts = (row.tokens, row.merges, row.clipped)
                    rows.writerow((one.project, row.key, name, *counts, refused, seen))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from error


def _date(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s)) + " UTC"
