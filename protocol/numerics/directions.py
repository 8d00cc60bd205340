"""Where pushes point: cosines to the others', and pushes that are too much alike.

Nothing here needs every element. Of a large fragment 512 blocks are compared, one out of each of as
many stretches, drawn anew for each merge: the cosine of 65,536 elements strays by some 0.4 % from
that of all, and who hands in does not know which are looked at.

The result has the same bits everywhere: products of blocks are summed in a fixed order and then
exactly (`protocol.numerics.picked`), and likenesses are of whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.fragments import BLOCK, Fragment
from protocol.merge_rules import LIKENESS_MAX
from protocol.numerics import codecs
from protocol.numerics.codecs import F32
from protocol.numerics.picked import Picked, pick, pick_values
from protocol.numerics.summing import Source
from protocol.numerics.workers import Workers
from protocol.standing import MANY_PUSHES

SAMPLE_BLOCKS = 512
"""Blocks of a fragment that are compared."""

SAMPLES_KEPT = 16
"""Samples that are kept during a merge: at most 4 MiB, however many pushes are in it."""

LIKENESS_BLOCKS = 32
"""Of these, blocks in which each push is compared with every other."""


def elements_compared(numel: int) -> int:
    """How many elements of a fragment of `numel` are compared."""
    return min(numel, SAMPLE_BLOCKS * BLOCK)


class Sample:
    """The blocks of one fragment that stand for all of it in one merge."""

    def __init__(self, fragment: Fragment, seed: int, blocks: int = SAMPLE_BLOCKS) -> None:
        """seed: from 0 to 2^64 - 1; nobody who hands in may know it. blocks: at most so many."""
        self._blocks = _drawn(fragment.numel // BLOCK, seed, blocks)
        self._padding = _padding(fragment, self._blocks)
        self._kept: dict[tuple[bytes, int, int], Picked] = {}

    @property
    def elements(self) -> int:
        return self._blocks.size * BLOCK

    def of(self, source: Source) -> Picked:
        """Of a payload, with zeros for whatever the padding holds.

        Each is looked at up to four times: the first few are kept, for picking costs the most.
        """
        picked = self._kept.get(source.key)
        if picked is None:
            picked = pick(source, self._blocks, self._padding)
            if len(self._kept) < SAMPLES_KEPT:
                self._kept[source.key] = picked
        return picked

    def once(self, source: Source) -> F32:
        """The same of a payload that is looked at once, as values: it is not kept."""
        return pick(source, self._blocks, self._padding).values()

    def of_values(self, values: F32) -> F32:
        """The same of a decoded fragment."""
        return pick_values(values, self._blocks, self._padding)


def _drawn(blocks: int, seed: int, wanted: int) -> NDArray[np.int64]:
    if blocks <= wanted:
        return np.arange(blocks, dtype=np.int64)
    borders = np.arange(wanted + 1, dtype=np.int64) * blocks // wanted
    chance = blake3(seed.to_bytes(8, "big")).digest(length=8 * wanted)
    offsets = np.frombuffer(chance, "<u8") % np.diff(borders).astype(np.uint64)
    return borders[:-1] + offsets.astype(np.int64)


def _padding(fragment: Fragment, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places in the sample that belong to no tensor."""
    found = []
    for span in fragment.spans:
        start, stop = span.offset + span.numel, span.offset + span.padded
        if start < stop:  # The padding of a tensor is within its last block.
            at = np.searchsorted(blocks, start // BLOCK)
            if at < blocks.size and blocks[at] == start // BLOCK:
                found.append(np.arange(start, stop) - (blocks[at] - at) * BLOCK)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def cosines_to(other: F32, sources: Sequence[Source], sample: Sample, work: Workers) -> list[float]:
    """Of each push to a decoded fragment; 0 where one of both is zero."""
    its = sample.of_values(other)
    length = Picked.of_values(its).length

    def cosine(source: Source) -> float:
        mine = sample.of(source)
        return _cosine(mine.product(its), mine.length * length)

    return work.map(cosine, sources)


@dataclass(frozen=True, slots=True)
class Toward:
    """How a push at unit length lies to the sum of the others'."""

    dot: float
    length: float
    """Of that sum."""
    is_somewhere: bool = True
    """The push is not zero."""

    @property
    def cosine(self) -> float:
        """0 where one of both is zero."""
        return _cosine(self.dot, self.length)


def toward_others(
    sources: Sequence[Source], voices: Sequence[float], sample: Sample, work: Workers
) -> list[Toward]:
    """Of each push, to the sum of the other pushes' unit vectors, each as loud as its voice.

    Not to the momentum, where enough are here: who repeats itself has made the momentum its own.
    """
    lengths = work.map(lambda source: sample.of(source).length, sources)
    ordered = sorted(zip(sources, voices, lengths, strict=True), key=lambda one: one[0].key)
    others = np.zeros(sample.elements, np.float32)
    for source, voice, length in ordered:
        if voice > 0 and length > 0:
            sample.of(source).add_to(others, voice / length)
    codecs.flush(others)
    square = Picked.of_values(others).square

    def toward(place: tuple[Source, float, float]) -> Toward:
        source, voice, length = place
        if not length > 0:
            return Toward(0.0, math.sqrt(square), is_somewhere=False)
        along = sample.of(source).product(others) / length
        rest = square - 2.0 * voice * along + voice * voice
        return Toward(along - voice, math.sqrt(max(rest, 0.0)))

    return work.map(toward, list(zip(sources, voices, lengths, strict=True)))


def _cosine(dot: float, lengths: float) -> float:
    return min(1.0, max(-1.0, dot / lengths)) if lengths > 0 else 0.0


def crowds(
    sources: Sequence[Source],
    sample: Sample,
    work: Workers,
    likeness_max: float = LIKENESS_MAX,
) -> list[int]:
    """Of each push: with how many it is one, itself among them.

    Pushes are one if they are alike beyond what is usual here, or both like a third. Where more
    than half of them are one, that is how this fragment moves for everybody, and each counts alone.
    """
    signs = np.stack(work.map(lambda source: _signs(sample.of(source)), sources))
    alike = signs @ signs.T  # Sums of less than 2^24 whole numbers: exact in any order.
    counts = alike.diagonal()
    squares = np.outer(counts, counts)
    near = alike * alike > _too_alike(alike, squares, likeness_max) ** 2 * squares
    near &= alike > 0
    group = list(range(len(sources)))
    for first, second in zip(*np.nonzero(np.triu(near, 1)), strict=True):
        former, kept = group[second], group[first]
        if former != kept:
            group = [kept if one == former else one for one in group]
    sizes = [group.count(one) for one in group]
    return [1 if 2 * size > len(sources) else size for size in sizes]


def _too_alike(alike: F32, squares: F32, likeness_max: float) -> float:
    """Beyond this two pushes are one: `likeness_max`, or more where all are much alike.

    The first local steps of a run go the same way whatever is read. So likeness is measured from
    that of the pair in the middle, which a minority cannot move; of few pushes it is chance.
    """
    if len(alike) < MANY_PUSHES:
        return likeness_max
    first, second = np.triu_indices(len(alike), 1)
    pairs = alike[first, second] / np.sqrt(np.maximum(squares[first, second], 1))
    return max(likeness_max, (3.0 + float(np.median(pairs))) / 4.0)


def _signs(picked: Picked) -> F32:
    """+1, -1, or 0 for what is small, of evenly chosen blocks: all that likeness looks at."""
    chosen, square = picked.every(-(-picked.blocks // LIKENESS_BLOCKS))
    middle = math.sqrt(square) / math.sqrt(chosen.size)
    signs: F32 = np.sign(chosen) * (np.abs(chosen) >= np.float32(middle / 2))
    return signs
