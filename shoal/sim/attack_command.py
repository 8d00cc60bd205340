"""`shoal sim attack`: some learners lie, and what that does to one real model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from protocol.errors import UserError
from protocol.project import TrustRule
from shoal.common import choices
from shoal.common.exit_codes import ExitCode
from shoal.sim import attack_grid, many_runs, plots, run_progress, trial_project
from shoal.sim.attack_grid import NOBODY, AttackRow, Defence, Quorum
from shoal.sim.scale import write_rows

if TYPE_CHECKING:
    from simulator.attack.trial import Trial

BAR = 1.01
"""A loss up to this share of that without liars is what another seed would change as well."""

LEGEND = (
    "loss: held-out, nats per token; to nobody: its ratio to the same run without liars; worst: of "
    "all seeds; share: what liars added of all that was merged, by length; named: after so many "
    "merged pushes one of the first liar counted less than half; suspended: after so many it was, "
    "and honest learners that were; doubted: honest pushes that did; pushes: in a merge."
)

COLUMNS = "loss", "to nobody", "worst", "share", "named", "suspended", "doubted", "pushes"

PROBES = "outer.probes_frac=4.0"
"""In the small project a push has so little text that one probe costs more than it: with the share
that real projects have, nobody would be probed within a run."""

LEARNERS_MAX = 64
QUORUMS: tuple[Quorum, ...] = ("set", "one", "half", "all")


@Parameter(name="*")
@dataclass(frozen=True)
class Grid:
    """The swarms that are attacked."""

    learners: Annotated[
        str, choices.option("Learners, liars among them; several with commas: 4,8,16.")
    ] = "4"
    liars: Annotated[
        int | None,
        choices.option("How many lie; a quarter by default.", choices.AtLeastOne),
    ] = None
    quorum: Annotated[
        str,
        choices.option("Pushes per merge: one, half, all, or set, as the project has it; or some."),
    ] = "set"
    steps: Annotated[
        int, choices.option("Local steps of each learner: the budget.", choices.AtLeastOne)
    ] = 300
    seeds: Annotated[int, choices.option("Paired seeds.", choices.AtLeastOne)] = 3
    seed: Annotated[int, choices.option("The first of them.", choices.NotNegative)] = 1

    def cells(self, attacks: Sequence[str], defences: Sequence[Defence]) -> list[attack_grid.Cell]:
        """All runs. UserError for numbers that cannot be."""
        return attack_grid.plan(
            attacks,
            defences,
            learners=[_number(one) for one in _split(self.learners)],
            liars=lambda count: _hostile(self.liars, count),
            quorums=[_quorum(name) for name in _split(self.quorum)],
            seeds=range(self.seed, self.seed + self.seeds),
            steps=self.steps,
        )


AS_USUAL = Grid()


def run(
    attacks: Annotated[
        tuple[str, ...],
        Parameter(help="Which ones; all by default. --list names them.", negative=""),
    ] = (),
    *,
    grid: Grid = AS_USUAL,
    trust: Annotated[
        tuple[TrustRule, ...], Parameter(help="Rules of trust to try.", negative="")
    ] = ("all", "earned"),
    without: Annotated[
        str, choices.option("Also leave out this layer of earned trust; several with commas.")
    ] = "",
    project: Annotated[
        Path | None, choices.option("A project file to attack, instead of the built-in one.")
    ] = None,
    set: many_runs.Changes = (),
    jobs: many_runs.Jobs = None,
    list: Annotated[bool, choices.switch("List attacks and layers, and do nothing.")] = False,
    files: choices.Files = choices.TERMINAL_ONLY,
    home: choices.HomeHere,
) -> int:
    """Trains once without liars for each seed and defence, and then once for each attack."""
    from simulator.attack.attacks import ATTACKS
    from simulator.attack.layers import LAYERS

    console = Console()
    if list:
        _list(console)
        return ExitCode.DONE
    left_out = [_known(name, LAYERS, "layer") for name in _split(without)]
    cells = grid.cells(
        [_known(name, ATTACKS, "attack") for name in attacks] or [*ATTACKS],
        [*map(Defence, trust), *(Defence("earned", name) for name in left_out)],
    )
    built_in = (*trial_project.SHORT, PROBES) if project is None else ()
    file = trial_project.read(project, [*built_in, *set])
    found: dict[attack_grid.Cell, Trial] = {}
    with run_progress.bars(console, len(cells)) as watch:
        for cell, trial in many_runs.results(attack_grid.attempt_one, cells, file, home, jobs):
            found[cell] = trial
            watch(str(cell))(1.0)
    rows = attack_grid.rows(found, cells)
    _show(console, rows)
    lied = [row for row in rows if row.attack != NOBODY]
    return write_rows(files, rows, lambda path: plots.attacks(lied, BAR, path))


# -------------------------------------------------------------------------------- what was asked


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _known(name: str, names: Iterable[str], kind: str) -> str:
    if name not in names:
        raise UserError(f"There is no {kind} {name!r}. There are: {', '.join(names)}.")
    return name


def _quorum(name: str) -> Quorum:
    for one in QUORUMS:
        if one == name:
            return one
    raise UserError(f"--quorum {name}: it is one of {', '.join(QUORUMS)}.")


def _number(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= LEARNERS_MAX:
        raise UserError(
            f"--learners {text}: give numbers from 2 to {LEARNERS_MAX}, with commas between them."
        )
    return int(text)


def _hostile(liars: int | None, learners: int) -> int:
    """How many of so many lie."""
    hostile = liars if liars is not None else max(1, learners // 4)
    if hostile >= learners:
        raise UserError(f"{hostile} of {learners} learners cannot lie: somebody must be honest.")
    return hostile


# ------------------------------------------------------------------------------------ what is seen


def _list(console: Console) -> None:
    from simulator.attack.attacks import ATTACKS
    from simulator.attack.layers import LAYERS

    for title, lines in (("attack", ATTACKS), ("--without", LAYERS)):
        table = _table(None)
        table.add_column(title, no_wrap=True)
        table.add_column("what each attacker hands in or does" if lines is ATTACKS else "the layer")
        for name, one in lines.items():
            table.add_row(name, one.about)
        console.print(table)
        console.print()


def _table(title: str | None) -> Table:
    return Table(
        box=None,
        pad_edge=False,
        collapse_padding=True,
        header_style="bold",
        title=title,
        title_justify="left",
    )


def _show(console: Console, rows: Sequence[AttackRow]) -> None:
    """A table for each swarm, quorum and defence; all seeds of an attack in one line."""
    for (learners, liars, quorum, trust, without), same_swarm in _grouped(
        rows, lambda row: (row.learners, row.liars, row.quorum, row.trust, row.without)
    ):
        parts = [f"{liars} of {learners} learners lie", f"trust: {Defence(trust, without)}"]
        if quorum != "set":
            parts.insert(1, f"quorum: {quorum}")
        table = _table("; ".join(parts))
        table.add_column("attack", no_wrap=True)
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for attack, same in _grouped(same_swarm, lambda row: row.attack):
            table.add_row(attack, *_means(same))
        console.print(table)
        console.print()
    console.print(LEGEND)
    _show_backdoor(console, rows)
    over = sorted({row.attack for row in rows if row.trust == "earned" and _is_over(row, rows)})
    if any(row.trust == "earned" for row in rows):
        console.print(
            f"Above {BAR} of the loss without liars somewhere, where trust is earned: "
            f"{', '.join(over) or 'none'}."
        )


def _show_backdoor(console: Console, rows: Sequence[AttackRow]) -> None:
    """How often the backdoor opens, with the one who plants it and without."""
    for (trust, without), of_defence in _grouped(rows, lambda row: (row.trust, row.without)):
        taught = [row.backdoor for row in of_defence if row.attack == "backdoor"]
        quiet = [row.backdoor for row in of_defence if row.attack == NOBODY]
        if taught:
            console.print(
                f"The backdoor opens after {100 * fmean(taught):.1f} % of held-out sequences, and "
                f"after {100 * fmean(quiet):.1f} % where nobody planted it (trust: "
                f"{Defence(trust, without)})."
            )


def _grouped(rows: Sequence[AttackRow], key: Any) -> list[tuple[Any, list[AttackRow]]]:
    """Rows with equal keys together, in the order of the first of each."""
    order = {one: at for at, one in enumerate(dict.fromkeys(map(key, rows)))}
    ordered = sorted(rows, key=lambda row: order[key(row)])
    return [(found, [*same]) for found, same in groupby(ordered, key=key)]


def _is_over(row: AttackRow, rows: Sequence[AttackRow]) -> bool:
    """Whether the mean over the seeds of this row's kind is over the bar."""

    def kind(one: AttackRow) -> tuple[object, ...]:
        return one.attack, one.trust, one.without, one.learners, one.quorum

    return fmean(one.ratio for one in rows if kind(one) == kind(row)) > BAR


def _suspended(rows: Sequence[AttackRow]) -> str:
    """The latest suspension of the first liar, and whether anybody honest was suspended."""
    found = [row.suspended_after for row in rows if row.suspended_after is not None]
    latest = str(max(found)) if len(found) == len(rows) else "never"
    honest = sum(row.honest_suspended for row in rows)
    parts = ["" if rows[0].attack == NOBODY else latest, f"{honest} honest" if honest else ""]
    return ", ".join(filter(None, parts))


def _means(rows: Sequence[AttackRow]) -> list[str]:
    """Means over seeds, the worst of them, and the latest naming."""
    named = [row.named_after for row in rows if row.named_after is not None]
    latest = str(max(named)) if len(named) == len(rows) else "never"
    is_quiet = rows[0].attack == NOBODY
    pushes = sum(row.honest_pushes for row in rows)
    return [
        f"{fmean(row.eval_loss for row in rows):.4f}",
        "" if is_quiet else f"{fmean(row.ratio for row in rows):.3f}",
        "" if is_quiet else f"{max(row.ratio for row in rows):.3f}",
        "" if is_quiet else f"{100 * fmean(row.liar_share for row in rows):.1f} %",
        "" if is_quiet else latest,
        _suspended(rows),
        f"{sum(row.honest_doubted for row in rows)} of {pushes:,}",
        f"{fmean(row.pushes_per_merge for row in rows):.1f}",
    ]
