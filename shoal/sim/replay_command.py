"""The `replay` verb: tells whether a tape comes to the same again, and what happened in a round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from rich.console import Console
from rich.table import Table

from host.files.signed_project import read_signed
from protocol.errors import UserError
from protocol.tape import TapeDamaged
from shoal.common import failures
from shoal.common.choices import AtLeastOne, HomeHere, option
from shoal.common.exit_codes import ExitCode
from shoal.common.writing import write_json
from shoal.project import file_commands
from simulator.replay.divergence import Diverged
from simulator.replay.replay import LEVELS, Level, ReplayReport, replay
from simulator.replay.round_history import Part, RoundHistory

MEANS: Final[dict[Level, str]] = {
    "audit": "certificates hold, and the syncer decides the same",
    "merge": "the kept pushes merge to the same bits again",
    "retrain": "the learners train the same pushes again, bit for bit",
}
OF_WHAT: Final[dict[Level, str]] = {"audit": "tapes", "merge": "rounds", "retrain": "pushes"}

AHEAD: Final = 64
"""Rounds run side by side and may end out of turn, but not by so many."""


def run(
    tape: Annotated[Path, option("A tape, or a directory with those of several daemons.")],
    *,
    until: Annotated[int | None, option("Ignore everything after this round.", AtLeastOne)] = None,
    explain: Annotated[
        int | None,
        option(
            "Explain this round: who took part, with which weight, who was late and why.",
            AtLeastOne,
        ),
    ] = None,
    level: Annotated[Level, option("Go up to this level.")] = "retrain",
    project: Annotated[
        Path | None, option("A signed project that the tapes must belong to.")
    ] = None,
    json: Annotated[Path | None, option("Write the figures to this file.")] = None,
    home: HomeHere,
) -> int:
    """Replays; DONE if everything came out as recorded, FAILED if something did not."""
    wanted = None
    if project is not None:
        wanted = read_signed(file_commands.signed_path(project)).id
    levels = ("audit",) if explain is not None else LEVELS[: LEVELS.index(level) + 1]
    if explain is not None and until is None:
        until = explain + AHEAD
    console = Console(highlight=False, soft_wrap=False)
    status = console.status("reading the tape")
    try:
        with status:
            report = replay(
                tape,
                home.data_cache(),
                project=wanted,
                until=until,
                levels=levels,
                tell=lambda words: status.update(words),
            )
    except Diverged as error:
        if json is not None:
            write_json(json, {"diverged": error.event, "what": error.what, "place": error.place})
        failures.complain(str(error))
        return ExitCode.FAILED
    except TapeDamaged as error:
        raise UserError(f"The tape cannot be read: {error}.") from error
    if explain is not None:
        return _explain(console, report, explain)
    console.print(summary(report))
    for line in remarks(report):
        console.print(line, soft_wrap=True)
    if json is not None:
        write_json(json, figures(report))
    return ExitCode.DONE


def summary(report: ReplayReport) -> Table:
    """How many rounds reached which level."""
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.add_column("level")
    table.add_column("rounds", justify="right")
    table.add_column("what holds")
    reached = {"audit": report.audited, "merge": report.merged, "retrain": report.retrained}
    total = report.rounds_before + len(report.rounds)
    for level in LEVELS:
        if level in report.levels:
            table.add_row(level, f"{len(reached[level])} of {total}", MEANS[level])
        else:
            table.add_row(level, "not asked", MEANS[level])
    return table


def remarks(report: ReplayReport) -> list[str]:
    """What else there is to say, and all that was not looked at."""
    events = sum(one.events for one in report.audits)
    syncers = len(report.audits)
    lines = [f"\n{events:,} events of {syncers} syncer start{'s' * (syncers != 1)} run again."]
    if report.rounds_before:
        before, total = report.rounds_before, report.rounds_before + len(report.rounds)
        why = "are not on these tapes"
        if report.is_beheaded:
            why = "were dropped by rotation: the replay begins from a state that the tape kept"
        lines.append(f"The first {before} of {total} rounds {why}.")
    if "retrain" in report.levels and report.steps:
        lines.append(
            f"{report.steps:,} local steps done again; {report.pushes_reproduced} of "
            f"{report.pushes} merged pushes came out the same."
        )
    for level, reasons in report.untried.items():
        if level in report.levels:
            for reason, count in sorted(reasons.items()):
                lines.append(f"not tried ({level}, {count} {OF_WHAT[level]}): {reason}")
    if any(one.is_cut_short for one in report.audits):
        lines.append("The replay did not go past the named round.")
    for one in report.audits:
        if one.ended:
            lines.append(f"The tape of {one.preface.name} ends early: {one.ended}.")
    for life in report.tapes:
        for path, offset, size in life.cuts():
            lines.append(f"{path}: the last {size} bytes, from byte {offset} on, are half written")
    return lines


def figures(report: ReplayReport) -> dict[str, object]:
    """The same for programs."""
    return {
        "project": report.project.hex(),
        "rounds": len(report.rounds),
        "rounds_before": report.rounds_before,
        "audit": len(report.audited),
        "merge": len(report.merged),
        "retrain": len(report.retrained),
        "events": sum(one.events for one in report.audits),
        "pushes": report.pushes,
        "pushes_again": report.pushes_reproduced,
        "local_steps": report.steps,
        "untried": report.untried,
    }


def _explain(console: Console, report: ReplayReport, number: int) -> int:
    history = report.round_history(number)
    if history is None:
        known = sorted({one.round for one in report.rounds.values()})
        if not known:
            span = "tells of no committed round"
        elif number < known[0]:
            span = f"begins with round {known[0]}"
        else:
            span = f"tells of rounds {known[0]} to {known[-1]}"
        raise UserError(f"Round {number} is not on this tape, which {span}.")
    console.print(headline(history), soft_wrap=True)
    console.print(parts(history))
    return ExitCode.DONE


def headline(history: RoundHistory) -> str:
    """The round in a sentence or two."""
    step = "" if history.global_step is None else f", global step {history.global_step}"
    words = f"round {history.round}: fragment {history.fragment} to version {history.version}{step}"
    if history.opened_s == 0.0 and history.quorum == 0:
        return f"{words}. Led by another syncer, whose tape is not here: what the log tells of it."
    waited = "no quorum was reached"
    if history.quorum_s is not None:
        waited = (
            f"quorum of {history.quorum} after {history.quorum_s - history.opened_s:.2f} s, "
            f"grace window {history.grace_s:.2f} s"
        )
    ended = ""
    if history.ended_s is not None:
        ended = f" {history.ended_s - history.opened_s:.2f} s after it was opened"
    return f"{words}: {history.end}{ended}; {waited}."


def parts(history: RoundHistory) -> Table:
    """Who was in, with which weight; who was late, and why. Times count from the opening."""
    table = Table(box=None, pad_edge=False)
    table.add_column("learner", no_wrap=True)
    for name in ("asked s", "pushed s", "here s", "steps", "lag", "weight", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fate", overflow="fold")
    total = sum(part.weight or 0.0 for part in history.parts.values())
    for part in sorted(history.parts.values(), key=lambda one: (one.weight is None, one.name)):
        table.add_row(*_row(history, part, total))
    return table


def _row(history: RoundHistory, part: Part, total: float) -> list[str]:
    is_in = part.weight is not None
    has_push = part.steps > 0
    return [
        part.name,
        _since(history, part.asked_s),
        _since(history, part.handed_s),
        _since(history, part.arrived_s),
        str(part.steps) if has_push else "",
        str(part.lag) if has_push else "",
        f"{part.weight:,.0f}" if part.weight is not None else "",
        f"{100 * (part.weight or 0.0) / total:.1f} %" if is_in and total else "",
        f"{part.fate}: {part.why}" if part.why else part.fate,
    ]


def _since(history: RoundHistory, at_s: float | None) -> str:
    return "" if not at_s else f"{at_s - history.opened_s:.2f}"
