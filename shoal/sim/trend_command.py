"""`shoal sim trend`: what comparisons found so far, by size of the model and by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from protocol.errors import UserError
from shoal.common import choices
from shoal.sim import plots
from shoal.sim.scale import write_rows

if TYPE_CHECKING:
    from simulator.compare.trend import Place


def run(
    results: Annotated[
        tuple[Path, ...],
        Parameter(
            help="Folders of results, or files that `--csv` of `shoal sim compare` wrote;"
            " `comparison` by default.",
            negative="",
        ),
    ] = (),
    *,
    only: Annotated[
        tuple[str, ...],
        choices.several("This algorithm, beside data parallelism; repeatable. All by default."),
    ] = (),
    over: Annotated[
        Literal["tokens", "merges"],
        choices.option(
            "What the plot goes along: tokens per parameter, or merges of each fragment."
        ),
    ] = "tokens",
    files: choices.Files = choices.TERMINAL_ONLY,
) -> int:
    """Shows the distance to data parallelism of everything that was run."""
    from simulator.compare.trend import places, results_in

    told = [one for path in results or (Path("comparison"),) for one in results_in(path)]
    found = places(one for one in told if not only or one.algorithm in ("dp", *only))
    if not found:
        raise UserError(
            "There are no runs there that tell the size of their model. `shoal sim compare"
            " --results FOLDER` makes them; those of former versions do not tell it."
        )
    _show(found)
    return write_rows(files, found, lambda path: plots.trend(found, over, path))


def _show(found: Sequence[Place]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("size", "tokens", "times size", "tokens a step"):
        table.add_column(name, justify="right")
    table.add_column("algorithm", no_wrap=True)
    for name in ("H", "seeds", "held-out loss"):
        table.add_column(name, justify="right")
    table.add_column("to dp, %", justify="right", no_wrap=True)
    for one in found:
        spread = f" ± {100 * one.ratio_spread:.1f}" if one.ratio_spread else ""
        ratio = "" if one.ratio_to_dp is None else f"{100 * (one.ratio_to_dp - 1):+.1f}{spread}"
        table.add_row(
            f"{one.parameters / 1e6:.2f} M",
            f"{one.tokens / 1e6:.1f} M",
            f"{one.tokens / one.parameters:.1f}",
            f"{one.batch_tokens:,}",
            one.algorithm,
            str(one.local_steps or ""),
            str(one.seeds),
            f"{one.eval_loss:.4f}",
            "" if one.algorithm == "dp" else ratio,
        )
    Console().print(table)
