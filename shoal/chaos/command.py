"""`shoal demo --chaos`: a real small swarm on this machine, one fault after another, a verdict.

Everything lies in a temporary directory, removed at the end without `--keep`, and no process is
left, however it ends.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from host.runtime import software
from protocol.errors import UserError
from shoal.chaos.observations import Window, figures
from shoal.chaos.project import LEARNERS, NAME, SETTINGS, SYNCERS
from shoal.chaos.report import NOTE, Outcome, as_json, compare, sentences, table
from shoal.chaos.scenarios import NAMES, SCENARIOS, STORM, Scenario, stormy
from shoal.chaos.swarm import ChaosSwarm, check_settled
from shoal.common import failures
from shoal.common.exit_codes import ExitCode
from shoal.common.writing import check_folder, write_json
from shoal.demo.command import begin, ended_by_signals, tidy_up
from shoal.demo.screen import Screen
from shoal.local_swarm.processes import Deadline, SwarmFailed, shown

ALL: Final = "all"
MINUTES: Final = 10.0
SETTLE_S: Final = 300.0
"""A guard against waiting for ever."""

BEFORE_S: Final = 10.0
"""Undisturbed time that the fault is compared with."""

WELL_S: Final = 60.0
"""Everything must be well again this long after the end of a fault."""

MEASURED_S: Final = 15.0
"""How long a held-out loss of after the fault is waited for."""


def chosen(scenario: str, seed: int = 0) -> Sequence[Scenario]:
    """The scenarios of this name. UserError if there is none. seed: of a storm."""
    if scenario == ALL:
        return SCENARIOS
    if scenario == STORM:
        return (stormy(seed),)
    found = [one for one in SCENARIOS if one.name == scenario]
    if not found:
        raise UserError(
            f"There is no scenario {scenario!r}. There are {', '.join((*NAMES, STORM))}, {ALL}."
        )
    return found


def run(
    scenario: str,
    *,
    json: Path | None,
    minutes: float | None,
    seed: int = 0,
    keep: bool = False,
) -> int:
    """Plays it; DONE only if every scenario passed.

    json: a file to write. minutes: give up after this long; a storm lasts nearly until then. seed:
    of a storm. keep: leave the directory.
    """
    scenarios = chosen(scenario, seed)
    check_folder(json)
    with ended_by_signals():
        folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
        deadline = Deadline.after(60 * (minutes or MINUTES))
        swarm = ChaosSwarm(folder, deadline, Screen())
        try:
            begin(swarm.screen, folder, keep=keep)
            return _show(swarm, scenarios, json)
        except KeyboardInterrupt:
            return failures.interrupted()
        finally:
            tidy_up(swarm, keep=keep)


def _show(swarm: ChaosSwarm, scenarios: Sequence[Scenario], path: Path | None) -> int:
    screen, outcomes = swarm.screen, list[Outcome]()
    try:
        _open(swarm)
        for scenario in scenarios:
            outcomes.append(_play(swarm, scenario))
    except SwarmFailed as error:
        screen.quote(error.lines)
        if outcomes:
            _tell(screen, outcomes)
        raise
    is_passed = _tell(screen, outcomes)
    if path is not None:
        found = as_json(outcomes, version=software.version(), wall_s=screen.elapsed_s)
        write_json(path, found)
        screen.console.print(f"\nwrote {path}")
    return ExitCode.DONE if is_passed else ExitCode.FAILED


def _tell(screen: Screen, outcomes: Sequence[Outcome]) -> bool:
    """Prints the verdicts; whether all are good."""
    screen.console.print()
    screen.console.print(table(outcomes))
    screen.console.print(NOTE, style="dim")
    screen.console.print()
    said = sentences(outcomes)
    for line, is_passed in said:
        screen.console.print(line, style="green" if is_passed else "bold red")
    return all(is_passed for _, is_passed in said)


def _open(swarm: ChaosSwarm) -> None:
    """The project, the processes, and the first merges."""
    tell, project = swarm.screen.tell, f"{NAME}.toml"
    _shoal(swarm, "project", "create", project, "--name", NAME)
    swarm.write_project(NAME, SETTINGS, dict.fromkeys(SYNCERS, "syncer"))
    tell(f"edited {project}: a tiny model; the syncers {', '.join(SYNCERS)} vote")
    _shoal(swarm, "project", "sign", project)
    swarm.open()
    check_settled(swarm.await_well(SETTLE_S), swarm)
    tell(f"all is well: {len(SYNCERS)} syncers vote, {len(LEARNERS)} learners train")


def _shoal(swarm: ChaosSwarm, *arguments: str) -> None:
    swarm.screen.tell(f"$ {shown('shoal', *arguments)}", style="dim")
    swarm.run(*arguments)


def _play(swarm: ChaosSwarm, scenario: Scenario) -> Outcome:
    """One fault, from the undisturbed time before it until all is well again."""
    record = swarm.record
    swarm.screen.tell(f"{scenario.name}: {scenario.what}", style="bold")
    check_settled(swarm.await_well(WELL_S), swarm)
    began_s = time.monotonic()
    swarm.go_on(BEFORE_S)
    found = swarm.leader()
    check_settled(found is not None, swarm)
    assert found is not None
    swarm.keep_in_mind(found[0])
    backs, gone = record.steps_back, record.losses_gone
    window = Window(began_s, struck_s=time.monotonic())
    scenario.act(swarm)
    window.ended_s = time.monotonic()
    if swarm.await_well(WELL_S):
        window.well_s = swarm.well_since_s
    trouble = swarm.trouble()
    window.closed_s = time.monotonic()
    _measure(swarm, window)
    on_disks = [(swarm.floor(name), swarm.certified(name)) for name in SYNCERS]
    return Outcome(
        name=scenario.name,
        what=scenario.what,
        figures=figures(record, window, scenario.survivors),
        losses=compare(swarm.to_keep, on_disks),
        steps_back=record.steps_back - backs,
        losses_gone=record.losses_gone - gone,
        needs_takeover=scenario.needs_takeover,
        trouble=trouble,
    )


def _measure(swarm: ChaosSwarm, window: Window) -> None:
    """Waits for a held-out loss of a model from after the fault."""
    merges = [one for one in swarm.record.merges if one.at_s <= window.ended_s]
    ended = merges[-1].global_step if merges else 0

    def is_measured() -> bool:
        losses = swarm.record.losses
        return bool(losses) and losses[-1].global_step > ended

    swarm.within(MEASURED_S, is_measured, "a measurement")
