"""`shoal demo --chaos`: a real small swarm on this machine, one fault after another, a verdict.

Everything lies in a temporary directory, which is removed at the end, and no process is left,
however it ends.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from host.files.home import Home
from host.runtime import software
from protocol.errors import UserError
from shoal.chaos.observations import Window, figures
from shoal.chaos.project import LEARNERS, NAME, SETTINGS, SYNCERS, with_voters
from shoal.chaos.report import NOTE, Losses, Outcome, as_json, compare, sentences, table
from shoal.chaos.scenarios import NAMES, SCENARIOS, STORM, Scenario, stormy
from shoal.chaos.swarm import Swarm, check_settled
from shoal.common import failures
from shoal.common.exit_codes import ExitCode
from shoal.demo.command import ended_by_signals, tidy_up
from shoal.demo.processes import Children, Deadline, DemoFailed, shown
from shoal.demo.project import edited
from shoal.demo.screen import Screen

ALL: Final = "all"
MINUTES: Final = 10.0
SETTLE_S: Final = 90.0
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
    if json is not None and not json.absolute().parent.is_dir():
        raise UserError(f"There is no directory {json.absolute().parent} for the report.")
    with ended_by_signals():
        folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
        children = Children(folder, Deadline.after(60 * (minutes or MINUTES)))
        try:
            return _show(folder, children, scenarios, json)
        except KeyboardInterrupt:
            return failures.interrupted()
        finally:
            tidy_up(folder, children, keep=keep)


def _show(
    folder: Path, children: Children, scenarios: Sequence[Scenario], path: Path | None
) -> int:
    screen, outcomes = Screen(), []
    chaos = Chaos(folder, children, screen)
    try:
        chaos.open()
        for scenario in scenarios:
            outcomes.append(chaos.play(scenario))
    except DemoFailed as error:
        screen.quote(error.lines)
        if outcomes:
            _tell(screen, outcomes)
        raise
    finally:
        chaos.close()
    is_passed = _tell(screen, outcomes)
    if path is not None:
        found = as_json(outcomes, version=software.version(), wall_s=screen.elapsed_s)
        _write(path, found)
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


def _write(path: Path, found: object) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from error


class Chaos:
    """One swarm, and what is done to it."""

    def __init__(self, folder: Path, children: Children, screen: Screen) -> None:
        self._folder = folder
        self._children = children
        self._screen = screen
        self._project = folder / f"{NAME}.toml"
        self._home = Home(folder / "home")
        self._swarm = Swarm(children, screen, self._home, self._project)

    def open(self) -> None:
        """The project, the processes, and the first merges."""
        self._screen.tell(f"everything lies in {self._folder}, and is removed at the end")
        self._shoal("project", "create", self._project.name, "--name", NAME)
        text = edited(self._project.read_text(), SETTINGS)
        self._project.write_text(with_voters(text, self._home))
        self._screen.tell(
            f"edited {self._project.name}: a tiny model; the syncers {', '.join(SYNCERS)} vote"
        )
        self._shoal("project", "sign", self._project.name)
        self._swarm.open()
        is_well = self._swarm.until(
            self._swarm.is_well, "waiting for the swarm", patience_s=SETTLE_S
        )
        check_settled(is_well, self._swarm)
        self._screen.tell(
            f"all is well: {len(SYNCERS)} syncers vote, {len(LEARNERS)} learners train"
        )

    def close(self) -> None:
        """Nobody listens any more."""
        self._swarm.close()

    def play(self, scenario: Scenario) -> Outcome:
        """One fault, from the undisturbed time before it until all is well again."""
        swarm, record = self._swarm, self._swarm.record
        self._screen.tell(f"{scenario.name}: {scenario.what}", style="bold")
        is_well = swarm.until(swarm.is_well, "waiting for the swarm", patience_s=WELL_S)
        check_settled(is_well, swarm)
        began_s = time.monotonic()
        swarm.go_on(BEFORE_S, "watching")
        found = swarm.leader()
        check_settled(found is not None, swarm)
        assert found is not None
        swarm.keep_in_mind(found[0])
        backs, gone = record.steps_back, record.losses_gone
        window = Window(began_s, struck_s=time.monotonic())
        scenario.act(swarm)
        window.ended_s = time.monotonic()
        if swarm.until(swarm.is_well, "waiting for the swarm", patience_s=WELL_S):
            window.well_s = swarm.well_since_s
        trouble = swarm.trouble()
        window.closed_s = time.monotonic()
        self._measure(window)
        return Outcome(
            name=scenario.name,
            what=scenario.what,
            figures=figures(record, window, scenario.survivors),
            losses=self._compare(),
            steps_back=record.steps_back - backs,
            losses_gone=record.losses_gone - gone,
            needs_takeover=scenario.needs_takeover,
            trouble=trouble,
        )

    def _measure(self, window: Window) -> None:
        """Waits for a held-out loss of a model from after the fault."""
        merges = [one for one in self._swarm.record.merges if one.at_s <= window.ended_s]
        ended = merges[-1].global_step if merges else 0

        def is_measured() -> bool:
            losses = self._swarm.record.losses
            return bool(losses) and losses[-1].global_step > ended

        self._swarm.until(is_measured, "waiting for a measurement", patience_s=MEASURED_S)

    def _compare(self) -> Losses:
        swarm = self._swarm
        return compare(
            swarm.to_keep, [(swarm.floor(name), swarm.certified(name)) for name in SYNCERS]
        )

    def _shoal(self, *arguments: str) -> None:
        self._screen.tell(f"$ {shown('shoal', *arguments)}", style="dim")
        name = " ".join(arguments[:2])
        self._children.finish(name, "shoal", *arguments, tick=lambda _: None)
