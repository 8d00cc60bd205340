"""The verdict on each scenario, as a table for people and a file for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from shoal.chaos.observations import Figures
from tui.text import fmt

GOODPUT_KEPT_MIN: Final = 0.97
STEP_PAUSE_S_MAX: Final = 3.0
"""A learner that nobody touched trains on, whatever happens elsewhere. An evaluation, or this
machine starting several programs at once, takes a part of this."""

LOSS_RISE_MAX: Final = 1.1
"""Held-out losses of so small a model jump a little from one measurement to the next."""


@dataclass(slots=True)
class Losses:
    """What the logs say about merges from before the fault."""

    merges: int
    """Certified before the fault."""
    records: int
    merges_lost: int
    """Of these, missing on the disk of some syncer at the end, or replaced by another record."""
    records_lost: int


@dataclass(slots=True)
class Outcome:
    """One scenario that came to its end."""

    name: str
    what: str
    figures: Figures
    losses: Losses
    steps_back: int = 0
    losses_gone: int = 0
    needs_takeover: bool = False
    trouble: str = ""
    """What was still not well in the end."""


def compare(
    before: Mapping[int, tuple[bytes, bool]],
    after: Sequence[tuple[int, Mapping[int, tuple[bytes, bool]]]],
) -> Losses:
    """Which records from before the fault are not in every log after it.

    before: (digest, is a merge) by index. after: for each syncer, the index behind which its log
    begins, and its records. What lies before that beginning is in a state that was fetched whole.
    """
    lost = {
        index
        for index, known in before.items()
        for floor, log in after
        if index > floor and log.get(index) != known
    }
    return Losses(
        merges=sum(is_merge for _, is_merge in before.values()),
        records=len(before),
        merges_lost=sum(before[index][1] for index in lost),
        records_lost=len(lost),
    )


def reasons(outcome: Outcome) -> list[str]:
    """Why the scenario failed; empty if it passed."""
    found, said = outcome.figures, []
    if outcome.losses.records_lost:
        said.append(
            f"{fmt.plural(outcome.losses.records_lost, 'certified record')} "
            f"({fmt.plural(outcome.losses.merges_lost, 'merge')}) from before the fault missing"
        )
    if not outcome.losses.merges:
        said.append("nothing had been merged before the fault")
    if outcome.steps_back:
        said.append("a later leader had fewer merges than the one before it")
    if outcome.losses_gone:
        said.append("held-out losses that were known are missing at a later leader")
    if outcome.needs_takeover and not found.terms:
        said.append("no other syncer was elected")
    if found.well_after_s is None:
        said.append(f"it did not recover in time: {outcome.trouble or 'unknown why'}")
    said += _about_learners(found)
    return said


def _about_learners(found: Figures) -> list[str]:
    said = []
    # Written so that what is no number fails too.
    if not found.goodput_kept >= GOODPUT_KEPT_MIN:
        said.append(
            f"goodput fell to {fmt.percent(found.goodput_kept)} of what it was; "
            f"{fmt.percent(GOODPUT_KEPT_MIN)} must be kept"
        )
    if found.step_pause_s > STEP_PAUSE_S_MAX:
        said.append(
            f"{found.step_pause_of} made no local step for {fmt.duration(found.step_pause_s)}"
        )
    before, after = found.loss_before, found.loss_after
    is_measured = before is not None and after is not None
    if is_measured and not (math.isfinite(after) and after <= before * LOSS_RISE_MAX):  # type: ignore[arg-type, operator]
        said.append(f"the held-out loss rose from {fmt.loss(before)} to {fmt.loss(after)}")
    return said


HEADINGS: Final = (
    *("scenario", "merges\nlost", "without\nleader", "merging\npaused", "steps\npaused"),
    *("goodput\nkept", "held-out\nloss", "well\nagain", "verdict"),
)


def table(outcomes: Sequence[Outcome]) -> Table:
    """A line for each scenario."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in HEADINGS:
        is_word = heading in ("scenario", "verdict")
        made.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for outcome in outcomes:
        made.add_row(*cells(outcome), verdict(outcome))
    return made


def cells(outcome: Outcome) -> list[str]:
    """The figures of one scenario as people read them, less the verdict."""
    found = outcome.figures
    well = "no" if found.well_after_s is None else _seconds(found.well_after_s)
    well = "always" if found.well_after_s == 0 else well
    return [
        outcome.name,
        str(outcome.losses.merges_lost),
        _seconds(found.leaderless_longest_s),
        _seconds(found.merging_pause_s),
        _seconds(found.step_pause_s),
        f"{found.goodput_kept * 100:.1f} %",
        f"{_loss(found.loss_before)} → {_loss(found.loss_after)}",
        well,
    ]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def verdict(outcome: Outcome) -> Text:
    """In a word."""
    return Text("FAILED", style="bold red") if reasons(outcome) else Text("PASSED", style="green")


def sentences(outcomes: Sequence[Outcome]) -> list[tuple[str, bool]]:
    """A verdict line for each scenario, and whether it passed."""
    said = []
    for outcome in outcomes:
        why = reasons(outcome)
        line = f"FAILED  {outcome.name}: {'; '.join(why)}" if why else _praise(outcome)
        said.append((line, not why))
    return said


def _praise(outcome: Outcome) -> str:
    found, losses = outcome.figures, outcome.losses
    assert found.well_after_s is not None
    assert found.well_after_end_s is not None
    led = "one leader throughout"
    if found.terms:
        led = f"{fmt.plural(found.terms, 'new term')}, {found.leaderless_s:.1f} s without a leader"
    well = "well all the time"
    if found.well_after_s:
        well = f"well {_seconds(found.well_after_end_s)} after the last act"
    return (
        f"PASSED  {outcome.name}: {led}; all {losses.merges:,} merges from before are kept; "
        f"learners that nobody touched paused {found.step_pause_s:.2f} s at most, with steps of "
        f"{found.step_median_s * 1e3:.0f} ms; {well}"
    )


NOTE: Final = (
    "without leader, merging paused, steps paused: the longest stretch. Local steps and goodput "
    "are those of learners that nobody touched; a throttled learner's rest counts as work. Goodput "
    "kept: during the fault, by before. Well again: from the first blow until every syncer stood "
    "by, every learner trained and merges went on."
)


def as_json(outcomes: Sequence[Outcome], *, version: str, wall_s: float) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "version": version,
        "wall_s": round(wall_s, 1),
        "passed": all(not reasons(one) for one in outcomes),
        "scenarios": [
            {
                "scenario": one.name,
                "what": one.what,
                "passed": not reasons(one),
                "reasons": reasons(one),
                **asdict(one.losses),
                **asdict(one.figures),
            }
            for one in outcomes
        ],
    }
