"""`shoal sim attack`: some learners lie, and what that does to one real model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter, validators
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from host.files.home import Home
from protocol.errors import UserError
from protocol.project import TrustRule
from shoal.common import choices
from shoal.project.project_file import ProjectFile
from shoal.sim import run_progress, trial_project
from shoal.sim.scale import write_rows
from simulator.compare.setting import Setting

if TYPE_CHECKING:
    from simulator.attack.trial import Trial

NOBODY = "nobody"
"""The run without liars, to which the others are compared."""


class AttackRow(Struct, frozen=True, kw_only=True):
    """One run."""

    attack: str
    trust: TrustRule
    seed: int
    eval_loss: float
    ratio: float
    """Of the loss to that of the same seed and rule without liars."""
    liar_share: float
    named_after: int | None
    """Merged pushes of the first liar until one counted less than half."""
    honest_doubted: int
    honest_pushes: int


@dataclass(frozen=True, slots=True)
class _Planned:
    attack: str
    trust: TrustRule
    setting: Setting


def run(
    attacks: Annotated[
        tuple[str, ...],
        Parameter(help="Which ones; all by default. A wrong name lists them.", negative=""),
    ] = (),
    *,
    learners: Annotated[
        int, choices.option("Learners, liars among them.", validators.Number(gte=2, lte=64))
    ] = 4,
    liars: Annotated[
        int | None,
        choices.option("How many lie; a quarter by default.", choices.AtLeastOne),
    ] = None,
    steps: Annotated[
        int, choices.option("Local steps of each learner: the budget.", choices.AtLeastOne)
    ] = 300,
    seeds: Annotated[int, choices.option("Paired seeds.", choices.AtLeastOne)] = 3,
    seed: Annotated[int, choices.option("The first of them.", choices.NotNegative)] = 1,
    trust: Annotated[
        tuple[TrustRule, ...], Parameter(help="Rules of trust to try.", negative="")
    ] = ("all", "earned"),
    project: Annotated[
        Path | None, choices.option("A project file to attack, instead of the built-in one.")
    ] = None,
    set: Annotated[
        tuple[str, ...],
        Parameter(
            help="KEY=VALUE: change the built-in project, as in rounds.quorum=3; repeatable.",
            negative="",
        ),
    ] = (),
    json: Annotated[Path | None, choices.option("Also write the rows as JSON.")] = None,
    csv: Annotated[Path | None, choices.option("Also write the rows as CSV.")] = None,
    home: choices.HomeHere,
) -> int:
    """Trains once without liars for each seed and rule, and then once for each attack."""
    from simulator.attack.forgeries import FORGERIES

    unknown = [name for name in attacks if name not in FORGERIES]
    if unknown:
        raise UserError(f"There is no attack {unknown[0]!r}. There are: {', '.join(FORGERIES)}.")
    hostile = liars if liars is not None else max(1, learners // 4)
    if hostile >= learners:
        raise UserError(f"{hostile} of {learners} learners cannot lie: somebody must be honest.")
    file = trial_project.read(project, set)
    plan = [
        _Planned(attack, rule, Setting(seed=one, learners=learners, steps=steps))
        for one in range(seed, seed + seeds)
        for rule in trust
        for attack in (NOBODY, *(attacks or FORGERIES))
    ]
    console = Console()
    found: dict[_Planned, Trial] = {}
    with run_progress.bars(console, len(plan)) as watch:
        for one in plan:
            tell = watch(f"{one.attack}, trust {one.trust}, seed {one.setting.seed}")
            found[one] = _do(one, file, hostile, home, tell)
    rows = list(_rows(found))
    _show(console, rows, f"{hostile} of {learners} learners lie")
    return write_rows(choices.Files(json, csv), rows, lambda path: None)


def _do(
    one: _Planned, file: ProjectFile, liars: int, home: Home, tell: Callable[[float], None]
) -> Trial:
    from simulator.attack.forgeries import FORGERIES
    from simulator.attack.trial import attempt
    from simulator.compare.bench import open_bench

    honest = one.setting.learners - liars
    # The learning rate falls with the tokens that count: liars' do where all are trusted.
    is_counted = one.attack != NOBODY and one.trust == "all"
    counted = one.setting.learners if is_counted else honest
    genesis, charter = trial_project.sign(file, one.setting, home, learners=counted)
    outer = msgspec.structs.replace(charter.outer, trust=one.trust)
    bench = open_bench(genesis, msgspec.structs.replace(charter, outer=outer), home.data_cache())
    if one.attack == NOBODY:
        setting = dataclasses.replace(one.setting, learners=honest)
        return attempt(bench, setting, 0, FORGERIES["flip-1"], tell)
    return attempt(bench, one.setting, liars, FORGERIES[one.attack], tell)


def _rows(found: dict[_Planned, Trial]) -> Iterator[AttackRow]:
    for one, trial in found.items():
        quiet = found[_Planned(NOBODY, one.trust, one.setting)]
        yield AttackRow(
            attack=one.attack,
            trust=one.trust,
            seed=one.setting.seed,
            eval_loss=trial.loss,
            ratio=trial.loss / quiet.loss,
            liar_share=trial.liar_share,
            named_after=trial.pushes_until_named,
            honest_doubted=trial.honest_doubted,
            honest_pushes=trial.honest_pushes,
        )


def _show(console: Console, rows: Sequence[AttackRow], caption: str) -> None:
    """All seeds of an attack under a rule in one line: means, and the latest naming."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=caption)
    for name in ("attack", "trust"):
        table.add_column(name, no_wrap=True)
    for name in ("held-out loss", "to nobody", "liars' share", "named after", "honest doubted"):
        table.add_column(name, justify="right")
    ordered = sorted(rows, key=lambda row: row.trust)
    for rule, of_rule in groupby(ordered, key=lambda row: row.trust):
        for attack, same in groupby(
            sorted(of_rule, key=lambda row: (row.attack != NOBODY, row.attack)),
            key=lambda row: row.attack,
        ):
            table.add_row(attack, rule, *_means(list(same)))
    console.print(table)


def _means(rows: Sequence[AttackRow]) -> list[str]:
    from tui.text import fmt

    named = [row.named_after for row in rows]
    latest = "never"
    if None not in named:
        latest = fmt.plural(max(n for n in named if n is not None), "push", "pushes")
    is_quiet = rows[0].attack == NOBODY
    pushes = sum(row.honest_pushes for row in rows)
    return [
        f"{fmean(row.eval_loss for row in rows):.4f}",
        "" if is_quiet else f"{fmean(row.ratio for row in rows):.3f}",
        "" if is_quiet else f"{100 * fmean(row.liar_share for row in rows):.1f} %",
        "" if is_quiet else latest,
        f"{sum(row.honest_doubted for row in rows)} of {pushes:,}",
    ]
