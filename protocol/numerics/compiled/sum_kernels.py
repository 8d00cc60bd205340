"""The inner loops of the merge: sums of squares, and sums of payloads. Compiled as `kernels` are,
and bit for bit like their twins in `summing`.

What is added to an accumulator stays in registers for all the payloads of one pass, and its square
is taken there. Exact sums are numbers of 32-bit digits, so they have no order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from protocol.fragments import BLOCK
from protocol.numerics.compiled import kernels, vectors
from protocol.numerics.compiled.compiling import compiled
from protocol.numerics.compiled.kernels import F32, F64, I64, U16, Codes
from protocol.numerics.compiled.vectors import LANES, Cell, Row, Vector, spelt, when

TOGETHER: Final = 8
"""Payloads that are added in one pass."""

LIMB_BITS: Final = 32
LIMBS: Final = 68
"""Of an exact sum of float64 values, with room for the carries."""
LIMB_UNIT_BITS: Final = 1074
"""The first digit counts units of 2^-1074, the smallest float64."""

FEW: Final = 16
"""Numbers that hold the exact sum of many."""

_EXPONENTS = 256
_FACTOR_MIN = np.float32(2.0**-100)
_RUN = 64
"""Blocks whose factors are made at a time."""


@spelt("int32")
def _squares_of(codes: Row) -> Vector:
    """Of one block of codes: the sum of their squares, of int4 at most 128 times 64."""
    if codes.is_signed:
        total = codes.zeros().wide(32)
        for at in range(0, BLOCK, LANES):
            code = codes.load(at).wide_signed(32)
            total = total + code * code
        return total.folded(Vector.__add__)
    total = codes.zeros().wide(16)
    for at in range(0, kernels.HALF, LANES):
        packed = codes.load(at).wide(16)
        low, high = (packed & 15) - 8, (packed >> 4) - 8
        total = total + low * low + high * high
    return total.folded(Vector.__add__).wide(32)


@compiled
def _count(square: np.int32, bits: np.uint16, counts: I64) -> None:
    """Adds square times the square of the scale's mantissa where its exponent is counted."""
    mantissa = np.int64(bits & np.uint16(0x7F)) | 0x80
    counts[np.int64(bits >> np.uint16(7)) & 0xFF] += np.int64(square) * mantissa * mantissa


@compiled
def _carry_counts(counts: I64, limbs: I64) -> None:
    """Adds what was counted to an exact sum. A scale of 0 has exponent 0, which does not count."""
    for exponent in range(1, _EXPONENTS):
        value = np.uint64(counts[exponent])
        if value != 0:
            # A mantissa counts units of 2^-7 of a power of two with an excess of 127.
            _add_digits(value, 2 * (exponent - 127 - 7) + LIMB_UNIT_BITS, limbs)


@compiled
def _add_digits(value: np.uint64, place: int | np.int64, limbs: I64) -> None:
    """Adds value times two to the power of place."""
    limb, shift = place // LIMB_BITS, np.uint64(place % LIMB_BITS)
    low = (value & np.uint64(0xFFFFFFFF)) << shift
    high = (value >> np.uint64(32)) << shift
    limbs[limb] += np.int64(low & np.uint64(0xFFFFFFFF))
    limbs[limb + 1] += np.int64(low >> np.uint64(32)) + np.int64(high & np.uint64(0xFFFFFFFF))
    limbs[limb + 2] += np.int64(high >> np.uint64(32))


@compiled
def tally(codes: Codes, bits: U16, limbs: I64) -> None:
    """Adds the squares of the values of whole blocks to an exact sum."""
    counts, size = np.zeros(_EXPONENTS, np.int64), kernels.code_bytes(codes, 0)
    for block in range(bits.size):
        soon = block * size + kernels.SOON_CODES
        kernels.ahead(codes, soon)
        _count(_squares_of(codes, block * size), bits[block], counts)
    _carry_counts(counts, limbs)


@compiled
def _two_sum(one: float, other: float) -> tuple[float, float]:
    """The sum of both, rounded, and what rounding lost (D. Knuth, TAOCP 2, 4.2.2)."""
    total = one + other
    back = total - one
    return total, (one - (total - back)) + (other - back)


@compiled
def add_exactly(sums: F64, limbs: I64) -> None:
    """Adds finite, not negative float64 values to a number of 32-bit digits (int64 each).

    Fewer than 2^30 calls' worth of values fit before the digits must be carried.
    """
    bits = sums.view(np.uint64)
    for i in range(bits.size):
        exponent = np.int64(bits[i] >> np.uint64(52)) & 0x7FF
        mantissa = bits[i] & np.uint64(0xFFFFFFFFFFFFF)
        if exponent > 0:
            mantissa |= np.uint64(1) << np.uint64(52)
            exponent -= 1
        _add_digits(mantissa, exponent, limbs)


@compiled
def gather(sums: F64, few: F64) -> bool:
    """Fills `few` with `FEW` float64 numbers whose exact sum is that of `sums`; whether it could.

    Half of them are rounded sums, and half the exact sums of what rounding lost: of numbers that do
    not differ by more than some ten thousand million times, that has room in a float64.
    """
    lanes = FEW // 2
    few[:] = 0.0
    high, low, is_exact = few[:lanes], few[lanes:], True
    for first in range(0, sums.size, lanes):
        for at in range(min(lanes, sums.size - first)):
            high[at], lost = _two_sum(high[at], sums[first + at])
            low[at], beyond = _two_sum(low[at], lost)
            is_exact &= beyond == 0.0
    return is_exact


@spelt("float64")
def _square_of(values: Row) -> Vector:
    """The sum of squares of one block, in the order that is fixed."""
    return vectors.total_of_squares([values.load(at) for at in range(0, BLOCK, LANES)])


@compiled
def squares(values: F32, sums: F64) -> None:
    """Fills `sums` (float64) with the sum of squares of each block of `values` (float32).

    Halves are added to halves, until one number is left.
    """
    for block in range(sums.size):
        base = block * BLOCK
        kernels.ahead(values, base + kernels.SOON * BLOCK)
        sums[block] = _square_of(values, base)


def _read(plane: Row, scale: Vector) -> list[Vector]:
    """One block, sixteen values at a time: values as they are, or codes times their scale."""
    if plane.is_float:
        return [plane.load(at) for at in range(0, BLOCK, LANES)]
    found = {at: product + 0.0 for at, product in kernels.products(plane, scale)}
    return [found[at] for at in range(0, BLOCK, LANES)]


@spelt("float64")
def _product_of(plane: Row, scale: Vector, others: Row) -> Vector:
    """The sum of products of two blocks, in the order that is fixed."""
    theirs = [others.load(at) for at in range(0, BLOCK, LANES)]
    return vectors.total_of_products(_read(plane, scale), theirs)


@compiled
def products(plane: Codes | F32, scales: F32, others: F32, sums: F64) -> None:
    """Fills `sums` (float64) with the sum of products of each block of a plane, of float32 values
    or of codes with their scales, and of `others` (float32)."""
    size = kernels.code_bytes(plane, 0)
    for block in range(sums.size):
        soon = block + kernels.SOON
        kernels.ahead(plane, soon * size)
        kernels.ahead(others, soon * BLOCK)
        sums[block] = _product_of(plane, block * size, scales[block], others, block * BLOCK)


@spelt(None)
def _add_scaled_block(plane: Row, scale: Vector, factor: Vector, into: Row) -> None:
    factors = factor.spread()
    for at, values in enumerate(_read(plane, scale)):
        into.store(at * LANES, into.load(at * LANES) + values * factors)


@compiled
def add_scaled(plane: Codes | F32, scales: F32, factor: np.float32, total: F32) -> None:
    """Adds such a plane times a factor to `total` (float32); nothing is flushed."""
    size = kernels.code_bytes(plane, 0)
    for block in range(scales.size):
        at = block * BLOCK
        _add_scaled_block(plane, block * size, scales[block], factor, total, at)


@spelt(None)
def _copy_block(plane: Row, into: Row) -> None:
    for at in range(0, BLOCK if plane.is_signed else kernels.HALF, LANES):
        into.store(at, plane.load(at))


@compiled
def pick(plane: Codes | F32, chosen: I64, into: Codes | F32) -> None:
    """Fills `into` with the blocks of these numbers; both of one kind."""
    size, last = kernels.code_bytes(plane, 0), chosen.size - 1
    for place in range(chosen.size):
        soon = chosen[min(place + kernels.SOON, last)]
        kernels.ahead(plane, soon * size)
        _copy_block(plane, chosen[place] * size, into, place * size)


@compiled
def pick_scales(bits: U16, chosen: I64, into: F32) -> None:
    """The same of bf16 scales, as float32."""
    for place in range(chosen.size):
        into[place] = kernels.wide(bits[chosen[place]])


@compiled
def squares_of_codes(codes: Codes, scales: F32, sums: F64) -> None:
    """Fills `sums` (float64) with the sum of squares of each block of codes with their scales:
    whole numbers times the square of a scale, which are exact in any order."""
    size = kernels.code_bytes(codes, 0)
    for block in range(sums.size):
        scale = np.float64(scales[block])
        sums[block] = np.float64(_squares_of(codes, block * size)) * (scale * scale)


@compiled
def _factors(bits: U16, factor: float, out: F32) -> None:
    """Fills `out` with scale times factor, rounded to float32 once; 0 where it is below 2^-100.

    So a code times it, and every sum of such products, is 0 or normal.
    """
    for block in range(bits.size):
        product = np.float32(np.float64(kernels.wide(bits[block])) * factor)
        out[block] = product if abs(product) >= _FACTOR_MIN else kernels.ZERO


def _begun(into: Row, is_new: Vector) -> list[Cell]:
    """The accumulators of one block: +0, or what is there."""
    cells = [Cell(into.zeros()) for _ in range(0, BLOCK, LANES)]
    with when((is_new ^ 1).is_set(), is_new):
        for at, cell in enumerate(cells):
            cell.set(into.load(at * LANES))
    return cells


def _ended(into: Row, cells: list[Cell], is_last: Vector) -> Vector:
    """Puts the accumulators back; their sum of squares if this was the last pass, else 0."""
    found = [cell.get() for cell in cells]
    for at, values in enumerate(found):
        into.store(at * LANES, values)
    total = Cell(vectors.zero_double(is_last))
    with when(is_last.is_set(), is_last):
        total.set(vectors.total_of_squares(found))
    return total.get()


@spelt("float64")
def _add_block(
    planes: list[Row], factors: Row, into: Row, count: Vector, is_new: Vector, is_last: Vector
) -> Vector:
    """Adds one block of each payload to the accumulators. Factors are `_RUN` elements apart."""
    cells = _begun(into, is_new)
    for number, codes in enumerate(planes):
        with when(count > number, count):
            for at in codes.lines(BLOCK if codes.is_signed else kernels.HALF):
                codes.hint(kernels.SOON_CODES + at)
            for at, product in kernels.products(codes, factors.one(number * _RUN)):
                cell = cells[at // LANES]
                cell.set(cell.get() + product)
    return _ended(into, cells, is_last)


@compiled
def add(
    planes: tuple[Codes, ...],
    bits: tuple[U16, ...],
    shares: F64,
    count: int,
    total: F32,
    is_new: bool,
    is_last: bool,
    limbs: I64,
) -> None:
    """Adds the values of one payload after the other, each times its share, to `total` (float32).

    planes and bits: codes and scales of eight payloads, of which the first `count` are added;
    is_new: whether it begins with +0, whatever is there; is_last: whether the squares of the total
    are added to an exact sum, `limbs`.
    """
    blocks, size = total.size // BLOCK, kernels.code_bytes(planes[0], 0)
    factors, sums = np.empty(TOGETHER * _RUN, np.float32), np.empty(_RUN, np.float64)
    for first in range(0, blocks, _RUN):
        many = min(_RUN, blocks - first)
        for at in range(count):
            here = factors[at * _RUN : at * _RUN + many]
            _factors(bits[at][first : first + many], shares[at], here)
        for block in range(first, first + many):
            soon = (block + kernels.SOON) * BLOCK
            kernels.ahead(total, soon)
            sums[block - first] = _add_block(
                planes,
                block * size,
                factors,
                block - first,
                total,
                block * BLOCK,
                count,
                is_new,
                is_last,
            )
        if is_last:
            add_exactly(sums[:many], limbs)


@compiled
def stretch(values: F32, factor: float, largest: float) -> None:
    """Multiplies float32 values by a float64 factor in place, within plus and minus `largest`;
    flushed."""
    for start in range(0, values.size, BLOCK):
        kernels.ahead(values, start + kernels.SOON * BLOCK)
        here = values[start : start + BLOCK]
        for i in range(here.size):
            product = np.float64(here[i]) * factor
            here[i] = kernels.flushed(np.float32(min(max(product, -largest), largest)))
