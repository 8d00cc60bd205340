"""How long pushes may be: as a whole, by the work in them, and in each tensor.

Norms are compared with their median over learners: of the pushes in a merge, and of the newest
push of each learner that has none in it. Fewer than three have no such median.

A tensor's norm is kept in one byte, as a share of the norm of its push in eighths of an octave. So
the log can say of every learner's newest push how long it was in each tensor.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.merge_rules import MergeRules

CLIP_PUSHES_MIN = 3
"""Fewer pushes have no majority whose median could say which one is the outlier."""

_STEPS = (
    1.0,
    0.9170040432046712,
    0.8408964152537145,
    0.7711054127039704,
    0.7071067811865476,
    0.6484197773255048,
    0.5946035575013605,
    0.5452538663326288,
)
"""Eighths of an octave. A table, for powers are not rounded alike on all machines."""

_FALLING = tuple(-step for step in _STEPS)
"""To be searched."""

_CODES = 256


@dataclass(frozen=True, slots=True)
class Length:
    """Of one push of positive weight, in this merge or before."""

    norm: float
    steps: int = 0
    """Local steps in it; 0 where that is not known."""
    tensors: tuple[float, ...] = ()
    """Norms by tensor; empty where they are not known."""


@dataclass(frozen=True, slots=True)
class Medians:
    """What is usual; None where too few are known."""

    norm: float | None
    per_root: float | None
    """Norm over the root of the local steps: a random walk is as long as that root."""
    tensors: tuple[float | None, ...]
    steps: float | None
    """Local steps."""


def medians(known: Sequence[Length], tensors: int) -> Medians:
    """Of all that is known of a fragment with so many tensors."""
    by_tensor = [one.tensors for one in known if len(one.tensors) == tensors]
    return Medians(
        _median([one.norm for one in known]),
        _median([one.norm / math.sqrt(one.steps) for one in known if one.steps > 0]),
        tuple(_median([norms[at] for norms in by_tensor]) for at in range(tensors)),
        usual_steps(known),
    )


def usual_steps(known: Sequence[Length]) -> float | None:
    """The median of local steps; None where too few are known."""
    return _median([one.steps for one in known if one.steps > 0])


def _median(norms: Sequence[float]) -> float | None:
    return statistics.median(norms) if len(norms) >= CLIP_PUSHES_MIN else None


def limit(usual: Medians, multiple: float, *, is_new: bool) -> float:
    """How long a push may be by the charter: so many times the median.

    A new learner's may be as long as the median itself, where trust is earned.
    """
    if usual.norm is None:
        return math.inf
    return usual.norm if is_new else multiple * usual.norm


def limit_for_work(usual: Medians, steps: int, rules: MergeRules) -> float:
    """How long a push with so many local steps may be."""
    if usual.per_root is None or not usual.per_root or steps < 1 or rules.length_max == math.inf:
        return math.inf
    return rules.length_max * usual.per_root * math.sqrt(steps)


def work_factor(usual: Medians, steps: int, most: float) -> float:
    """How many times as long tensors of a push with so many steps may be for its work, from 1 to
    `most`: those of one that is fast grow as all of it does."""
    if usual.steps is None or steps <= usual.steps:
        return 1.0
    return max(1.0, min(most, math.sqrt(steps / usual.steps)))


def tensor_scales(
    norms: Sequence[float], scale: float, usual: Medians, multiple: float
) -> tuple[float, ...]:
    """What each tensor of a push is multiplied by, the push as a whole being scaled already.

    A tensor may be so many times as long as its median. Where most pushes leave one alone its
    median is zero, which says nothing of those that do not.
    """
    found = []
    for norm, median in zip(norms, usual.tensors, strict=True):
        most = multiple * median if median else math.inf
        found.append(most / norm if norm * scale > most else scale)
    return tuple(found)


def encode(norms: Sequence[float], whole: float) -> bytes:
    """One byte for each tensor; a push of one tensor needs none. Never shorter than it is."""
    return bytes(_code(norm, whole) for norm in norms) if len(norms) > 1 else b""


def _code(norm: float, whole: float) -> int:
    if not norm > 0 or not whole > 0:
        return 0
    # What is too small for a float has a name of its own as well: the last one.
    mantissa, exponent = math.frexp(max(norm / whole, 2.0**-1000))
    eighths = bisect_right(_FALLING, -mantissa) - 1
    return min(_CODES - 1, max(1, 1 + eighths - 8 * exponent))


def decode(codes: bytes, whole: float) -> tuple[float, ...]:
    """The norms; at most a tenth more than they were, or 2^-31 of the whole."""
    return tuple(
        math.ldexp(whole * _STEPS[(code - 1) % 8], -((code - 1) // 8)) if code else 0.0
        for code in codes
    )
