"""What was seen of a small swarm over time, and what a fault cost by it. Arithmetic only."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class StepSeen(NamedTuple):
    """A learner's newest local step, when it was first seen."""

    at_s: float
    local_step: int
    work_s: float
    alive_s: float
    life: int
    """Process id of its trainer: another one counts from 0 again."""


class LeaderSeen(NamedTuple):
    """Who leads from this moment on; nobody if the name is empty."""

    at_s: float
    name: str
    term: int


class MergeSeen(NamedTuple):
    """A leader's global step, when it was first seen."""

    at_s: float
    term: int
    global_step: int


class LossSeen(NamedTuple):
    """A held-out loss and the global step that it belongs to."""

    global_step: int
    loss: float


@dataclass(slots=True)
class Recording:
    """Only what changed is kept, with the moment at which the change was seen."""

    steps: dict[str, list[StepSeen]] = field(default_factory=dict)
    leaders: list[LeaderSeen] = field(default_factory=list)
    merges: list[MergeSeen] = field(default_factory=list)
    losses: list[LossSeen] = field(default_factory=list)
    steps_back: int = 0
    """How often a leader of a newer term had fewer global steps than one before it."""
    losses_gone: int = 0
    """How often a measured loss was missing, or another one, in what a later leader says."""

    def see_step(self, name: str, seen: StepSeen) -> None:
        """What a learner says of itself."""
        known = self.steps.setdefault(name, [])
        if not known or (known[-1].local_step, known[-1].life) != (seen.local_step, seen.life):
            known.append(seen)

    def see_leader(self, seen: LeaderSeen) -> None:
        """Who leads now."""
        if not self.leaders or self.leaders[-1][1:] != seen[1:]:
            self.leaders.append(seen)

    def see_merges(self, seen: MergeSeen) -> None:
        """What the leader has merged."""
        last = self.merges[-1] if self.merges else None
        if last is not None and seen.global_step < last.global_step and seen.term > last.term:
            self.steps_back += 1
        if last is None or seen.global_step > last.global_step:
            self.merges.append(seen)

    def see_curve(self, curve: Sequence[tuple[int, int, float]]) -> None:
        """What the leader knows of held-out losses; what was known before must be in it."""
        said = [LossSeen(step, loss) for step, _, loss in curve]
        if said[: len(self.losses)] != self.losses[: len(said)]:
            self.losses_gone += 1
        if len(said) > len(self.losses):
            self.losses = said


@dataclass(slots=True)
class Window:
    """The moments of one scenario, on the clock of the recording."""

    began_s: float
    """The undisturbed time before the fault begins here."""
    struck_s: float
    ended_s: float = 0.0
    """Nothing more is broken, and what was killed was started again."""
    well_s: float | None = None
    """Everything is as before; None if it did not come to that in time."""
    closed_s: float = 0.0
    """The end of what is looked at."""


@dataclass(slots=True)
class Figures:
    """What one fault cost."""

    leaderless_s: float
    """In all."""
    leaderless_longest_s: float
    terms: int
    """How many newer terms there were."""
    merging_pause_s: float
    merging_pause_before_s: float
    step_pause_s: float
    """The longest pause between two local steps of a learner that was not touched."""
    step_pause_of: str
    step_pause_before_s: float
    step_median_s: float
    """Of that learner, before the fault."""
    goodput: dict[str, float]
    """During the fault, of each learner that was not touched."""
    goodput_before: dict[str, float]
    goodput_kept: float
    """The smallest quotient of the two."""
    loss_before: float | None
    loss_after: float | None
    well_after_s: float | None
    """From the first blow."""
    well_after_end_s: float | None
    """From the end of the fault."""


def longest_gap(moments: Iterable[float], begins_s: float, ends_s: float) -> float:
    """The longest time in the window in which nothing happened.

    A gap that reaches into the window counts whole; one that lasts beyond it counts until its end.
    """
    before, longest = begins_s, 0.0
    for at_s in moments:
        if at_s <= begins_s:
            before = at_s
        elif at_s < ends_s:
            longest, before = max(longest, at_s - before), at_s
    return max(longest, ends_s - before)


def leaderless(seen: Sequence[LeaderSeen], begins_s: float, ends_s: float) -> list[float]:
    """The stretches of the window in which nobody led."""
    found, since_s = [], None
    for one in seen:
        if one.at_s >= ends_s:
            break
        if not one.name:
            since_s = max(one.at_s, begins_s) if since_s is None else since_s
        elif since_s is not None:
            found.append(max(0.0, one.at_s - since_s))
            since_s = None
    if since_s is not None:
        found.append(ends_s - max(since_s, begins_s))
    return [length for length in found if length > 0.0]


def goodput(seen: Sequence[StepSeen], begins_s: float, ends_s: float) -> float | None:
    """Seconds in local steps over seconds alive between the first and the last step in the window.

    None without two steps. A trainer that was replaced meanwhile was not alive in between, so that
    time counts as alive too.
    """
    inside = [one for one in seen if begins_s <= one.at_s <= ends_s]
    work_s = alive_s = 0.0
    for before, after in itertools.pairwise(inside):
        if after.life == before.life:
            work_s += after.work_s - before.work_s
            alive_s += after.alive_s - before.alive_s
        else:
            alive_s += after.at_s - before.at_s
    return work_s / alive_s if alive_s > 0.0 else None


def median_step_s(seen: Sequence[StepSeen], begins_s: float, ends_s: float) -> float:
    """The median of the time per local step, by pairs of looks; 0 where that cannot be told."""
    inside = [one for one in seen if begins_s <= one.at_s <= ends_s]
    times = [
        (after.at_s - before.at_s) / (after.local_step - before.local_step)
        for before, after in itertools.pairwise(inside)
        if after.life == before.life and after.local_step > before.local_step
    ]
    return statistics.median(times) if times else 0.0


def figures(record: Recording, window: Window, survivors: Sequence[str]) -> Figures:
    """What the fault in this window cost.

    survivors: the learners that were not touched.
    """
    began_s, struck_s, closed_s = window.began_s, window.struck_s, window.closed_s
    gaps = leaderless(record.leaders, struck_s, closed_s)
    merged = [one.at_s for one in record.merges]
    steps = {name: record.steps.get(name, []) for name in survivors}
    paused = _pauses(steps, struck_s, closed_s)
    worst = max(paused, key=lambda name: paused[name], default="")
    during = {name: goodput(seen, struck_s, closed_s) or 0.0 for name, seen in steps.items()}
    before = {name: goodput(seen, began_s, struck_s) or 0.0 for name, seen in steps.items()}
    well_s = window.well_s
    loss_before, loss_after = _losses(record, window)
    return Figures(
        leaderless_s=sum(gaps),
        leaderless_longest_s=max(gaps, default=0.0),
        terms=_terms(record.leaders, struck_s, closed_s),
        merging_pause_s=longest_gap(merged, struck_s, closed_s),
        merging_pause_before_s=longest_gap(merged, began_s, struck_s),
        step_pause_s=paused.get(worst, 0.0),
        step_pause_of=worst,
        step_pause_before_s=max(_pauses(steps, began_s, struck_s).values(), default=0.0),
        step_median_s=median_step_s(steps.get(worst, []), began_s, struck_s),
        goodput=during,
        goodput_before=before,
        goodput_kept=min((during[one] / before[one] for one in steps if before[one]), default=0.0),
        loss_before=loss_before,
        loss_after=loss_after,
        well_after_s=None if well_s is None else max(0.0, well_s - struck_s),
        well_after_end_s=None if well_s is None else max(0.0, well_s - window.ended_s),
    )


def _pauses(
    steps: Mapping[str, Sequence[StepSeen]], begins_s: float, ends_s: float
) -> dict[str, float]:
    return {
        name: longest_gap((one.at_s for one in seen), begins_s, ends_s)
        for name, seen in steps.items()
    }


def _terms(leaders: Sequence[LeaderSeen], struck_s: float, closed_s: float) -> int:
    """How far the term rose."""
    before = max((one.term for one in leaders if one.at_s <= struck_s), default=0)
    after = max((one.term for one in leaders if one.at_s <= closed_s), default=0)
    return max(0, after - before)


def _losses(record: Recording, window: Window) -> tuple[float | None, float | None]:
    """The last loss of a model from before the fault, and the last of one from after it."""

    def merged_by(at_s: float) -> int:
        return max((one.global_step for one in record.merges if one.at_s <= at_s), default=-1)

    struck, ended = merged_by(window.struck_s), merged_by(window.ended_s)
    before = [one.loss for one in record.losses if one.global_step <= struck]
    after = [one.loss for one in record.losses if one.global_step > ended]
    return (before[-1] if before else None), (after[-1] if after else None)
