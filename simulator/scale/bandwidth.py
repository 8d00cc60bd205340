"""How fast a link between learners must be, per method and codec (the paper's table 13).

All methods hide communication behind work where they can: data parallel behind the backward pass,
two thirds of a step; the streaming ones behind `overlap` steps. What is not hidden is waiting, and
utilisation = work / (work + waiting). Rings move 2 (1 - 1/M) of the bits. Decoupled learners never
wait: a fragment must travel, one way, within the overlap, whatever the utilisation.
The formulas are ours: the paper prints three figures, and neither model size nor learners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.scale import published

CODEC_BITS: Final = {"bf16": 16.0, "int8": 8.125, "int4": 4.125, "int2": 2.125, "int1": 1.125}
"""Bits per parameter on the wire; below bf16 with a 16-bit scale for 128 values."""

BACKWARD_SHARE: Final = 2 / 3
FITTED_PARAMETERS: Final = 5.05e9
"""Model size at which two learners need what table 13a prints; fitted."""


@dataclass(frozen=True, slots=True)
class Link:
    """A training run as its links see it; `overlap` and `sync_every` in local steps."""

    parameters: float = FITTED_PARAMETERS
    learners: int = 2
    step_s: float = 1.0
    sync_every: int = 24
    fragments: int = 24
    overlap: int = 2


@dataclass(frozen=True, slots=True)
class Need:
    """Gb/s that one learner's link must carry at a utilisation in (0, 1)."""

    method: str
    codec: str
    utilisation: float
    gbps: float
    paper_gbps: float | None


def needs(link: Link, codecs: Sequence[str], utilisations: Sequence[float]) -> list[Need]:
    """Every method with every codec at every utilisation; data parallel in bf16 only."""
    reference = link == Link()
    rows = []
    for method in ("DP", "DiLoCo", "Streaming DiLoCo", "Decoupled"):
        for codec in ("bf16",) if method == "DP" else codecs:
            for share in utilisations:
                paper = published.BANDWIDTH_GBPS.get((method, codec))
                known = reference and abs(share - 0.9) < 1e-9
                gbps = required_gbps(method, link, CODEC_BITS[codec], share)
                rows.append(Need(method, codec, share, gbps, paper if known else None))
    return rows


def required_gbps(method: str, link: Link, bits: float, utilisation: float) -> float:
    """Gb/s for one method, at `bits` per parameter."""
    wait = 1 / utilisation - 1  # seconds of waiting per second of work
    whole = bits * link.parameters / 1e9
    ring = 2 * (1 - 1 / link.learners) * whole
    fragment = 1 / link.fragments
    every = link.sync_every / link.fragments
    match method:
        case "DP":
            return ring / (link.step_s * (BACKWARD_SHARE + wait))
        case "DiLoCo":
            return ring / (link.step_s * link.sync_every * wait)
        case "Streaming DiLoCo":
            return ring * fragment / (link.step_s * (link.overlap + every * wait))
    return whole * fragment / (link.step_s * link.overlap)
