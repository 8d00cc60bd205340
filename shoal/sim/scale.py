"""What `shoal sim goodput`, `bandwidth`, `heterogeneous` and `scavenge` print and write."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter, validators
from rich import box
from rich.console import Console
from rich.table import Table

from protocol.errors import UserError
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
from simulator.scale import bandwidth as links
from simulator.scale import goodput as failures
from simulator.scale import heterogeneous as speeds
from simulator.scale import machines as driven
from simulator.scale import published
from simulator.scale import scavenge as borrowing
from simulator.scale.failures import FITTED, Costs

WIDTH = 80
CHIPS = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
LEARNERS = (1, 2, 4, 8, 16)


@Parameter(name="*")
@dataclass(frozen=True)
class CostFlags:
    """What a failure costs; what is not given is as it was fitted to the paper."""

    slices: Annotated[
        int | None, option("Groups of chips per learner that fail as one.", AtLeastOne)
    ] = None
    notice_s: Annotated[float | None, option("From a failure to the stop.", NotNegative)] = None
    shrink_s: Annotated[float | None, option("Stop to go on with fewer slices.", NotNegative)] = (
        None
    )
    grow_s: Annotated[float | None, option("Stop to take slices back in.", NotNegative)] = None
    return_s: Annotated[float | None, option("Until a failed slice is back.", NotNegative)] = None
    admit_s: Annotated[float | None, option("Wait for more slices to come back.", NotNegative)] = (
        None
    )
    restart_s: Annotated[float | None, option("Restart without elasticity.", NotNegative)] = None
    checkpoint_s: Annotated[
        float | None,
        option("Between checkpoints; work since is lost without elasticity.", NotNegative),
    ] = None


FITTED_COSTS = CostFlags()

Machines = Annotated[
    bool, option("Also run the machines themselves, in virtual time; seconds to minutes a row.")
]


def goodput(
    *,
    chips: Annotated[tuple[int, ...], several("Cluster sizes.", AtLeastOne)] = CHIPS,
    learners: Annotated[tuple[int, ...], several("Numbers of learners.", AtLeastOne)] = LEARNERS,
    mtbi_days: Annotated[
        float, option("Mean days between failures of one chip.", Positive)
    ] = 365.25,
    costs: CostFlags = FITTED_COSTS,
    quorum: Annotated[int, option("Learners that must step to count as up.", AtLeastOne)] = 1,
    machines: Machines = False,
    seed: Seed = 0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Prints goodput and uptime, the paper's value after the stroke; the exit code."""
    given = {name: value for name, value in asdict(costs).items() if value is not None}
    charged = replace(FITTED, **given)
    if len(chips) * len(learners) > 400:
        raise UserError("That is more than 400 cells. Ask for fewer --chips or --learners.")
    rows = failures.cells(
        chips, learners, mtbi_s=mtbi_days * 86_400, costs=charged, seed=seed, quorum=quorum
    )
    if machines:
        rows = [_run_cell(row, mtbi_days * 86_400, charged, quorum, seed) for row in rows]
    console = _console()
    for title, digits, pair in GOODPUT_TABLES:
        if machines or not title.endswith("machines"):
            _print_cells(console, rows, len(chips), title, digits, pair)
    fitted = "fitted" if charged == FITTED else "fitted, except what you set"
    told = ", ".join(f"{name} {value:g}" for name, value in asdict(charged).items())
    console.print(
        f"Parameters ({fitted}; return_s, slices and checkpoint_s are set; the paper gives "
        f"none): {told}.",
        soft_wrap=False,
    )
    off = failures.misfit(rows)
    if off is not None:
        console.print(f"Distance from the paper: rmse {off[0]:.2f}, at most {off[1]:.1f} points.")
    return write_rows(files, rows, lambda path: plots.goodput(rows, path))


Pair = Callable[[failures.Cell], tuple[float | None, float | None]]

GOODPUT_TABLES: tuple[tuple[str, int, Pair], ...] = (
    ("Goodput, % (model", 1, lambda row: (100 * row.goodput, row.paper_goodput)),
    (
        "Goodput, % (machines",
        1,
        lambda row: (_percent(row.machines_goodput), row.paper_goodput),
    ),
    (
        "Local steps merged, % (machines",
        0,
        lambda row: (_percent(row.machines_kept), None),
    ),
    ("Uptime, % (model", 0, lambda row: (100 * row.uptime, row.paper_uptime)),
)
"""Titles without what stands behind the stroke, digits, and the two values of a cell."""


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _run_cell(
    row: failures.Cell, mtbi_s: float, costs: Costs, quorum: int, seed: int
) -> failures.Cell:
    """The same with what the machines do; data parallel has none."""
    if row.method != failures.DECOUPLED:
        return row
    print(f"running {row.learners} learners on {row.chips:,} chips", file=sys.stderr)
    found = driven.failing(
        row.chips,
        row.learners,
        mtbi_s=mtbi_s,
        costs=costs,
        seed=seed,
        quorum=min(quorum, row.learners),
        steps=max(1, driven.LONG_STEPS * 4 // row.learners),
    )
    return replace(row, machines_goodput=found.goodput, machines_kept=found.kept)


def _print_cells(
    console: Console,
    rows: Sequence[failures.Cell],
    sizes: int,
    title: str,
    digits: int,
    pair: Pair,
) -> None:
    """One table over cluster sizes; rows without any value are left out."""
    has_paper = any(pair(row)[1] is not None for row in rows)
    chips = [plots.short(row.chips) for row in rows[:sizes]]
    table = table_of(f"{title}{' / paper' if has_paper else ''})", [""], chips)
    for at in range(0, len(rows), sizes):
        line = rows[at : at + sizes]
        name = line[0].method + (f" M={line[0].learners}" if line[0].learners > 1 else "")
        values = [pair(row) for row in line]
        shown = [_beside(ours, paper, digits) for ours, paper in values if ours is not None]
        if shown:
            table.add_row(name, *shown)
    console.print(table)


def bandwidth(
    *,
    parameters: Annotated[float, option("Parameters of the model.", Positive)] = (
        links.FITTED_PARAMETERS
    ),
    learners: Annotated[int, option("How many learners.", validators.Number(gte=2))] = 2,
    step_s: Annotated[float, option("Seconds per local step.", Positive)] = 1.0,
    sync_every: Annotated[
        int, option("Local steps between merges of a fragment (H).", AtLeastOne)
    ] = 24,
    fragments: Annotated[int, option("Fragments (P).", AtLeastOne)] = 24,
    overlap: Annotated[int, option("Steps in which a fragment may travel (tau).", AtLeastOne)] = 2,
    codecs: Annotated[tuple[links.Codec, ...], several("Formats on the wire.")] = (
        "bf16",
        "int8",
        "int4",
    ),
    utilisation: Annotated[
        tuple[float, ...],
        several("Shares of time that must be work.", validators.Number(gt=0, lt=1)),
    ] = (0.5, 0.75, 0.9, 0.95, 0.99),
    link_gbps: Annotated[float | None, option("Your link: what fits is marked.", Positive)] = None,
    machines: Machines = False,
    seed: Seed = 0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Prints Gb/s per method, codec and utilisation; the exit code."""
    link = links.Link(parameters, learners, step_s, sync_every, fragments, overlap)
    rows = links.needs(link, codecs, utilisation)
    if machines:
        rows = _run_links(rows, link, seed)
    console = _console()
    shares = (f"{100 * share:g} %" for share in utilisation)
    table = table_of("Gb/s per learner by utilisation (model / paper)", ["method", "codec"], shares)
    for at in range(0, len(rows), len(utilisation)):
        line = rows[at : at + len(utilisation)]
        table.add_row(line[0].method, line[0].codec, *(_need(row, link_gbps) for row in line))
    console.print(table)
    if link_gbps is not None:
        console.print(f"Green: a link of {link_gbps:g} Gb/s is enough.")
    console.print(
        f"{link.parameters:.3g} parameters (the default is fitted to the paper), "
        f"{link.learners} learners, {link.step_s:g} s per step."
    )
    if link == links.Link():
        at_once, ours = links.predicted_of_eight(), published.BANDWIDTH_OF_EIGHT_GBPS
        console.print(
            f"Where data parallel needs the {ours[0]:g} Gb/s printed for eight data centres, int4 "
            f"needs {at_once:.2f}; the paper says {ours[1]:g}. That is not fitted."
        )
    if machines:
        _print_links(console, rows)
    return write_rows(files, rows, lambda path: plots.bandwidth(rows, link_gbps, path))


def _run_links(rows: Sequence[links.Need], link: links.Link, seed: int) -> list[links.Need]:
    """The same with what the machines do on links as fast as that, and on ones twice as fast."""
    wanted = link.fragments / link.sync_every
    paces: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row.method != links.DECOUPLED or row.codec in paces:
            continue
        print(f"running {link.learners} learners with {row.codec}", file=sys.stderr)
        slow, fast = (
            driven.on_links(link, codec=row.codec, gbps=factor * row.gbps, seed=seed).pace / wanted
            for factor in (1.0, 2.0)
        )
        paces[row.codec] = slow, fast
    return [
        replace(row, machines_pace=paces[row.codec][0], machines_pace_doubled=paces[row.codec][1])
        if row.method == links.DECOUPLED
        else row
        for row in rows
    ]


def _print_links(console: Console, rows: Sequence[links.Need]) -> None:
    title = "Merges made, % of those wanted (machines)"
    table = table_of(title, ["codec"], ["on such a link", "on one twice as fast"])
    for row in {row.codec: row for row in rows if row.machines_pace is not None}.values():
        pair = row.machines_pace, row.machines_pace_doubled
        table.add_row(row.codec, *(f"{100 * share:.0f}" for share in pair if share is not None))
    console.print(table)


def heterogeneous(
    *,
    fast: Annotated[int, option("Fast learners.", AtLeastOne)] = 4,
    slow: Annotated[int, option("Slow learners.", NotNegative)] = 4,
    gap: Annotated[float, option("How much longer a slow step takes.", NotNegative)] = 0.18,
    variance: Annotated[
        float, option("Relative deviation of a step.", validators.Number(gte=0, lte=1))
    ] = 0.10,
    grace: Annotated[float, option("Steps that a merge waits for more.", NotNegative)] = 0.9,
    machines: Machines = False,
    seed: Seed = 0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Prints the three settings; the exit code."""
    mix = speeds.Mix(fast, slow, gap, variance, grace)
    rows = speeds.settings(mix, seed)
    if machines:
        rows = [_run_mix(row, mix, seed) for row in rows]
    console = _console()
    table = table_of(
        None,
        [""],
        ["goodput, %\n(model / paper)", "learners in\na merge, %", "merge after,\nsteps"],
    )
    for row in rows:
        paper = _beside(100 * row.goodput, row.paper_goodput)
        table.add_row(row.setting, paper, f"{100 * row.merged:.0f}", f"{row.merge_steps:.2f}")
    console.print(table)
    console.print(
        "No number is fitted. K = 1 is assumed never to wait. Steps are a fast learner's."
    )
    if machines:
        _print_mix(console, rows)
    return write_rows(files, rows, lambda path: plots.heterogeneous(rows, path))


def _run_mix(row: speeds.Setting, mix: speeds.Mix, seed: int) -> speeds.Setting:
    """The same with what the machines do."""
    print(f"running {row.setting}", file=sys.stderr)
    found = driven.mixed(
        [1.0] * mix.fast + [1.0 + mix.gap] * mix.slow,
        mix.variance,
        quorum=mix.fast + mix.slow if row.setting == "K = M" else 1,
        grace=min(1.0, mix.grace) if "grace" in row.setting else 0.0,
        seed=seed,
    )
    return replace(
        row,
        machines_goodput=found.goodput,
        machines_merged=found.merged,
        machines_merge_steps=found.merge_steps,
        machines_kept=found.kept,
    )


def _print_mix(console: Console, rows: Sequence[speeds.Setting]) -> None:
    names = [
        "goodput, %",
        "learners in\na merge, %",
        "merge after,\nsteps",
        "local steps\nmerged, %",
    ]
    table = table_of("By the machines", [""], names)
    for row in rows:
        shares = row.machines_goodput, row.machines_merged, row.machines_kept
        goodput, merged, kept = (f"{100 * share:.0f}" for share in shares if share is not None)
        table.add_row(row.setting, goodput, merged, f"{row.machines_merge_steps:.2f}", kept)
    console.print(table)
    console.print("A learner waits for nobody, whatever K is: only merges wait.")


def scavenge(
    *,
    extra: Annotated[
        tuple[float, ...], several("Extra machines; 1 is as many again.", NotNegative)
    ] = (0.0, 0.25, 0.5, 1.0, 3.0),
    share: Annotated[
        float, option("Share of the tokens trained with them.", validators.Number(gte=0, lte=1))
    ] = 0.5,
    change_s: Annotated[
        float, option("Seconds between changes, with as many again borrowed.", Positive)
    ] = 7.5,
    stop_s: Annotated[float, option("Stop of data parallel at a change.", NotNegative)] = 18.4,
    notice_s: Annotated[float, option("Changes this close share a stop.", NotNegative)] = 10.0,
    machines: Machines = False,
    seed: Seed = 0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Prints relative training times; the exit code."""
    lent = borrowing.Borrowing(share, change_s, stop_s, notice_s)
    rows = borrowing.speedups(lent, extra)
    if machines:
        rows = _run_borrowing(rows, share, seed)
    console = _console()
    names = ["extra machines", "DP", "Decoupled", *(["by the\nmachines"] if machines else [])]
    table = table_of("Training time (model / paper)", [], names)
    for row in rows:
        pairs = ((row.dp, row.paper_dp), (row.decoupled, row.paper_decoupled))
        shown = [
            f"{ours:.2f}" + ("" if paper is None else f" / {paper:.2f}") for ours, paper in pairs
        ]
        if row.machines_decoupled is not None:
            shown.append(f"{row.machines_decoupled:.2f}")
        table.add_row(f"+{100 * row.extra:g} %", *shown)
    console.print(table)
    console.print(
        f"DP stops {lent.stop_s:g} s at a change, one each {lent.change_s:g} s at +100 % "
        "(both defaults fitted to the paper's row)."
    )
    return write_rows(files, rows, lambda path: plots.scavenge(rows, path))


def _run_borrowing(
    rows: Sequence[borrowing.Speedup], share: float, seed: int
) -> list[borrowing.Speedup]:
    """The same with what the machines do, to themselves without any more machines."""
    alone_s = driven.borrowed(driven.BASE_LEARNERS, 0, share, seed=seed)
    found = []
    for row in rows:
        more = round(driven.BASE_LEARNERS * row.extra)
        print(f"running {driven.BASE_LEARNERS} learners and {more} more", file=sys.stderr)
        took_s = driven.borrowed(driven.BASE_LEARNERS, more, share, seed=seed)
        found.append(replace(row, machines_decoupled=took_s / alone_s))
    return found


def _console() -> Console:
    return Console(width=WIDTH, highlight=False)


def table_of(title: str | None, names: Iterable[str], numbers: Iterable[str]) -> Table:
    """An empty one with columns of words, then of numbers."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _beside(percent: float, paper: float | None, digits: int = 1) -> str:
    shown = f"{percent:.{digits}f}"
    return shown if paper is None else f"{shown} / {paper:.0f}"


def _need(row: links.Need, link_gbps: float | None) -> str:
    text = f"{row.gbps:.3g}" + ("" if row.paper_gbps is None else f" / {row.paper_gbps:g}")
    return f"[green]{text}[/green]" if link_gbps is not None and row.gbps <= link_gbps else text


def write_rows(files: Files, rows: Sequence[Any], draw: Callable[[Path], None]) -> int:
    """Writes the rows wherever that was asked for; the exit code. UserError if a file cannot be."""
    lines = [msgspec.to_builtins(row) for row in rows]
    for path, flag, save in (
        (
            files.json,
            "--json",
            lambda at: at.write_bytes(msgspec.json.format(msgspec.json.encode(lines))),
        ),
        (files.csv, "--csv", lambda at: at.write_text(_as_csv(lines))),
        (files.plot, "--plot", draw),
    ):
        if path is None:
            continue
        try:
            save(path)
        except OSError as error:
            raise UserError(
                f"Cannot write {path}: {error.strerror or error}. Give {flag} another file."
            ) from error
        print(f"Wrote {path}")
    return ExitCode.DONE


def _as_csv(lines: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if lines:
        writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()
