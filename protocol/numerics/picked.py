"""Some blocks of a payload or of a fragment, and the sums over them that say where it points.

Where loops are compiled the codes of int8 and int4 stay codes: they take a quarter or an eighth of
the room, so that those of many pushes stay in a core's cache while they are compared. Each value is
formed again whenever it is needed, with the bits that decoding gives it.

Sums of blocks are in float64, in an order fixed here; the sum of these is exact, rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from protocol.fragments import BLOCK
from protocol.numerics import codecs, low_bit, summing
from protocol.numerics.codecs import F32
from protocol.numerics.compiled import kernels, sum_kernels
from protocol.numerics.summing import F64, I64, Source
from protocol.numerics.workers import pieces

MANY = 128
"""Numbers from which on it is worth the while to make few of them before they are added."""


class Picked:
    """Values of whole blocks, one block after the other."""

    def __init__(self, plane: Any, scales: F32, sums: F64) -> None:
        """plane: values, with scales of one; or codes, with the scale of each block. sums: of the
        squares of each block."""
        self._plane, self._scales, self._sums = plane, scales, sums
        self.square = _exactly(sums)
        """The sum of all squares."""
        self.length = math.sqrt(self.square)

    @classmethod
    def of_values(cls, values: F32) -> Picked:
        """All of a flat array, which is not copied."""
        ones = np.ones(values.size // BLOCK, np.float32)
        return cls(values, ones, summing.block_sums(values))

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self._scales.size)

    def product(self, others: F32) -> float:
        """The inner product with a flat array as long: the same bits everywhere."""
        sums = np.empty(self._scales.size, np.float64)
        if kernels.IS_COMPILED:
            sum_kernels.products(self._plane, self._scales, others, sums)
            return _exactly(sums)
        for at, end in pieces(others.size, 0, codecs.CHUNK):
            wide = self._plane[at:end].reshape(-1, BLOCK).T.astype(np.float64, order="C")
            wide *= others[at:end].reshape(-1, BLOCK).T
            sums[at // BLOCK : end // BLOCK] = low_bit.folded(wide)
        return _exactly(sums)

    def add_to(self, total: F32, factor: float) -> None:
        """Adds the values times a factor, which is rounded to float32, as is each product and each
        sum; none is flushed."""
        if kernels.IS_COMPILED:
            sum_kernels.add_scaled(self._plane, self._scales, np.float32(factor), total)
        else:
            total += self._plane * np.float32(factor)

    def values(self) -> F32:
        """All of them, as a new flat array."""
        values, _ = self.every(1)
        return values.copy()

    def every(self, step: int) -> tuple[F32, float]:
        """Values of each block of so many, the first of them too, and the sum of their squares."""
        plane = self._plane.reshape(self._scales.size, -1)[::step].reshape(-1)
        square = _exactly(self._sums[::step])
        if plane.dtype == np.float32:
            return plane, square
        scales = self._scales[::step].copy()
        values = np.empty(scales.size * BLOCK, np.float32)
        kernels.decode(plane, scales, values)
        return values, square


def pick(source: Source, chosen: I64, padding: I64) -> Picked:
    """These blocks of a payload, with zeros in those places among them."""
    codes = source.whole_planes()
    if codes is not None and kernels.IS_COMPILED:
        plane, scales = _blocks(codes[0], chosen), np.empty(chosen.size, np.float32)
        sum_kernels.pick_scales(codes[1], chosen, scales)
        _clear(plane, padding)
        sums = np.empty(chosen.size, np.float64)
        sum_kernels.squares_of_codes(plane, scales, sums)
        return Picked(plane, scales, sums)
    values = source.blocks(chosen)
    _clear(values, padding)
    return Picked.of_values(values)


def pick_values(values: F32, chosen: I64, padding: I64) -> F32:
    """The same of a flat array, as a new one."""
    found: F32 = _blocks(values, chosen)
    _clear(found, padding)
    return found


def _blocks(plane: Any, chosen: I64) -> Any:
    """These blocks of values or of codes, as a new array."""
    size = BLOCK // 2 if plane.dtype == np.uint8 else BLOCK
    if not kernels.IS_COMPILED:
        return plane.reshape(-1, size)[chosen].reshape(-1)
    found, fixed = np.empty(chosen.size * size, plane.dtype), plane.view()
    # One kind of array for all, or the loop would be compiled for each.
    fixed.flags.writeable = False
    sum_kernels.pick(fixed, chosen, found)
    return found


def _clear(plane: Any, places: I64) -> None:
    """Makes the values in these places zero."""
    if not places.size:
        return
    if plane.dtype != np.uint8:
        plane[places] = 0
        return
    # The code of zero is 8, in the low half of a byte for the first half of a block.
    block, element = np.divmod(places, BLOCK)
    half, at = np.divmod(element, BLOCK // 2)
    bytes_at = block * (BLOCK // 2) + at
    for which, mask, code in ((0, 0xF0, 0x08), (1, 0x0F, 0x80)):
        here = bytes_at[half == which]
        plane[here] = plane[here] & np.uint8(mask) | np.uint8(code)


def _exactly(sums: F64) -> float:
    """Their exact sum, rounded once."""
    if kernels.IS_COMPILED and sums.size >= MANY:
        few = np.empty(sum_kernels.FEW, np.float64)
        if sum_kernels.gather(sums, few):
            return math.fsum(few.tolist())
    return math.fsum(sums.tolist())
