"""Goodput and uptime of data parallel and of Decoupled DiLoCo (the paper's table 1).

Goodput: share of the chips' time that became training. Uptime: share of time in which at least
a quorum of learners steps. Learners are independent of each other: none ever waits for another,
and the syncer is taken as never down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.scale import published
from simulator.scale.failures import Costs, elastic_lives, rigid_lives, time_with_quorum

RIGID: Final = "DP"
ELASTIC: Final = "DP elastic"
DECOUPLED: Final = "Decoupled"


@dataclass(frozen=True, slots=True)
class Cell:
    """One method on one cluster; shares are in [0, 1], the paper's goodput in percent."""

    method: str
    learners: int
    chips: int
    goodput: float
    uptime: float
    paper_goodput: float | None
    paper_uptime: float | None
    machines_goodput: float | None = None
    """As `goodput`, by the machines themselves."""
    machines_kept: float | None = None
    """Of their local steps, those that were merged."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look: learners simulated per cell, and failures that each of them sees."""

    samples: int = 64
    failures: int = 300


def cells(
    chips: Sequence[int],
    learners: Sequence[int],
    *,
    mtbi_s: float,
    costs: Costs,
    seed: int,
    quorum: int = 1,
    effort: Effort | None = None,
) -> list[Cell]:
    """The table, method by method, rigid data parallel first. One learner is elastic DP.

    Args:
        chips: Cluster sizes.
        learners: Numbers of learners, each from 1.
        mtbi_s: Mean seconds between interruptions of one chip.
        costs: What a failure costs.
        seed: Same seed, same rows.
        quorum: Learners that must step for the swarm to count as up, at most all.
        effort: How long to look.
    """
    methods = [(RIGID, 1), *((DECOUPLED if many > 1 else ELASTIC, many) for many in learners)]
    return [
        _cell(method, many, size, mtbi_s, costs, min(quorum, many), effort or Effort(), seed)
        for method, many in methods
        for size in chips
    ]


def _cell(
    method: str,
    learners: int,
    chips: int,
    mtbi_s: float,
    costs: Costs,
    quorum: int,
    effort: Effort,
    seed: int,
) -> Cell:
    swarms = max(1, effort.samples // learners)
    rate = chips / (learners * mtbi_s)
    # A cell's chance depends on what it is, not on which other cells are asked for.
    random = np.random.default_rng([seed, learners, chips, int(method == RIGID)])
    horizon_s = effort.failures / rate
    lives = (rigid_lives if method == RIGID else elastic_lives)(
        np.full(swarms * learners, rate), np.full(swarms * learners, horizon_s), costs, random
    )
    up_s = sum(
        time_with_quorum(
            lives.begin_s[:, first : first + learners],
            lives.end_s[:, first : first + learners],
            quorum,
        )
        for first in range(0, swarms * learners, learners)
    )
    goodput = float(np.mean(lives.useful_s)) / horizon_s
    full = learners >= published.FULL_UPTIME_LEARNERS
    at_paper = chips in published.CHIPS and mtbi_s == published.MTBI_S
    return Cell(
        method=method,
        learners=learners,
        chips=chips,
        goodput=min(1.0, goodput),
        uptime=min(1.0, up_s / (swarms * horizon_s)),
        paper_goodput=paper_goodput(method, learners, chips) if at_paper else None,
        paper_uptime=100.0 if at_paper and full and quorum == 1 else None,
    )


def paper_goodput(method: str, learners: int, chips: int) -> float | None:
    """Percent in table 1a, or None where it has no such cell."""
    row = published.RIGID_GOODPUT if method == RIGID else published.ELASTIC_GOODPUT.get(learners)
    return (
        None if row is None or chips not in published.CHIPS else row[published.CHIPS.index(chips)]
    )


def misfit(rows: Sequence[Cell]) -> tuple[float, float] | None:
    """Root mean square and largest distance from the paper in points, or None without it."""
    off = [100 * row.goodput - row.paper_goodput for row in rows if row.paper_goodput is not None]
    return (float(np.sqrt(np.mean(np.square(off)))), float(np.max(np.abs(off)))) if off else None
