"""Training time when extra machines are there for part of the run (the paper's scavenging).

`share` of the token budget is trained while `extra` (1.0: as many again) is there. Decoupled
learners come and go for nothing, so that part is 1 + extra times as fast. Data parallel stops for
`stop_s` whenever machines change; per base cluster of extra ones that happens every `change_s`, and
changes within `notice_s` of the first share its stop. `notice_s` is set; `stop_s` and `change_s`
are fitted to the paper's row, which prints neither: two numbers for four cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.scale import published


@dataclass(frozen=True, slots=True)
class Borrowing:
    """How machines are borrowed; seconds, `share` in [0, 1]."""

    share: float = 0.5
    change_s: float = 7.5
    stop_s: float = 18.4
    notice_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Speedup:
    """Training time over that without extra machines."""

    extra: float
    dp: float
    decoupled: float
    paper_dp: float | None
    paper_decoupled: float | None
    machines_decoupled: float | None = None
    """As `decoupled`, by the machines themselves."""


def speedups(borrowing: Borrowing, extras: Sequence[float]) -> list[Speedup]:
    """One row per amount of extra compute."""
    known = borrowing == Borrowing()
    rows = []
    for extra in extras:
        ideal = borrowing.share / (1 + extra)
        changes = extra / borrowing.change_s
        stopped = changes * borrowing.stop_s / (1 + changes * borrowing.notice_s)
        rest = 1 - borrowing.share
        paper = published.SCAVENGE.get(extra, (None, None)) if known else (None, None)
        rows.append(Speedup(extra, rest + ideal * (1 + stopped), rest + ideal, *paper))
    return rows
