"""Learners of different speed: who waits, and who is in a merge (the paper's mixed hardware).

Time is in steps of a fast learner. A local step takes its kind's time, times a normal factor of
relative deviation `variance`. With K = M every learner waits for the slowest at each global step.
With K = 1 none waits: the syncer asks once per step of the fast ones, each answers at its next step
boundary, and the merge takes whoever answered until the first did, or until `grace` steps later.
Whoever is late hands its work in with the next merge. No number is fitted; the wait at every
step was chosen among readings of the paper because it meets its figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.scale import published

ROUNDS: Final = 2000


@dataclass(frozen=True, slots=True)
class Mix:
    """Learners of two speeds; `gap` is how much longer a slow step takes, `variance` relative."""

    fast: int = 4
    slow: int = 4
    gap: float = 0.18
    variance: float = 0.10
    grace: float = 0.9


@dataclass(frozen=True, slots=True)
class Setting:
    """What became of it. Goodput in [0, 1]; `merged` is the mean share of learners in a merge."""

    setting: str
    goodput: float
    merged: float
    merge_steps: float
    """From asking to merging, in steps of a fast learner."""
    paper_goodput: float | None
    machines_goodput: float | None = None
    """This and the following as above, by the machines themselves."""
    machines_merged: float | None = None
    machines_merge_steps: float | None = None
    machines_kept: float | None = None
    """Of their local steps, those that were merged."""


def settings(mix: Mix, seed: int) -> list[Setting]:
    """The three rows; same seed, same rows."""
    random = np.random.default_rng(seed)
    many = mix.fast + mix.slow
    mean = np.concatenate([np.ones(mix.fast), np.full(mix.slow, 1 + mix.gap)])
    steps = mean * np.maximum(0.05, 1 + mix.variance * random.standard_normal((2 * ROUNDS, many)))
    slowest = steps.max(axis=1)
    rows = [("K = M", float(steps.mean() / slowest.mean()), 1.0, float(slowest.mean()))]
    ends = np.cumsum(steps, axis=0)
    asked = np.arange(1, ROUNDS) * 1.0
    answers = np.stack(
        [ends[np.searchsorted(ends[:, who], asked), who] for who in range(many)], axis=1
    )
    first = answers.min(axis=1)
    for name, grace in (("K = 1", 0.0), ("K = 1 + grace", mix.grace)):
        until = np.minimum(first + grace, answers.max(axis=1))
        merged = float((answers <= until[:, None]).mean())
        rows.append((name, 1.0, merged, float((until - asked).mean())))
    paper = published.HETEROGENEOUS_GOODPUT
    known = (mix.fast, mix.slow, mix.gap, mix.variance) == (4, 4, 0.18, 0.10)
    return [Setting(*row, float(paper[row[0]]) if known else None) for row in rows]
