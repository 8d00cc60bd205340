"""`shoal sim compare`: ways of training together, on one real model, side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
from cyclopts import Parameter, validators
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from host.files.home import Home
from protocol.errors import UserError
from protocol.project import Charter, Genesis, encode, project_id
from shoal.common import choices
from shoal.project import project_file
from shoal.project.project_file import ProjectFile
from shoal.project.template import Value, create_text
from shoal.sim import plots
from shoal.sim.scale import write_rows
from simulator.compare.setting import Setting

if TYPE_CHECKING:
    from simulator.compare.algorithms import Algorithm
    from simulator.compare.results import Folder, Summary

NAME = "comparison"
CHANGES: Mapping[str, Value] = {
    "model.config.hidden_size": 64,
    "model.config.intermediate_size": 168,
    "model.config.num_hidden_layers": 2,
    "data.sequence_tokens": 64,
    "limits.heldout_sequences": 1024,
}
"""What a comparison changes in the project that `shoal project create` writes, to be affordable."""

NEVER = 1_000_000
"""Evaluations within a run would only cost time."""


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
            link_mbps=self.link_mbps,
            latency_s=self.latency_ms / 1000,
            clock_parameters=round(self.clock_parameters),
            mtbi_s=self.mtbi,
            away_s=self.away,
        )


AS_USUAL = Cluster()


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
    file = _file(project, set)
    settings = [cluster.setting(one) for one in range(seed, seed + seeds)]
    plan = list(_plan(wanted, settings, file, home))
    missing = [one for one in plan if one.key not in folder.runs]
    if len(missing) < len(plan):
        console.print(f"{len(plan) - len(missing)} of {len(plan)} runs are in {results}")
    with _progress(console, len(missing)) as watch:
        for one in missing:
            _do(one, folder, home, watch(f"{one.algorithm.name}, seed {one.setting.seed}"))
    rows = rows_of(folder.runs[one.key] for one in plan)
    lines = summaries(rows)
    _show(console, lines)
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
        genesis, charter = _project(file, setting, home)
        for algorithm in algorithms:
            key = fingerprint(algorithm, genesis, charter, setting)
            yield _Planned(algorithm, setting, genesis, charter, key)


def _file(path: Path | None, changes: Sequence[str]) -> ProjectFile:
    """The project to compare on. UserError if it cannot be used."""
    if path is None:
        text = create_text(NAME, changes={**CHANGES, **_changes(changes)})
        return project_file.parse(text, Path(f"{NAME}.toml"))
    if changes:
        raise UserError("--set is for the built-in project; with --project, edit the file.")
    return project_file.read_file(path)


def _project(file: ProjectFile, setting: Setting, home: Home) -> tuple[Genesis, Charter]:
    file = msgspec.structs.replace(file, seed=setting.seed)
    genesis = project_file.make_genesis(file, owner=bytes(32), data_cache=home.data_cache())
    budget = (
        setting.learners * setting.steps * file.inner.batch_sequences * file.data.sequence_tokens
    )
    charter = project_file.make_charter(
        file, project=project_id(encode(genesis)), this_host=bytes([1]) * 32, former=None
    )
    limits = msgspec.structs.replace(charter.limits, tokens=budget, evaluate_every=NEVER)
    return genesis, msgspec.structs.replace(charter, limits=limits)


def _changes(settings: Sequence[str]) -> dict[str, Value]:
    """`key=value` as the project file has them. UserError for what it does not have."""
    from shoal.project.charters import read_setting
    from shoal.project.template import SECTIONS

    known = {f"{section.name}.{line.key}": line for section in SECTIONS for line in section.lines}
    found: dict[str, Value] = {}
    for setting in settings:
        key, is_given, text = setting.partition("=")
        if not is_given or key not in known:
            raise UserError(
                f"--set {setting}: a setting is written as in --set rounds.local_steps=8, with a"
                " key of the project file; `shoal project create` explains them all."
            )
        found[key] = cast(Value, read_setting(text))
    return found


def _do(one: _Planned, folder: Folder, home: Home, tell: Callable[[float], None]) -> None:
    from simulator.compare.bench import open_bench

    started = time.monotonic()
    bench = open_bench(
        one.algorithm.genesis(one.genesis), one.algorithm.charter(one.charter), home.data_cache()
    )
    outcome = one.algorithm.run(bench, one.setting, tell)
    folder.add(one.algorithm, one.setting, one.key, outcome, time.monotonic() - started)


# ------------------------------------------------------------------------------------ what is seen


@contextmanager
def _progress(console: Console, runs: int) -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Bars on a terminal, a line for each run elsewhere; gives a function that announces a run."""
    if not console.is_terminal:
        done = 0

        def plain(name: str) -> Callable[[float], None]:
            nonlocal done
            done += 1
            print(f"run {done} of {runs}: {name}", file=sys.stderr, flush=True)
            return lambda _: None

        yield plain
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task(f"{runs} runs", total=float(runs))
        single = bars.add_task("", total=1.0)
        begun = 0

        def announce(name: str) -> Callable[[float], None]:
            nonlocal begun
            before, begun = begun, begun + 1
            bars.update(single, description=name)

            def tell(share: float) -> None:
                bars.update(single, completed=share)
                bars.update(whole, completed=before + share)

            return tell

        yield announce


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


def _check_parents(*files: Path | None) -> None:
    """UserError now, and not after an hour, if a file could not be written."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise UserError(f"{file} cannot be written: its folder does not exist.")
