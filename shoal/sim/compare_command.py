"""`shoal sim compare`: ways of training together, on one real model, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators
from rich.console import Console
from rich.table import Table

from host.files.home import Home
from protocol.errors import UserError
from protocol.project import Charter, Genesis
from shoal.common import choices
from shoal.project.project_file import ProjectFile
from shoal.sim import plots, run_progress, trial_project
from shoal.sim.scale import write_rows
from simulator.compare.setting import Setting

if TYPE_CHECKING:
    from simulator.compare.algorithms import Algorithm
    from simulator.compare.results import Folder, Summary
    from simulator.compare.tuning import Point


@Parameter(name="*")
@dataclass(frozen=True)
class Cluster:
    """The learners and links of a comparison, and its budget."""

    learners: Annotated[
        int, choices.option("Learners, or devices.", validators.Number(gte=1, lte=64))
    ] = 4
    steps: Annotated[
        int, choices.option("Local steps of each learner: the budget.", choices.AtLeastOne)
    ] = 600
    link_mbps: Annotated[
        float, choices.option("Megabits per second of every link.", choices.Positive)
    ] = 1000.0
    latency_ms: Annotated[
        float, choices.option("Milliseconds, one way, between any two.", choices.NotNegative)
    ] = 30.0
    step_s: Annotated[
        float, choices.option("Virtual seconds of a local step.", choices.Positive)
    ] = 1.0
    slowness: Annotated[
        tuple[float, ...],
        choices.several(
            "Times --step-s, of one learner after the other, over and over, as in 1 1 1.18 1.18.",
            choices.Positive,
        ),
    ] = ()
    clock_parameters: Annotated[
        float,
        choices.option(
            "Parameters of the model that the virtual clock sends; the one that is trained is "
            "far smaller.",
            choices.AtLeastOne,
        ),
    ] = 1e8
    mtbi: Annotated[
        float,
        choices.option(
            "Seconds between two interruptions of a learner, for algorithms that fail; 0: none.",
            choices.NotNegative,
        ),
    ] = 600.0
    away: Annotated[float, choices.option("Seconds until it is back.", choices.Positive)] = 60.0

    def setting(self, seed: int) -> Setting:
        """As the simulator takes it."""
        return Setting(
            seed=seed,
            learners=self.learners,
            steps=self.steps,
            step_s=self.step_s,
            slowness=self.slowness,
            link_mbps=self.link_mbps,
            latency_s=self.latency_ms / 1000,
            clock_parameters=round(self.clock_parameters),
            mtbi_s=self.mtbi,
            away_s=self.away,
        )


AS_USUAL = Cluster()


@Parameter(name="*")
@dataclass(frozen=True)
class Trials:
    """How each algorithm is tuned first."""

    tune: Annotated[
        int,
        choices.option(
            "Trials to tune each algorithm by, on seeds that are not among the results; 0: none.",
            choices.NotNegative,
        ),
    ] = 0
    tune_seeds: Annotated[
        int, choices.option("Seeds that a trial is the mean of.", choices.AtLeastOne)
    ] = 1

    @property
    def seeds(self) -> range:
        """Of each trial."""
        return range(TUNING_SEED, TUNING_SEED + self.tune_seeds)


NO_TRIALS = Trials()

TUNING_SEED = 1001
"""Trials have seeds from here on, results do not."""


def run(
    algorithms: Annotated[
        tuple[str, ...],
        Parameter(help="Which ones; all by default. A wrong name lists them.", negative=""),
    ] = (),
    *,
    seeds: Annotated[int, choices.option("Paired seeds.", choices.AtLeastOne)] = 3,
    seed: Annotated[int, choices.option("The first of them.", choices.NotNegative)] = 1,
    cluster: Cluster = AS_USUAL,
    project: Annotated[
        Path | None, choices.option("A project file to compare on, instead of the built-in one.")
    ] = None,
    set: Annotated[
        tuple[str, ...],
        Parameter(
            help="KEY=VALUE: change the built-in project, as in rounds.local_steps=8; repeatable.",
            negative="",
        ),
    ] = (),
    trials: Trials = NO_TRIALS,
    tasks: Annotated[
        bool,
        choices.option("Also show how many questions the models answer right."),
    ] = False,
    results: Annotated[
        Path, choices.option("Folder of finished runs; those in it are not done again.")
    ] = Path("comparison"),
    files: choices.Files = choices.TERMINAL_ONLY,
    home: choices.HomeHere,
) -> int:
    """Does the runs that the folder of results lacks, then shows all of them."""
    from simulator.compare.algorithms import chosen
    from simulator.compare.results import Folder, rows_of, summaries

    wanted = chosen(algorithms)
    _check_parents(files.json, files.csv, files.plot)
    folder = Folder(results)
    console = Console()
    file = trial_project.read(project, set)
    _say_who_keeps(wanted, set, console)
    settings = [cluster.setting(one) for one in range(seed, seed + seeds)]
    found: dict[str, dict[str, float]] = {}
    if trials.tune:
        tuning = Tuning(trials.tune, [cluster.setting(one) for one in trials.seeds])
        found = {one.name: _tune(one, tuning, file, home, folder, console) for one in wanted}
        wanted = [one.tuned(found[one.name]) for one in wanted]
    plan = list(_plan(wanted, settings, file, home))
    _do_missing(plan, folder, home, console, found)
    rows = rows_of(folder.runs[one.key] for one in plan)
    lines = summaries(rows)
    _show(console, lines)
    if tasks:
        _show_tasks(console, lines)
    return write_rows(files, rows, lambda path: plots.compare(lines, path))


@dataclass(frozen=True, slots=True)
class _Planned:
    """One run to be done, or done before."""

    algorithm: Algorithm
    setting: Setting
    genesis: Genesis
    charter: Charter
    key: str


def _plan(
    algorithms: Sequence[Algorithm], settings: Sequence[Setting], file: ProjectFile, home: Home
) -> Iterator[_Planned]:
    """Seed by seed, so that a comparison that is cut short has whole seeds."""
    from simulator.compare.results import fingerprint

    for setting in settings:
        genesis, charter = trial_project.sign(file, setting, home)
        for algorithm in algorithms:
            key = fingerprint(algorithm, genesis, charter, setting)
            yield _Planned(algorithm, setting, genesis, charter, key)


def _do_missing(
    plan: Sequence[_Planned],
    folder: Folder,
    home: Home,
    console: Console,
    tuned: Mapping[str, Mapping[str, float]],
) -> None:
    """tuned: settings by algorithm."""
    missing = [one for one in plan if one.key not in folder.runs]
    if len(missing) < len(plan):
        done = len(plan) - len(missing)
        console.print(f"{done} of {len(plan)} runs are in {folder.file.parent}")
    with run_progress.bars(console, len(missing)) as watch:
        for one in missing:
            name = one.algorithm.name
            _do(one, folder, home, watch(f"{name}, seed {one.setting.seed}"), tuned.get(name, {}))


@dataclass(frozen=True, slots=True)
class Tuning:
    """How much every algorithm may try, and on what."""

    trials: int
    settings: Sequence[Setting]
    """One for each seed that a trial is the mean of."""


def _tune(
    algorithm: Algorithm,
    tuning: Tuning,
    file: ProjectFile,
    home: Home,
    folder: Folder,
    console: Console,
) -> dict[str, float]:
    """The best settings of so many trials; those in the folder are not done again."""
    from simulator.compare.tuning import Search, summary

    _, charter = trial_project.sign(file, tuning.settings[0], home)
    search = Search(algorithm.ranges, tuning.trials, algorithm.untuned(charter))

    def attempt(points: Iterator[Point], count: int) -> None:
        with run_progress.bars(console, count * len(tuning.settings)) as watch:
            for point in points:
                settings = search.settings(point)
                losses = []
                for one in _plan([algorithm.tuned(settings)], tuning.settings, file, home):
                    tell = watch(f"{algorithm.name}: {summary(settings)}")
                    if one.key not in folder.runs:
                        _do(one, folder, home, tell, settings, is_trial=True)
                    losses.append(folder.runs[one.key].eval_loss)
                search.tell(point, fmean(losses))

    attempt(iter(search), tuning.trials)
    if search.at_edge:
        console.print(
            f"{algorithm.name}: {', '.join(search.at_edge)} at the end of what was tried; at most"
            f" {search.trials_past_edges} more trials"
        )
        attempt(search.past_edges(), search.trials_past_edges)
    best = search.settings(search.best)
    console.print(
        f"{algorithm.name}: {summary(best)} is the best of {len(search.losses)} trials"
        f" ({search.losses[search.best]:.4f})"
    )
    for key in search.at_edge:
        console.print(f"  {key} is still at the end of what was tried: give it more trials")
    return best


def _do(
    one: _Planned,
    folder: Folder,
    home: Home,
    tell: Callable[[float], None],
    settings: Mapping[str, float],
    *,
    is_trial: bool = False,
) -> None:
    from simulator.compare.bench import open_bench

    started = time.monotonic()
    bench = open_bench(
        one.algorithm.genesis(one.genesis), one.algorithm.charter(one.charter), home.data_cache()
    )
    outcome = one.algorithm.run(bench, one.setting, tell)
    took_s = time.monotonic() - started
    folder.add(
        one.algorithm,
        one.setting,
        bench,
        outcome,
        took_s,
        settings=settings,
        is_trial=is_trial,
    )


# ------------------------------------------------------------------------------------ what is seen


def _say_who_keeps(
    algorithms: Sequence[Algorithm], changes: Sequence[str], console: Console
) -> None:
    """Which rows a change of the project does not reach."""
    for key in (change.partition("=")[0] for change in changes):
        keeping = [one.name for one in algorithms if not one.reads(key)]
        if keeping:
            console.print(f"--set {key} changes nothing in: {', '.join(keeping)}", soft_wrap=True)


def _show(console: Console, lines: Sequence[Summary]) -> None:
    """The table, all seeds of an algorithm in one line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    for name in ("seeds", "held-out loss", "to dp", "tokens", "sent", "virtual time", "goodput"):
        table.add_column(name, justify="right")
    for line in lines:
        spread = f" ± {line.eval_loss_spread:.3f}" if line.seeds > 1 else ""
        table.add_row(
            line.algorithm,
            str(line.seeds),
            f"{line.eval_loss:.4f}{spread}",
            "" if line.ratio_to_dp is None else f"{100 * (line.ratio_to_dp - 1):+.1f} %",
            f"{line.tokens / 1e6:.2f} M",
            f"{line.bytes / 1e6:,.1f} MB",
            f"{line.virtual_wall_s:,.0f} s",
            f"{100 * line.goodput:.1f} %",
        )
    console.print(table)


def _show_tasks(console: Console, lines: Sequence[Summary]) -> None:
    """What the models answer right, and what a guess would."""
    from simulator.compare.tasks import TASKS

    table = Table(title="Right answers, %", title_justify="left", box=None, pad_edge=False)
    table.add_column("algorithm", no_wrap=True)
    for name in TASKS:
        table.add_column(name, justify="right")
    for line in lines:
        told: list[float | None] = [getattr(line, name) for name in TASKS]
        shares = ["" if score is None else f"{100 * score:.1f}" for score in told]
        table.add_row(line.algorithm, *shares)
    table.add_row("a guess", *(f"{100 * task.chance:.1f}" for task in TASKS.values()))
    console.print(table)
    for name, task in TASKS.items():
        console.print(f"{name}: {task.says}", style="dim")


def _check_parents(*files: Path | None) -> None:
    """UserError now, and not after an hour, if a file could not be written."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise UserError(f"{file} cannot be written: its folder does not exist.")
