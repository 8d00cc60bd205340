"""`shoal sim run`, `scenarios` and `sweep`: swarms in virtual time, on the screen."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from protocol.errors import UserError
from protocol.trace import CheckpointScored, SessionOpened, TrainerChanged
from shoal.common import durations
from shoal.common.choices import AtLeastOne, NotNegative, option, switch
from shoal.common.exit_codes import ExitCode
from simulator.checkers.ledger import Ledger
from simulator.hosts.tape import SwarmTape
from simulator.scenarios import runs, scenarios, sweeps

FAILURES_SHOWN_MAX = 20
TELL_EVERY = 50
"""Seeds between two lines of progress where the output is no terminal."""


def list_scenarios() -> int:
    """Print the built-in ones."""
    table = Table("scenario", "what happens", box=None, pad_edge=False)
    for name, about in scenarios.DRAWN.items():
        table.add_row(name, about)
    for name, scenario in scenarios.BUILT_IN.items():
        table.add_row(name, scenario.about)
    Console().print(table)
    return ExitCode.DONE


def run(
    name: Annotated[
        str,
        Parameter(
            name="--scenario", help="A name that `shoal sim scenarios` lists, or a TOML file."
        ),
    ],
    *,
    seed: Annotated[int, option("Same seed, same run.", NotNegative)] = 0,
    until: Annotated[
        str | None,
        option(
            "Virtual length, such as 1h, of `voters` how long faults come; else the scenario's own."
        ),
    ] = None,
    trace: Annotated[
        Path | None, option("Also write every fact, routine ones too, to this file.")
    ] = None,
    tape: Annotated[
        Path | None, option("Also record every daemon in this new folder, for `shoal replay`.")
    ] = None,
    quiet: Annotated[bool, switch("Only the summary.")] = False,
) -> int:
    """One run on the screen; 1 if a checker fires. Raises UserError."""
    until_s = None if until is None else durations.seconds(until)
    scenario = None if name == "voters" else scenarios.find(name, seed)
    began_s = time.perf_counter()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open(trace)) if trace else None
        recording = _tape(name, tape) if tape else None
        if recording is not None:
            stack.callback(recording.close)

        def line(text: str, is_routine: bool) -> None:
            if file is not None:
                file.write(f"{text}\n")
            if not is_routine and not quiet:
                print(text)

        if scenario is None:
            violation, records, virtual_s = sweeps.run_voters(seed, faults_s=until_s, line=line)
        else:
            outcome = runs.run(scenario, seed, until_s=until_s, line=line, tape=recording)
            violation = outcome.violation
    if scenario is None:
        print(f"{records} records certified in {virtual_s:.0f} virtual seconds.")
    else:
        _summarise(name, outcome, time.perf_counter() - began_s)
    if trace:
        print(f"Every fact of the run is in {trace}.")
    if tape:
        print(f"The tapes of this swarm are in {tape}. Run them again: shoal replay {tape}")
    return _verdict(name, seed, until_s, violation)


def _open(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"The trace cannot be written to {path}: {error}.") from error


def _tape(name: str, folder: Path) -> SwarmTape:
    """Where syncers are recorded. Raises UserError."""
    if name == "voters":
        raise UserError("Voters alone merge nothing and keep no tape. Leave --tape out.")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty. Name a new directory for the tapes.")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"No tape can be kept in {folder} ({error.strerror}).") from error
    return SwarmTape(folder)


def _verdict(name: str, seed: int, until_s: float | None, violation: str) -> int:
    if not violation:
        print(f"Seed {seed}: every check passed.")
        return ExitCode.DONE
    until = f" --until {until_s:g}s" if until_s else ""
    print(f"Seed {seed}: {violation}\nReplay: shoal sim run {name} --seed {seed}{until}")
    return ExitCode.FAILED


def _summarise(name: str, outcome: runs.Outcome, wall_s: float) -> None:
    swarm, world = outcome.swarm, outcome.swarm.world
    ledger = swarm.ledger
    facts = Counter(type(fact).__name__ for _, _, fact in world.facts)
    losses = [fact.loss for _, _, fact in world.facts if isinstance(fact, CheckpointScored)]
    steps = sum(len(learner.reads) for learner in swarm.learners)
    per_step = swarm.learners[0].tiny.charter.inner.batch_sequences
    rows = {
        "virtual time": f"{outcome.virtual_s:.0f} s in {wall_s:.1f} s, {world.events} events",
        "hosts": f"{len(swarm.learners)} learners, {len(swarm.syncers)} syncers, "
        f"{len(swarm.witnesses)} witnesses",
        "sessions": f"{facts[SessionOpened.__name__]} opened, "
        f"{facts[TrainerChanged.__name__]} changes of trainers",
        "local steps": f"{steps // per_step}",
        "merges": f"{swarm.merges}, {_mean_participants(ledger):.1f} learners in each",
        "records": f"{len(ledger.records)}, each with its certificate",
        "bulk bytes": f"{world.wires.transferred_bytes / 1e6:.1f} MB",
    }
    if losses:
        rows["held-out loss"] = f"{losses[0]:.4f} to {losses[-1]:.4f}"
    if outcome.handed:
        rows["hand-ins compared"] = f"{outcome.handed}, as sets of local steps"
    table = Table(title=f"{name}, seed {outcome.seed}", show_header=False, title_justify="left")
    for key, value in rows.items():
        table.add_row(key, value)
    Console().print(table)


def _mean_participants(ledger: Ledger) -> float:
    counts = [len(merged.contributions) for merged in ledger.merges]
    return sum(counts) / max(1, len(counts))


def sweep(
    *,
    seeds: Annotated[int, option("How many.", AtLeastOne)] = 100,
    first: Annotated[int, option("The first of them.", NotNegative)] = 0,
    jobs: Annotated[int, option("Processes at a time.", AtLeastOne)] = 2,
    scenario: Annotated[
        str | None,
        option("Only this one; by default random swarms, and voters alone every fourth seed."),
    ] = None,
) -> int:
    """Run many seeds with progress; 1 if any of them breaks a promise. Raises UserError."""
    if scenario is not None and scenario != "voters":
        scenarios.find(scenario, first)
    console, began_s = Console(), time.perf_counter()
    failed: list[sweeps.Result] = []
    merges, virtual_s, done = 0, 0.0, 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=seeds)
        for result in sweeps.sweep(first, seeds, jobs=jobs, scenario=scenario):
            done, merges = done + 1, merges + result.merges
            virtual_s += result.virtual_s
            if result.violation:
                failed.append(result)
                progress.console.print(
                    f"seed {result.seed}: {result.violation}", markup=False, soft_wrap=True
                )
            elif done % TELL_EVERY == 0 and not console.is_terminal:
                print(f"{done} of {seeds} seeds, {len(failed)} broken", flush=True)
            progress.update(task, advance=1, description=f"seeds, {len(failed)} broken")
    wall_s = time.perf_counter() - began_s
    print(
        f"{done} seeds from {first}, {len(failed)} broken; {virtual_s / 3600:.1f} virtual hours "
        f"and {merges} merges or records in {wall_s:.0f} s."
    )
    for result in sorted(failed, key=lambda one: one.seed)[:FAILURES_SHOWN_MAX]:
        print(f"Replay: {result.replay}")
    if len(failed) > FAILURES_SHOWN_MAX:
        print(f"and {len(failed) - FAILURES_SHOWN_MAX} more.")
    return ExitCode.FAILED if failed else ExitCode.DONE
