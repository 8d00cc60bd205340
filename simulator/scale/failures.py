"""One learner's cluster under failures, for many learners at once.

A learner is `slices` groups of chips. Chips fail as a Poisson process. A failure is noticed after
`notice_s`; until then the survivors' steps count. Then the learner stops:

- elastic: `shrink_s` to go on with fewer slices. A lost slice is back after `return_s`. The first
  that is back opens a window of `admit_s`; at its end all that are back are taken in with one stop
  of `grow_s`. A shrink takes in whatever is back already.
- rigid: `return_s` for the lost slice and `restart_s` for the job, which also loses what it did
  since its last checkpoint.

What fails while a learner stands still, or before the first failure is noticed, is handled by the
same stop. Source: the mechanisms are those the paper names (section on chaos engineering); how they
are put together, and their times, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a failure costs a learner: seconds, and slices per learner. See the module."""

    notice_s: float
    shrink_s: float
    grow_s: float
    return_s: float
    admit_s: float
    restart_s: float
    slices: int = 32
    checkpoint_s: float = 0.0


FITTED = Costs(
    notice_s=5.7, shrink_s=19.9, grow_s=6.4, return_s=60.0, admit_s=102.2, restart_s=26.0
)
"""Fitted to table 1a by `simulator/scale/fit.py`, restart time then by hand on its one row."""


@dataclass(frozen=True, slots=True)
class Lives:
    """What learners did, one column each: when they stepped, and how much came of it."""

    begin_s: Reals
    end_s: Reals
    """Both (events, learners). An interval without steps has equal ends."""
    work_s: Reals
    """(events, learners): what came of it, in seconds of the whole learner's capacity."""

    @property
    def useful_s(self) -> Reals:
        """(learners), in the same seconds."""
        useful: Reals = self.work_s.sum(axis=0)
        return useful


def elastic_lives(
    rate: Reals, horizon_s: Reals, costs: Costs, random: np.random.Generator
) -> Lives:
    """Learners that go on with what is left.

    Args:
        rate: (learners), failures per second of a whole learner.
        horizon_s: (learners), when to stop looking.
        costs: What a failure costs.
        random: Where chance comes from.
    """
    count, slices = len(rate), costs.slices
    returns = np.full((count, slices), -1.0)  # -1: at work; else when the slice is back
    now = np.zeros(count)
    begins, ends, work = [], [], []
    while bool(np.any(now < horizon_s)):
        away = returns >= 0
        at_work = slices - away.sum(axis=1)
        first_back = np.where(away, returns, np.inf).min(axis=1)
        admit_at = np.maximum(now, first_back + np.where(at_work > 0, costs.admit_s, 0.0))
        with np.errstate(divide="ignore"):
            fail_at = now + random.exponential(size=count) * slices / (rate * at_work)
        fails = fail_at < admit_at
        moment = np.where(fails, fail_at, admit_at)
        stop_at = np.minimum(np.where(fails, fail_at + costs.notice_s, admit_at), horizon_s)
        steps = at_work > 0
        begins.append(np.minimum(now, horizon_s))
        ends.append(np.where(steps, np.maximum(stop_at, begins[-1]), begins[-1]))
        before = np.minimum(moment, horizon_s)
        unnoticed_s = np.maximum(stop_at - np.maximum(before, now), 0.0)
        work.append(
            np.maximum(before - now, 0.0) * at_work / slices
            + unnoticed_s * (at_work - 1).clip(0) / slices
        )
        stop_s = np.where(fails, costs.shrink_s, costs.grow_s)
        stopped = np.where(fails, fail_at + costs.notice_s, admit_at)
        returns[away & (returns <= stopped[:, None])] = -1.0
        # What else breaks before the learner steps again. Only slices at work until then can.
        unseen_s = np.minimum(stopped - moment + stop_s, 1e9)
        lost = fails + random.poisson(rate * at_work / slices * unseen_s)
        standing = returns < 0
        order = np.cumsum(standing, axis=1)
        takes = standing & (order <= lost[:, None])
        broken = moment[:, None] + np.where(
            fails[:, None] & (order == 1), 0.0, random.random((count, 1)) * unseen_s[:, None]
        )
        returns = np.where(takes, broken + costs.return_s, returns)
        now = stopped + stop_s
    return Lives(np.array(begins), np.array(ends), np.array(work))


def rigid_lives(rate: Reals, horizon_s: Reals, costs: Costs, random: np.random.Generator) -> Lives:
    """Learners that stand still until every slice is back; arguments as `elastic_lives`."""
    count = len(rate)
    now = np.zeros(count)
    begins, ends, work = [], [], []
    while bool(np.any(now < horizon_s)):
        stop_at = now + random.exponential(size=count) / rate + costs.notice_s
        begins.append(np.minimum(now, horizon_s))
        ends.append(np.minimum(stop_at, horizon_s))
        ran = ends[-1] - begins[-1]
        if costs.checkpoint_s > 0:
            kept = np.floor(ran / costs.checkpoint_s) * costs.checkpoint_s
            ran = np.where(stop_at < horizon_s, kept, ran)
        work.append(ran)
        now = stop_at + costs.return_s + costs.restart_s
    return Lives(np.array(begins), np.array(ends), np.array(work))


def time_with_quorum(begin_s: Reals, end_s: Reals, quorum: int) -> float:
    """Seconds in which at least `quorum` of the learners step; (events, learners) each."""
    moments = np.concatenate([begin_s.ravel(), end_s.ravel()])
    change = np.repeat([1, -1], begin_s.size)
    order = np.argsort(moments, kind="stable")
    stepping = np.cumsum(change[order])[:-1]
    return float(np.sum(np.diff(moments[order])[stepping >= quorum]))
