"""The verbs of `shoal sim` that run swarms in virtual time: run, scenarios, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from shoal.common.choices import AtLeastOne

Seed = Annotated[int, Parameter(help="Same seed, same run.", validator=validators.Number(gte=0))]


def run(
    scenario: Annotated[
        str, Parameter(help="A name that `shoal sim scenarios` lists, or a TOML file.")
    ],
    *,
    seed: Seed = 0,
    until: Annotated[
        str | None,
        Parameter(
            help="Virtual length, such as 1h, of `voters` how long faults come; else the "
            "scenario's own."
        ),
    ] = None,
    trace: Annotated[
        Path | None, Parameter(help="Also write every fact, routine ones too, to this file.")
    ] = None,
    tape: Annotated[
        Path | None,
        Parameter(help="Also record every daemon in this new folder, for `shoal replay`."),
    ] = None,
    quiet: Annotated[bool, Parameter(help="Only the summary.", negative="")] = False,
) -> int:
    """Run a swarm in virtual time and check what must hold; exit code 1 if it does not."""
    from shoal.common import durations
    from shoal.sim import run_command

    until_s = None if until is None else durations.seconds(until)
    return run_command.run(
        scenario, seed=seed, until_s=until_s, trace=trace, tape=tape, is_quiet=quiet
    )


def scenarios() -> int:
    """List the scenarios that are built in."""
    from shoal.sim import run_command

    return run_command.list_scenarios()


def sweep(
    *,
    seeds: Annotated[int, Parameter(help="How many.", validator=AtLeastOne)] = 100,
    first: Annotated[
        int, Parameter(help="The first of them.", validator=validators.Number(gte=0))
    ] = 0,
    jobs: Annotated[int, Parameter(help="Processes at a time.", validator=AtLeastOne)] = 2,
    scenario: Annotated[
        str | None,
        Parameter(
            help="Only this one; by default random swarms, and voters alone every fourth seed."
        ),
    ] = None,
) -> int:
    """Run many seeds under faults; exit code 1, and how to see each again, if a promise breaks."""
    from shoal.sim import run_command

    return run_command.sweep(seeds=seeds, first=first, jobs=jobs, scenario=scenario)


def add_runs(sim_app: App) -> None:
    """Put these verbs under `shoal sim`."""
    for verb in (run, scenarios, sweep):
        sim_app.command(verb)
