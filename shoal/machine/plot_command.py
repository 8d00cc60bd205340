"""The `plot` verb: how a run went, as a picture.

A syncer's home has the whole log; a learner's has the curve that its daemon tells of.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from host.files.home import DEFAULT_INSTANCE, Home
from host.files.signed_project import OpenedProject, read_signed
from protocol.errors import RemoteError, ShoalError, UserError
from protocol.status import SwarmStatus, WitnessStatus
from shoal.common import daemons, writing
from shoal.common.choices import HomeHere, Instance, option
from shoal.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from syncer_node.storage.history import History


def plot(
    project: Annotated[
        str,
        option(
            "Name of the project, or the beginning of its ID; needed where several are.",
            known="projects",
        ),
    ] = "",
    *,
    to: Annotated[
        Path | None, Parameter(help="The picture: a PNG or, by its name, an SVG; PROJECT.svg.")
    ] = None,
    json: Annotated[Path | None, option("Also write the numbers as JSON.")] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Draws held-out loss, speed, learners per merge, and who gave how much."""
    from shoal.machine import run_plot
    from tui.text import fmt

    history = read(home, instance, project)
    stem = re.sub(r"[^\w.-]+", "-", history.project_name).strip("-.") or "run"
    path = to if to is not None else Path(f"{stem}.svg")
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"{path} is neither a .png nor an .svg. Choose another name for --to.")
    with writing.writing(path):
        run_plot.draw(history, path)
    if json is not None:
        writing.write_json(json, history)
    told = fmt.plural(len(history.measured), "measurement")
    if history.samples:
        merges = fmt.plural(history.samples[-1].merges, "merge")
        told += f", {merges}, up to record {history.log_index:,}"
    print(f"wrote {path}: {told}")
    return ExitCode.DONE


def read(home: Home, instance: str, wanted: str) -> History:
    """Of the one project that fits: from the log here, else what a running daemon tells.

    Raises UserError where none fits, or several.
    """
    hosted = [read_signed(path) for path in home.hosted_projects(instance)]
    fitting = [one for one in hosted if _fits(wanted, one.id.hex(), one.genesis.name)]
    if len(fitting) > 1:
        names = ", ".join(f"{one.genesis.name} ({one.id.hex()[:8]})" for one in fitting)
        raise UserError(f"Several projects fit: {names}. Name one of them.")
    if fitting:
        return _from_log(home, instance, fitting[0])
    told = [
        (one.project.id, one.project.name, one.swarm)
        for one in daemons.ask_all(daemons.fitting(home, None, None))[0]
        if not isinstance(one, WitnessStatus) and _fits(wanted, one.project.id, one.project.name)
    ]
    if not told:
        which = f"the project {wanted!r}" if wanted else "any project"
        raise UserError(
            f"No daemon of this home knows {which}. Host one with `shoal syncer run`, or join one "
            "with `shoal join`; `shoal status` shows what runs."
        )
    if len({project for project, _, _ in told}) > 1:
        names = ", ".join(f"{name} ({project[:8]})" for project, name, _ in told)
        raise UserError(f"Several projects fit: {names}. Name one of them.")
    return _from_status(*told[0])


def _fits(wanted: str, project: str, name: str) -> bool:
    return not wanted or name == wanted or (len(wanted) >= 4 and project.startswith(wanted))


def _from_log(home: Home, instance: str, project: OpenedProject) -> History:
    from syncer_node.storage.history import read_history

    store = home.syncer_store(project.id, instance)
    try:
        return read_history(store, project)
    except (OSError, RemoteError, ShoalError) as error:
        raise UserError(
            f"The log in {store} cannot be read: {error}. Start the syncer with: "
            "shoal syncer run; it says what is damaged and what to do."
        ) from error


def _from_status(project: str, name: str, swarm: SwarmStatus) -> History:
    """What a learner's daemon knows: the curve, without times."""
    from syncer_node.storage.history import History, Measurement

    measured = [Measurement(step, tokens, loss, False) for step, tokens, loss in swarm.curve]
    best = next((one for one in measured if one.loss == swarm.best_loss), None)
    return History(
        project=project,
        project_name=name,
        log_index=swarm.log_index,
        samples=[],
        measured=measured,
        best=best,
        elections_s=[],
        learners=[],
    )
