"""`shoal sim honest`: what earned trust costs where nobody lies, with one real model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from host.files.home import Home
from protocol.errors import UserError
from protocol.project import TrustRule
from shoal.common import choices
from shoal.project.project_file import ProjectFile
from shoal.sim import many_runs, run_progress, trial_project
from shoal.sim.attack_grid import Defence
from shoal.sim.scale import write_rows
from simulator.compare.setting import Setting

if TYPE_CHECKING:
    from simulator.attack.honest import HonestRun

RULES: tuple[TrustRule, ...] = ("all", "earned")
LEGEND = (
    "loss: held-out, nats per token, where trust is earned, once as many tokens as the budget has "
    "were handed in; to all: its ratio to the same run in which all pushes count; doubted: pushes "
    "that counted less than half where trust is earned; refused: pushes that were called a false "
    "claim, under either rule."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run to be done."""

    mixture: str
    trust: TrustRule
    setting: Setting


class HonestRow(Struct, frozen=True, kw_only=True):
    """What became of one run."""

    mixture: str
    trust: TrustRule
    learners: int
    steps: int
    seed: int
    eval_loss: float
    merges: int
    pushes: int
    doubted: int
    refused: int


def run(
    mixtures: Annotated[
        tuple[str, ...],
        Parameter(help="Which ones: alike, slow, kind; all by default.", negative=""),
    ] = (),
    *,
    learners: Annotated[int, choices.option("Learners.", choices.AtLeastOne)] = 4,
    steps: Annotated[
        int, choices.option("Local steps of each learner: the budget.", choices.AtLeastOne)
    ] = 120,
    seeds: Annotated[int, choices.option("Paired seeds.", choices.AtLeastOne)] = 3,
    seed: Annotated[int, choices.option("The first of them.", choices.NotNegative)] = 1,
    project: Annotated[
        Path | None, choices.option("A project file to train, instead of the built-in one.")
    ] = None,
    set: many_runs.Changes = (),
    jobs: many_runs.Jobs = None,
    files: choices.Files = choices.TERMINAL_ONLY,
    home: choices.HomeHere,
) -> int:
    """Trains each mixture and seed twice: where all pushes count, and where trust is earned."""
    from shoal.sim import plots
    from simulator.attack.honest import MIXTURES

    console = Console()
    for name in mixtures:
        if name not in MIXTURES:
            raise UserError(f"There is no mixture {name!r}. There are: {', '.join(MIXTURES)}.")
    cells = [
        Cell(name, trust, Setting(seed=at, learners=learners, steps=steps))
        for at in range(seed, seed + seeds)
        for name in mixtures or MIXTURES
        for trust in RULES
    ]
    found: dict[Cell, HonestRow] = {}
    built_in = trial_project.SHORT if project is None else ()
    file = trial_project.read(project, [*built_in, *set])
    with run_progress.bars(console, len(cells)) as watch:
        for cell, row in many_runs.results(train_one, cells, file, home, jobs):
            found[cell] = row
            watch(f"{cell.mixture}, trust {cell.trust}, seed {cell.setting.seed}")(1.0)
    rows = [found[cell] for cell in cells]
    _show(console, rows)
    return write_rows(files, rows, lambda path: plots.honest(ratios(rows), path))


def train_one(task: tuple[Cell, ProjectFile, Home]) -> tuple[Cell, HonestRow]:
    """A whole run."""
    from simulator.attack.honest import MIXTURES, train
    from simulator.attack.trial import silent
    from simulator.compare.bench import open_bench

    cell, file, home = task
    genesis, charter = trial_project.sign(file, cell.setting, home)
    bench = open_bench(genesis, Defence(cell.trust).charter(charter), home.data_cache())
    return cell, _row(cell, train(bench, cell.setting, MIXTURES[cell.mixture], silent))


def _row(cell: Cell, done: HonestRun) -> HonestRow:
    return HonestRow(
        mixture=cell.mixture,
        trust=cell.trust,
        learners=cell.setting.learners,
        steps=cell.setting.steps,
        seed=cell.setting.seed,
        eval_loss=done.loss,
        merges=done.merges,
        pushes=done.pushes,
        doubted=done.doubted,
        refused=done.refused,
    )


def ratios(rows: Sequence[HonestRow]) -> dict[str, list[float]]:
    """By mixture, of each seed: the loss where trust is earned to that where all count."""
    plain = {(row.mixture, row.seed): row.eval_loss for row in rows if row.trust == "all"}
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.trust == "earned":
            ratio = row.eval_loss / plain[row.mixture, row.seed]
            found.setdefault(row.mixture, []).append(ratio)
    return found


def _show(console: Console, rows: Sequence[HonestRow]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mixture", no_wrap=True)
    for name in ("loss", "to all", "least", "most", "doubted", "refused"):
        table.add_column(name, justify="right", no_wrap=True)
    for mixture, each in ratios(rows).items():
        mine = [row for row in rows if row.mixture == mixture]
        earned = [row for row in mine if row.trust == "earned"]
        table.add_row(
            mixture,
            f"{fmean(row.eval_loss for row in earned):.4f}",
            f"{fmean(each):.4f}",
            f"{min(each):.4f}",
            f"{max(each):.4f}",
            f"{sum(row.doubted for row in earned):,} of {sum(row.pushes for row in earned):,}",
            f"{sum(row.refused for row in mine):,}",
        )
    console.print(table)
    console.print()
    console.print(LEGEND)
