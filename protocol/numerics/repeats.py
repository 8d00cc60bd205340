"""What of a push is its learner's own, and how far that repeats the own parts of its former pushes.

A push has what the others have too, and the rest: its own part. In honest pushes that is mostly the
noise of the text that was read for it, which is other text each time, so own parts of two pushes of
one fragment are nearly orthogonal. Who hands in what others hand in and always the same beside it,
as long as its direction allows, has an own part that repeats itself. What stays the same adds up
over pushes and noise does not, so a push is compared with all former ones of its learner, the newer
ones more: a constant that is a third of a push, below the noise of each, is most of that.

A learner with text of another kind has something of its own that stays as well; one that reads what
it is leased has not: figures are beside `protocol.standing.REPEATS_FULL`. The bits are the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.fragments import Fragment
from protocol.numerics import codecs
from protocol.numerics.codecs import F32
from protocol.numerics.directions import Sample
from protocol.numerics.picked import Picked
from protocol.numerics.summing import Source
from protocol.numerics.workers import Workers

OWN_BLOCKS = 64
"""Blocks of a fragment in which own parts are compared: 8,192 elements tell to about 2 % how far
one repeats another."""

KEPT = 0.9
"""Of what is remembered of a learner, what is left when a push is added to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Former:
    """Own parts of one fragment, as far as they are remembered."""

    seed: int
    """Of the draw of their blocks, the same for all; nobody who hands in may know it."""
    parts: Mapping[bytes, F32] = field(default_factory=dict)
    """By learner: the sum of its own parts, as `remembered` makes it; 0 where there were none."""


def remembered(before: F32 | None, own: F32) -> F32:
    """What to remember of a learner's own parts: at most 1 / (1 - `KEPT`) long.

    before: what was; None for its first push of the fragment. own: of its newest, as `compared`
    finds it.
    """
    if before is None:
        return own
    kept = before * np.float32(KEPT) + own
    codecs.flush(kept)
    return kept


def compared(
    sources: Sequence[Source],
    voices: Sequence[float],
    momentum: F32 | None,
    fragment: Fragment,
    former: Former,
    work: Workers,
) -> list[tuple[float, F32]]:
    """Of each push: how far it repeats its learner's former own parts, from -1 to 1, and its own.

    The first is the share of the push's length that lies along the sum of those, once what it has
    in common with the others is taken away; 0 where nothing is remembered. momentum: stands for the
    others where it is given; else they are the sum of the other pushes, each as loud as its voice.
    Cost: a copy of these blocks for each push.
    """
    sample = Sample(fragment, former.seed, OWN_BLOCKS)
    units = work.map(lambda source: _unit(sample.of(source).values()), sources)
    told = np.zeros(sample.elements, np.float32)
    if momentum is not None:
        told += sample.of_values(momentum)
    else:
        for _, voice, unit in sorted(
            zip(sources, voices, units, strict=True), key=lambda one: one[0].key
        ):
            told += unit * np.float32(voice)

    def compare(place: tuple[Source, float, F32]) -> tuple[float, F32]:
        source, voice, unit = place
        others = told if momentum is not None else told - unit * np.float32(voice)
        others = _unit(others.copy())
        own = unit - others * np.float32(_product(unit, others))
        codecs.flush(own)
        before = former.parts.get(source.key[0])
        repeat = 0.0 if before is None else _product(own, _unit(before.copy()))
        return min(1.0, max(-1.0, repeat)), _unit(own)

    return work.map(compare, list(zip(sources, voices, units, strict=True)))


def _product(one: F32, other: F32) -> float:
    return Picked.of_values(one).product(other)


def _unit(values: F32) -> F32:
    """Changed in place to length 1, or to 0."""
    length = Picked.of_values(values).length
    values *= np.float32(1.0 / length if length > 0 else 0.0)
    codecs.flush(values)
    return values
