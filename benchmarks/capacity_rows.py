"""What a case of the capacity benchmark is, and the row that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LEARNERS_PER_PROCESS = 64
SIZES = {"10m": (256, 10), "100m": (768, 11), "1b": (2048, 15)}
"""Width and depth of Llama models of about so many parameters, over a vocabulary of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured."""

    parameters: str = "10m"
    """One of SIZES."""
    learners: int = 4
    fragments: int = 24
    overlap: int = 4
    """Rounds in flight at most."""
    downloads: bool = True
    """Whether learners fetch merged payloads."""
    is_light: bool = False
    """Whether learners are connected with the syncer alone, not with each other."""
    step_s: float = 0.25
    """Of a learner's local step; one is enough for the next push."""
    syncs: int = 3
    """Full model syncs that are measured."""
    warm: int = 1
    """Full model syncs before that, with all learners."""
    seconds: float = 120.0
    """What is measured ends after so long at the latest, at a whole number of merges."""
    processes: int = 0
    """That hold the learners; 0: one for each 64."""
    profile: Path | None = None
    """py-spy, if it is installed, writes here where the syncer spends its time; it costs some."""

    @property
    def children(self) -> int:
        return self.processes or math.ceil(self.learners / LEARNERS_PER_PROCESS)


@dataclass(slots=True, kw_only=True)
class Row:
    """What was found. CPU is user and system time in seconds of one core, per full model sync."""

    case: dict[str, Any]
    parameters: int
    window_s: float
    merges: int
    syncs: float
    """Merges in the window by the number of fragments."""
    participants: float
    """Learners in a merge, mean."""
    sync_s: float
    merges_per_s: float
    syncer_cpu_s: float
    syncer_system_s: float
    """Of that in the kernel: sockets, files, and memory that is handed out anew."""
    syncer_faults: float
    """Pages of memory handed out to the syncer, per full model sync."""
    engine_cpu_s: float
    """Of the syncer's network engine."""
    learners_cpu_s: float
    """Of all learners and their engines."""
    learners_engines_cpu_s: float
    """Of that the engines'."""
    cores_busy: float
    """Of the machine, mean, by whoever; little more than the three above, if it is quiet."""
    cores_ours: float
    """The three above."""
    cores: int
    rss_before_gb: float
    """Of the syncer process, before the first learner came."""
    rss_peak_gb: float
    """In the window."""
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    bytes_in: float
    """Received by the syncer, per parameter, learner and model sync."""
    bytes_out: float
    outcomes: dict[str, int] = field(default_factory=dict)
    start_s: float = 0.0
    """Until all learners trained."""

    def line(self) -> str:
        """For a table on a terminal; `heading()` stands above it."""
        cells = (f"{value(self):{width}.{digits}f}" for _, width, digits, value in COLUMNS)
        return " ".join(cells)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


COLUMNS: tuple[tuple[str, int, int, Callable[[Row], float]], ...] = (
    ("Mparam", 6, 0, lambda row: row.parameters / 1e6),
    ("M", 4, 0, lambda row: row.case["learners"]),
    ("s/sync", 7, 2, lambda row: row.sync_s),
    ("merge/s", 7, 2, lambda row: row.merges_per_s),
    ("learn/m", 7, 1, lambda row: row.participants),
    ("syncer", 7, 2, lambda row: row.syncer_cpu_s),
    ("system", 6, 2, lambda row: row.syncer_system_s),
    ("engine", 7, 2, lambda row: row.engine_cpu_s),
    ("learner", 7, 2, lambda row: row.learners_cpu_s),
    ("engines", 7, 2, lambda row: row.learners_engines_cpu_s),
    ("ours", 5, 2, lambda row: row.cores_ours),
    ("busy", 5, 2, lambda row: row.cores_busy),
    ("GB", 6, 2, lambda row: row.rss_before_gb),
    ("peak", 6, 2, lambda row: row.rss_peak_gb),
    ("lag50", 6, 1, lambda row: row.lag_p50_ms),
    ("lag99", 6, 1, lambda row: row.lag_p99_ms),
    ("lagmax", 6, 1, lambda row: row.lag_max_ms),
    ("B in", 6, 3, lambda row: row.bytes_in),
    ("B out", 6, 3, lambda row: row.bytes_out),
)


def heading() -> str:
    """Names of the columns of `Row.line`."""
    return " ".join(f"{name:>{width}}" for name, width, _, _ in COLUMNS)
