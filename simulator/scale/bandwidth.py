"""How fast a link between learners must be, per method and codec (the paper's table 13).

All methods hide communication behind work where they can: data parallel behind the backward pass,
two thirds of a step; the streaming ones behind `overlap` steps. What is not hidden is waiting, and
utilisation = work / (work + waiting). Data parallel's ring is over all devices, of which there are
many: 2 of the bits; a ring over M learners moves 2 (1 - 1/M). Decoupled learners never wait: each
sends a fragment in every `sync_every` / `fragments` steps, and within the overlap, whatever the
utilisation.
The formulas are ours: the paper prints no model size. It is fitted to one of its figures, and the
others follow, those of eight data centres from the one that they are printed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from simulator.scale import published

Codec = Literal["bf16", "int8", "int4", "int2", "int1"]

DECOUPLED: Final = "Decoupled"

CODEC_BITS: Final[dict[Codec, float]] = {
    "bf16": 16.0,
    "int8": 8.125,
    "int4": 4.125,
    "int2": 2.125,
    "int1": 1.125,
}
"""Bits per parameter on the wire; below bf16 with a 16-bit scale for 128 values."""

BACKWARD_SHARE: Final = 2 / 3
FITTED_PARAMETERS: Final = 2.53e9
"""Model size at which data parallel needs what table 13a prints; fitted."""


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
    codec: Codec
    utilisation: float
    gbps: float
    paper_gbps: float | None
    machines_pace: float | None = None
    """Merges for each that was wanted, by the machines themselves on such links."""
    machines_pace_doubled: float | None = None
    """The same where links are twice as fast."""


def needs(link: Link, codecs: Sequence[Codec], utilisations: Sequence[float]) -> list[Need]:
    """Every method with every codec at every utilisation; data parallel in bf16 only."""
    reference = link == Link()
    rows = []
    for method in ("DP", "DiLoCo", "Streaming DiLoCo", DECOUPLED):
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
    ring_of_all = 2 * whole
    fragment = 1 / link.fragments
    every = link.sync_every / link.fragments
    match method:
        case "DP":
            return ring_of_all / (link.step_s * (BACKWARD_SHARE + wait))
        case "DiLoCo":
            return ring / (link.step_s * link.sync_every * wait)
        case "Streaming DiLoCo":
            return ring * fragment / (link.step_s * (link.overlap + every * wait))
    return whole * fragment / (link.step_s * min(every, link.overlap))


def predicted_of_eight() -> float:
    """Gb/s of Decoupled with int4, at the size at which data parallel needs what the paper prints
    for eight data centres."""
    printed, _ = published.BANDWIDTH_OF_EIGHT_GBPS
    whole = required_gbps("DP", Link(), CODEC_BITS["bf16"], 0.9)
    link = Link(FITTED_PARAMETERS * printed / whole)
    return required_gbps(DECOUPLED, link, CODEC_BITS["int4"], 0.9)
