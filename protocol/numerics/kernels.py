"""The inner loops of codecs, merge and outer step, compiled by numba. Each has a twin in numpy.

A kernel works on one chunk, gives the interpreter's lock free, allocates nothing, and gives the
very bits of its twin: no fast-math, every product and sum rounded on its own, sums of float64 in
the twin's order or exact, so that they have none. What a CPU mode could change, such as how a
subnormal compares, is decided on the bits. So results depend neither on threads nor on whether
numba is installed.

Arrays are flat. `blocks` are 128 elements; codes and scales are those of the chunk, as
`protocol.numerics.codecs` lays them out. Layout and rounding are defined there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.fragments import BLOCK
from protocol.numerics.prefetch import ahead

nb: Any
try:
    nb = import_module("numba")
except ImportError:  # The twins do the same, slower.
    nb = None

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
I8: TypeAlias = NDArray[np.int8]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]
U16: TypeAlias = NDArray[np.uint16]
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])

IS_COMPILED: Final = nb is not None and sys.byteorder == "little"
HALF: Final = BLOCK // 2

LIMB_BITS: Final = 32
LIMBS: Final = 68
"""Of an exact sum of float64 values, with room for the carries."""
LIMB_UNIT_BITS: Final = 1074
"""The first digit counts units of 2^-1074, the smallest float64."""

SCALE_MIN: Final = np.uint16(0x0D80)
"""2^-100 as bf16 bits."""
SCALE_MAX: Final = np.uint16(0x7180)
"""2^100 as bf16 bits; Inf and NaN are above it."""

_EXPONENT = np.int32(0x7F80_0000)
_SIGN = np.int32(-0x8000_0000)
_ROUNDER = np.float32(12_582_912.0)
"""1.5 * 2^23: adding it and taking it away rounds to the nearest integer, ties to even."""
_ZERO = np.float32(0.0)
_NORMAL_MIN = np.float32(2.0**-126)
_ROUNDER_BITS = np.int32(0x4B40_0000)
_UNIT = np.float32(1.0)
_INT4_OFFSET = np.float32(8.0)
_INT8_MAX = np.float32(127.0)
_FACTOR_MIN = np.float32(2.0**-100)
_FEW = 4
"""Blocks that are encoded together: what one loop reads, the next finds in the nearest cache."""
_SOON = 8
"""Blocks between the one at work and the one that is loaded."""
# Plain Python integers would make every intermediate 64 bits wide.
_SEVEN, _EIGHT, _FIFTEEN, _NIBBLE = np.int32(7), np.int32(8), np.int32(15), np.int32(4)
_ONE, _LAST, _TOP = np.uint32(1), np.uint32(31), np.uint32(0x8000_0000)


def _compiled(function: _Kernel) -> _Kernel:
    """The function, compiled at its first call and kept on disk; itself where numba is missing."""
    if nb is None:
        return function
    made: _Kernel = nb.njit(nogil=True, cache=True, error_model="numpy")(function)
    return made


def _inlined(function: _Kernel) -> _Kernel:
    """The same for a part of a kernel that gets slices: called, each would be counted."""
    if nb is None:
        return function
    made: _Kernel = nb.njit(nogil=True, inline="always", error_model="numpy")(function)
    return made


@_compiled
def _flushed(value: np.float32) -> np.float32:
    """+0 for a subnormal and for -0, in every CPU mode: read as 0 it is below the limit too."""
    return _ZERO if abs(value) < _NORMAL_MIN else value


@_compiled
def _bf16(value: np.float32) -> np.uint16:
    """Bits of the nearest bf16, ties to even; the largest values become Inf, as Inf and NaN do."""
    bits = np.uint32(np.float32(value).view(np.uint32))
    if (bits & np.uint32(0x7FFF_FFFF)) > np.uint32(0x7F80_0000):
        return np.uint16(0x7F80)
    halfway = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16((bits + halfway) >> np.uint32(16))


@_compiled
def _wide(bits: np.uint16) -> np.float32:
    """The value of bf16 bits."""
    return np.float32(np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32))


@_inlined
def _extreme(bits: I32) -> np.uint32:
    """Of one block, the bits of the element of largest magnitude, of two equal ones the positive.
    Inf and NaN come out as such: they are the largest.

    The sign rides in the lowest bit, so that one comparison of integers finds both.
    """
    most = np.uint32(0)
    for i in range(BLOCK):
        turned = np.uint32(np.uint32(bits[i]) ^ _TOP)
        most = max(most, np.uint32(np.uint32(turned << _ONE) | np.uint32(turned >> _LAST)))
    return np.uint32(np.uint32(np.uint32(most >> _ONE) | np.uint32(most << _LAST)) ^ _TOP)


@_compiled
def _scales_of(extremes: F32, divisor: np.float32, bits: U16, inverses: F32) -> bool:
    """Fills `bits` with the scales of blocks, and `inverses` with what turns values into codes;
    whether every scale is sound.

    A scale below 2^-100 is 0, with an inverse of 1: all of that block gets code 0.
    """
    is_sound = True
    for block in range(bits.size):
        scale = _bf16(extremes[block] / divisor)
        magnitude = np.uint16(scale & np.uint16(0x7FFF))
        is_sound = is_sound and bool(magnitude <= SCALE_MAX)
        scale = scale if magnitude >= SCALE_MIN else np.uint16(0)
        bits[block] = scale
        inverses[block] = _UNIT / _wide(scale) if scale != 0 else _UNIT
    return is_sound


@_compiled
def _rounded(value: np.float32) -> np.int32:
    """The nearest integer, ties to even, of a value below 2^22 in magnitude."""
    return np.int32(np.int32(np.float32(value + _ROUNDER).view(np.int32)) - _ROUNDER_BITS)


@_inlined
def _code_int4(values: F32, inverse: np.float32, codes: U8) -> None:
    """The codes of one block."""
    for i in range(HALF):
        low = min(_rounded(values[i] * inverse), _SEVEN)
        high = min(_rounded(values[HALF + i] * inverse), _SEVEN)
        first, second = np.int32(low + _EIGHT), np.int32(high + _EIGHT)
        codes[i] = np.uint8(np.int32(first | np.int32(second << _NIBBLE)))


@_inlined
def _code_int8(values: F32, inverse: np.float32, codes: I8) -> None:
    for i in range(BLOCK):
        codes[i] = np.int8(_rounded(values[i] * inverse))


@_inlined
def _want(values: F32, minus: F32 | None, residual: F32, left: F32, start: int) -> None:
    """One block of what there is to say, flushed: how far values are from `minus`, and what was
    left before."""
    here = slice(start, start + BLOCK)
    now, before, into = values[here], residual[here], left[here]
    if minus is None:
        for i in range(BLOCK):
            into[i] = _flushed(now[i] + before[i])
    else:
        base = minus[here]
        for i in range(BLOCK):
            into[i] = _flushed((now[i] - base[i]) + before[i])


@_inlined
def _leave_int4(codes: U8, scale: np.float32, left: F32) -> None:
    """Takes from one block what its codes say, and flushes the rest."""
    for i in range(HALF):
        packed = np.int32(codes[i])
        low = np.float32(np.int32(packed & _FIFTEEN) - _EIGHT) * scale
        high = np.float32(np.int32(packed >> _NIBBLE) - _EIGHT) * scale
        left[i] = _flushed(left[i] - low)
        left[HALF + i] = _flushed(left[HALF + i] - high)


@_inlined
def _leave_int8(codes: I8, scale: np.float32, left: F32) -> None:
    for i in range(BLOCK):
        left[i] = _flushed(left[i] - np.float32(codes[i]) * scale)


@_compiled
def tell_int4(
    values: F32, minus: F32 | None, residual: F32 | None, left: F32, codes: U8, scales: U16
) -> bool:
    """Fills `codes` (half as many as values) and `scales` with what there is to say, and `left`
    with what they do not say; whether every scale is sound. Without `residual` it is the values
    that are said, and `left` are the values themselves, which stay.

    Each of the loops over a few blocks loads one of the arrays for the next few.
    """
    extremes, inverses = np.empty(_FEW, np.float32), np.empty(_FEW, np.float32)
    found, bits, is_sound = extremes.view(np.uint32), left.view(np.int32), True
    for first in range(0, scales.size, _FEW):
        stop = min(first + _FEW, scales.size)
        if residual is not None:
            for start in range(first * BLOCK, stop * BLOCK, BLOCK):
                ahead(left, start + _FEW * BLOCK, start + (_FEW + 1) * BLOCK)
                _want(values, minus, residual, left, start)
        for block in range(first, stop):
            start = block * BLOCK
            ahead(values, start + _FEW * BLOCK, start + (_FEW + 1) * BLOCK)
            found[block - first] = _extreme(bits[start : start + BLOCK])
        is_sound &= _scales_of(extremes, -_INT4_OFFSET, scales[first:stop], inverses)
        for block in range(first, stop):
            start, at = block * BLOCK, block * HALF
            if minus is not None:
                ahead(minus, start + _FEW * BLOCK, start + (_FEW + 1) * BLOCK)
            inverse = inverses[block - first]
            _code_int4(left[start : start + BLOCK], inverse, codes[at : at + HALF])
        if residual is not None:
            for block in range(first, stop):
                start, at = block * BLOCK, block * HALF
                ahead(residual, start + _FEW * BLOCK, start + (_FEW + 1) * BLOCK)
                said, scale = codes[at : at + HALF], _wide(scales[block])
                _leave_int4(said, scale, left[start : start + BLOCK])
    return is_sound


@_compiled
def tell_int8(
    values: F32, minus: F32 | None, residual: F32 | None, left: F32, codes: I8, scales: U16
) -> bool:
    """The same with a code for each value."""
    extremes, inverses = np.empty(_FEW, np.float32), np.empty(_FEW, np.float32)
    found, bits, is_sound = extremes.view(np.uint32), left.view(np.int32), True
    for first in range(0, scales.size, _FEW):
        stop = min(first + _FEW, scales.size)
        if residual is not None:
            for start in range(first * BLOCK, stop * BLOCK, BLOCK):
                ahead(left, start + _FEW * BLOCK, start + (_FEW + 1) * BLOCK)
                _want(values, minus, residual, left, start)
        for block in range(first, stop):
            start = block * BLOCK
            ahead(values, start + _FEW * BLOCK, start + (_FEW + 1) * BLOCK)
            found[block - first] = _extreme(bits[start : start + BLOCK])
        np.abs(extremes, extremes)
        is_sound &= _scales_of(extremes, _INT8_MAX, scales[first:stop], inverses)
        for block in range(first, stop):
            here = slice(block * BLOCK, block * BLOCK + BLOCK)
            _code_int8(left[here], inverses[block - first], codes[here])
            if residual is not None:
                start = (block + _FEW) * BLOCK
                ahead(residual, start, start + BLOCK)
                _leave_int8(codes[here], _wide(scales[block]), left[here])
    return is_sound


@_compiled
def scales(bits: U16, out: F32) -> bool:
    """Fills `out` (float32) with bf16 scales (uint16); whether each is 0 or in [2^-100, 2^100]."""
    wide, is_sound = out.view(np.uint32), True
    for block in range(bits.size):
        magnitude = bits[block] & np.uint16(0x7FFF)
        is_sound &= (magnitude == 0) | ((magnitude >= SCALE_MIN) & (magnitude <= SCALE_MAX))
        wide[block] = np.uint32(bits[block]) << np.uint32(16)
    return is_sound


@_compiled
def decode_int4(codes: U8, by_block: F32, out: F32) -> None:
    """Fills `out` (float32) with code times scale; adding +0 makes -0 positive."""
    for block in range(by_block.size):
        later = block + _SOON
        ahead(codes, later * HALF, later * HALF + HALF)
        ahead(out, later * BLOCK, later * BLOCK + BLOCK)
        said, scale = codes[block * HALF : block * HALF + HALF], by_block[block]
        into = out[block * BLOCK : block * BLOCK + BLOCK]
        for i in range(HALF):
            packed = np.int32(said[i])
            into[i] = np.float32(np.int32(packed & _FIFTEEN) - _EIGHT) * scale + _ZERO
            into[HALF + i] = np.float32(np.int32(packed >> _NIBBLE) - _EIGHT) * scale + _ZERO


@_compiled
def decode_int8(codes: I8, by_block: F32, out: F32) -> None:
    """The same of int8 codes."""
    for block in range(by_block.size):
        soon = (block + _SOON) * BLOCK
        ahead(codes, soon, soon + BLOCK)
        ahead(out, soon, soon + BLOCK)
        here, scale = slice(block * BLOCK, block * BLOCK + BLOCK), by_block[block]
        said, into = codes[here], out[here]
        for i in range(BLOCK):
            into[i] = np.float32(said[i]) * scale + _ZERO


@_compiled
def squares_int4(codes: U8, by_block: F32, sums: F64) -> None:
    """Fills `sums` (float64) with the sum of squares of each block; exact, so without an order."""
    for block in range(by_block.size):
        ahead(codes, (block + _SOON) * HALF, (block + _SOON) * HALF + HALF)
        said, total = codes[block * HALF : block * HALF + HALF], np.int16(0)
        for i in range(HALF):
            # 128 squares of at most 64 fit 16 bits, and twice as many of those fit a register.
            packed = np.int16(said[i])
            low = np.int16(np.int16(packed & np.int16(15)) - np.int16(8))
            high = np.int16(np.int16(packed >> np.int16(4)) - np.int16(8))
            total = np.int16(total + np.int16(np.int16(low * low) + np.int16(high * high)))
        scale = np.float64(by_block[block])
        sums[block] = np.float64(total) * scale * scale


@_compiled
def squares_int8(codes: I8, by_block: F32, sums: F64) -> None:
    """The same of int8 codes."""
    for block in range(by_block.size):
        ahead(codes, (block + _SOON) * BLOCK, (block + _SOON) * BLOCK + BLOCK)
        said, total = codes[block * BLOCK : block * BLOCK + BLOCK], np.int32(0)
        for i in range(BLOCK):
            code = np.int32(said[i])
            total += np.int32(code * code)
        scale = np.float64(by_block[block])
        sums[block] = np.float64(total) * scale * scale


@_compiled
def factors(bits: U16, factor: float, out: F32) -> None:
    """Fills `out` with scale times factor, rounded to float32 once; 0 where it is below 2^-100.

    So a code times it, and every sum of such products, is 0 or normal.
    """
    for block in range(bits.size):
        wide = np.float32(np.float64(_wide(bits[block])) * factor)
        out[block] = wide if abs(wide) >= _FACTOR_MIN else _ZERO


@_compiled
def add_int4(planes: tuple[U8, ...], count: int, by_block: F32, total: F32, is_new: bool) -> None:
    """Adds code times factor to `total` (float32), of one payload after the other.

    planes: codes of at least `count` payloads; by_block: their factors, a row for each; is_new:
    whether it begins with +0, whatever is there.
    """
    for block in range(by_block.shape[1]):
        soon = (block + _SOON) * BLOCK
        ahead(total, soon, soon + BLOCK)
        into = total[block * BLOCK : block * BLOCK + BLOCK]
        if is_new:
            for i in range(BLOCK):
                into[i] = _ZERO
        for at in range(count):
            ahead(planes[at], soon // 2, (soon + BLOCK) // 2)
            said = planes[at][block * HALF : block * HALF + HALF]
            factor = by_block[at, block]
            for i in range(HALF):
                packed = np.int32(said[i])
                into[i] += np.float32(np.int32(packed & _FIFTEEN) - _EIGHT) * factor
                into[HALF + i] += np.float32(np.int32(packed >> _NIBBLE) - _EIGHT) * factor


@_compiled
def add_int8(planes: tuple[I8, ...], count: int, by_block: F32, total: F32, is_new: bool) -> None:
    """The same of int8 codes."""
    for block in range(by_block.shape[1]):
        here = slice(block * BLOCK, block * BLOCK + BLOCK)
        soon = (block + _SOON) * BLOCK
        ahead(total, soon, soon + BLOCK)
        into = total[here]
        if is_new:
            for i in range(BLOCK):
                into[i] = _ZERO
        for at in range(count):
            ahead(planes[at], soon, soon + BLOCK)
            said, factor = planes[at][here], by_block[at, block]
            for i in range(BLOCK):
                into[i] += np.float32(said[i]) * factor


@_compiled
def squares(values: F32, sums: F64, fold: F64) -> None:
    """Fills `sums` (float64) with the sum of squares of each block of `values` (float32).

    Halves are added to halves, until one number is left. fold: 128 float64 to work in.
    """
    for block in range(sums.size):
        base = block * BLOCK
        ahead(values, base + _SOON * BLOCK, base + (_SOON + 1) * BLOCK)
        for i in range(BLOCK):
            wide = np.float64(values[base + i])
            fold[i] = wide * wide
        rows = HALF
        while rows > 0:
            for i in range(rows):
                fold[i] += fold[rows + i]
            rows //= 2
        sums[block] = fold[0]


@_compiled
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
        limb, shift = exponent // LIMB_BITS, np.uint64(exponent % LIMB_BITS)
        low = (mantissa & np.uint64(0xFFFFFFFF)) << shift
        high = (mantissa >> np.uint64(32)) << shift
        limbs[limb] += np.int64(low & np.uint64(0xFFFFFFFF))
        limbs[limb + 1] += np.int64(low >> np.uint64(32)) + np.int64(high & np.uint64(0xFFFFFFFF))
        limbs[limb + 2] += np.int64(high >> np.uint64(32))


@_compiled
def stretch(values: F32, factor: float, largest: float) -> None:
    """Multiplies float32 values by a float64 factor in place, within plus and minus `largest`;
    flushed."""
    for start in range(0, values.size, BLOCK):
        ahead(values, start + _SOON * BLOCK, start + (_SOON + 1) * BLOCK)
        here = values[start : start + BLOCK]
        for i in range(here.size):
            wide = np.float64(here[i]) * factor
            here[i] = _flushed(np.float32(min(max(wide, -largest), largest)))


@_compiled
def flush(values: F32) -> None:
    """Turns subnormals and negative zeros into +0, in place; float32."""
    for start in range(0, values.size, BLOCK):
        ahead(values, start + _SOON * BLOCK, start + (_SOON + 1) * BLOCK)
        here = values[start : start + BLOCK]
        for i in range(here.size):
            here[i] = _flushed(here[i])


@_compiled
def outer(
    theta: F32,
    momentum: F32,
    g: F32,
    eta: np.float32,
    mu: np.float32,
    nesterov: bool,
    theta_next: F32,
    momentum_next: F32,
) -> bool:
    """One outer step on one chunk, all float32; whether every result is finite.

    Each product and each sum is rounded, and flushed if it is subnormal.
    """
    worst = np.int32(0)
    for start in range(0, theta.size, BLOCK):
        soon = start + _SOON * BLOCK
        ahead(theta, soon, soon + BLOCK)
        ahead(momentum, soon, soon + BLOCK)
        ahead(theta_next, soon, soon + BLOCK)
        ahead(momentum_next, soon, soon + BLOCK)
        here = slice(start, start + BLOCK)
        now, old, step = theta[here], momentum[here], g[here]
        moved, kept = theta_next[here], momentum_next[here]
        for i in range(now.size):
            buffer = _flushed(_flushed(old[i] * mu) + step[i])
            along = buffer
            if nesterov:
                along = _flushed(_flushed(buffer * mu) + step[i])
            kept[i] = buffer
            moved[i] = _flushed(now[i] - _flushed(along * eta))
        worst = max(worst, _exponent(moved.view(np.int32)), _exponent(kept.view(np.int32)))
    return bool(worst != _EXPONENT)


@_compiled
def _exponent(bits: I32) -> np.int32:
    """The largest exponent, in place; that of Inf and NaN is `_EXPONENT`."""
    worst = np.int32(0)
    for i in range(bits.size):
        worst = max(worst, np.int32(bits[i] & _EXPONENT))
    return worst
