"""How much of a push was merged lately, and where the rest of it points.

What was merged lately of a fragment, and its outer momentum, span a few dimensions. A push at unit
length has coordinates there; they tell its echo, and from them and a few inner products follows the
cosine between what is left of two vectors, neither of which is ever formed. All of it is looked at
in the sample of one merge (`protocol.numerics.directions`), and summed in a fixed order: the same
bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.numerics.codecs import F32
from protocol.numerics.directions import Sample, Toward
from protocol.numerics.picked import Picked
from protocol.numerics.summing import Source
from protocol.numerics.workers import Workers

DEPENDENT = 1e-4
"""Square of what a vector of unit length adds to the span: one that adds less is left out."""

NOTHING_LEFT = 1e-6
"""Squared share of a vector: less than that is rounding."""

Coordinates = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lately:
    """The span of what was merged lately, in one sample."""

    vectors: tuple[F32, ...]
    lengths: tuple[float, ...]
    rows: tuple[Coordinates, ...]
    """Of each vector at unit length, its coordinates in an orthonormal basis; lower triangular."""

    @classmethod
    def of(cls, vectors: Sequence[F32]) -> Lately:
        """Of samples of the same elements; those that are zero, or add nothing, are left out."""
        span = cls((), (), ())
        for values in vectors:
            picked = Picked.of_values(values)
            if not picked.length > 0:
                continue
            along = span.coordinates(picked)
            left = 1.0 - _square(along)
            if left > DEPENDENT:
                row = (*along, math.sqrt(left))
                span = cls(
                    (*span.vectors, values), (*span.lengths, picked.length), (*span.rows, row)
                )
        return span

    def coordinates(self, values: Picked) -> Coordinates:
        """Of these values, scaled to unit length; they are not all zero."""
        found: list[float] = []
        for vector, its, row in zip(self.vectors, self.lengths, self.rows, strict=True):
            cosine = values.product(vector) / (its * values.length)
            found.append((cosine - _dot(row, found)) / row[-1])
        return tuple(found)


def echoes(
    sources: Sequence[Source], lately: Lately, sample: Sample, work: Workers
) -> list[Coordinates]:
    """The coordinates of each push in what was merged lately; a zero push has none but zeros."""

    def one(source: Source) -> Coordinates:
        values = sample.of(source)
        return lately.coordinates(values) if values.length > 0 else (0.0,) * len(lately.rows)

    return work.map(one, sources)


def share(along: Coordinates) -> float:
    """Of a push's length, how much lies there, from 0 to 1."""
    return min(1.0, math.sqrt(_square(along)))


def novelties(
    found: Sequence[Coordinates], voices: Sequence[float], toward: Sequence[Toward]
) -> list[float | None]:
    """The cosine of what is left of each push to what is left of the sum of the others'.

    found: of each push; voices: how loud it is in that sum; toward: as `toward_others` has it.
    None where the push is zero, or nothing of the others is left; 0 where nothing of the push is.
    """
    axes = range(len(found[0]) if found else 0)
    whole = [_dot(voices, [along[axis] for along in found]) for axis in axes]
    made: list[float | None] = []
    for along, voice, one in zip(found, voices, toward, strict=True):
        others = [whole[axis] - voice * along[axis] for axis in axes]
        mine, theirs = 1.0 - _square(along), one.length**2 - _square(others)
        if not one.is_somewhere or theirs <= NOTHING_LEFT * one.length**2:
            made.append(None)
        elif mine <= NOTHING_LEFT:
            made.append(0.0)
        else:
            cosine = (one.dot - _dot(along, others)) / math.sqrt(mine * theirs)
            made.append(min(1.0, max(-1.0, cosine)))
    return made


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """As far as both go."""
    return math.fsum(one * other for one, other in zip(left, right, strict=False))


def _square(values: Sequence[float]) -> float:
    return _dot(values, values)
