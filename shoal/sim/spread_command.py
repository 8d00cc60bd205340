"""What `shoal sim spread` prints and writes: how merged payloads reach many learners."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import validators
from rich.console import Console

from shoal.common.choices import (
    TERMINAL_ONLY,
    AtLeastOne,
    Files,
    NotNegative,
    Positive,
    Seed,
    option,
    several,
)
from shoal.common.exit_codes import ExitCode
from shoal.sim import plots
from shoal.sim.scale import WIDTH, table_of, write_rows
from simulator.scale.spread import Crowd, Found, spread

SHARE = validators.Number(gte=0, lt=1)


def run(
    *,
    learners: Annotated[tuple[int, ...], several("Numbers of learners.", AtLeastOne)] = (
        100,
        300,
        1000,
    ),
    syncers: Annotated[int, option("Hosts that merge.", AtLeastOne)] = 1,
    parameters: Annotated[float, option("Parameters of the model.", Positive)] = 1e8,
    fragments: Annotated[int, option("Fragments (P).", AtLeastOne)] = 24,
    participants: Annotated[int, option("Learners in a merge.", NotNegative)] = 64,
    merge_s: Annotated[float, option("Seconds from a merge to the next.", Positive)] = 2.0,
    merges: Annotated[int, option("How many, besides the first four.", AtLeastOne)] = 24,
    up_mbps: Annotated[float, option("A learner's line, up.", Positive)] = 20.0,
    down_mbps: Annotated[float, option("A learner's line, down.", Positive)] = 100.0,
    syncer_gbps: Annotated[float, option("A syncer's line.", Positive)] = 1.0,
    away: Annotated[float, option("Share that the log has and that is gone.", SHARE)] = 0.0,
    liars: Annotated[float, option("Share that promises and never gives.", SHARE)] = 0.0,
    seed: Seed = 1,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Prints a line for each number of learners; the exit code."""
    rows: list[Found] = []
    for count in learners:
        print(f"{count} learners", file=sys.stderr)
        crowd = Crowd(
            learners=count,
            syncers=syncers,
            parameters=parameters,
            fragments=fragments,
            participants=participants,
            merge_s=merge_s,
            merges=merges,
            up_mbps=up_mbps,
            down_mbps=down_mbps,
            syncer_gbps=syncer_gbps,
            away=away,
            liars=liars,
        )
        rows.append(spread(crowd, seed))
    _print(rows)
    written = write_rows(files, rows, lambda path: plots.spread(rows, path))
    return written or (ExitCode.FAILED if any(row.missing for row in rows) else ExitCode.DONE)


def _print(rows: list[Found]) -> None:
    names = ["copies", "most", "half", "all", "slowest", "given", "line", "alone"]
    table = table_of("Merged payloads", ["learners"], names)
    for row in rows:
        table.add_row(
            f"{row.learners:,}",
            f"{row.copies:.1f}",
            str(row.copies_max),
            f"{row.median_s:.1f}",
            f"{row.last_s:.1f}",
            f"{row.last_max_s:.1f}",
            f"{row.up_copies_max:.2f}",
            f"{100 * row.syncer_busy:.0f}",
            f"{row.alone_s:.1f}",
        )
    console = Console(width=WIDTH)
    console.print(table)
    console.print(
        "Copies: of a payload, by its syncer. Half, all: seconds until so many have it. Given: "
        "copies for each merge, by the learner that gave most. Line: % of the first syncer's, "
        "records included. Alone: seconds of a syncer's line for a copy to everybody."
    )
