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

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.fragments import BLOCK

nb: Any
try:
    nb = import_module("numba")
except ImportError:  # The twins do the same, slower.
    nb = None

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
I8: TypeAlias = NDArray[np.int8]
I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]
U16: TypeAlias = NDArray[np.uint16]
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])

IS_COMPILED: Final = nb is not None
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
_INT4_MAX = np.float32(7.0)
_INT4_OFFSET = np.float32(8.0)


def _compiled(function: _Kernel) -> _Kernel:
    """The function, compiled at its first call and kept on disk; itself where numba is missing."""
    if nb is None:
        return function
    made: _Kernel = nb.njit(nogil=True, cache=True, error_model="numpy")(function)
    return made


@_compiled
def extremes(values: F32, out: F32) -> None:
    """Fills `out` (float32) with the element of largest magnitude of each block; of two equal ones
    the positive. Inf and NaN come out as such: they are the largest."""
    bits, found = values.view(np.int32), out.view(np.int32)
    for block in range(found.size):
        base = block * BLOCK
        highest, lowest = bits[base], bits[base] ^ _SIGN
        for i in range(base, base + BLOCK):
            # Positive floats are ordered as their bits are, negative ones with the sign turned.
            highest = max(highest, bits[i])
            lowest = max(lowest, bits[i] ^ _SIGN)
        found[block] = highest if highest >= lowest else lowest ^ _SIGN


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
def codes_int4(values: F32, divisors: F32, codes: U8) -> None:
    """Fills `codes` (uint8, half as many as values) by what each value is over its divisor."""
    for block in range(divisors.size):
        base, at, divisor = block * BLOCK, block * HALF, divisors[block]
        for i in range(HALF):
            low = min((values[base + i] / divisor + _ROUNDER) - _ROUNDER, _INT4_MAX)
            high = min((values[base + HALF + i] / divisor + _ROUNDER) - _ROUNDER, _INT4_MAX)
            first, second = np.uint8(low + _INT4_OFFSET), np.uint8(high + _INT4_OFFSET)
            codes[at + i] = np.uint8(first | np.uint8(second << np.uint8(4)))


@_compiled
def codes_int8(values: F32, divisors: F32, codes: I8) -> None:
    """Fills `codes` (int8) by what each value is over its divisor."""
    for block in range(divisors.size):
        base, divisor = block * BLOCK, divisors[block]
        for i in range(base, base + BLOCK):
            codes[i] = np.int8((values[i] / divisor + _ROUNDER) - _ROUNDER)


@_compiled
def decode_int4(codes: U8, by_block: F32, out: F32) -> None:
    """Fills `out` (float32) with code times scale; adding +0 makes -0 positive."""
    for block in range(by_block.size):
        base, at, scale = block * BLOCK, block * HALF, by_block[block]
        for i in range(HALF):
            packed = np.int32(codes[at + i])
            out[base + i] = np.float32((packed & 15) - 8) * scale + _ZERO
            out[base + HALF + i] = np.float32((packed >> 4) - 8) * scale + _ZERO


@_compiled
def decode_int8(codes: I8, by_block: F32, out: F32) -> None:
    """The same of int8 codes."""
    for block in range(by_block.size):
        base, scale = block * BLOCK, by_block[block]
        for i in range(base, base + BLOCK):
            out[i] = np.float32(codes[i]) * scale + _ZERO


@_compiled
def squares_int4(codes: U8, by_block: F32, sums: F64) -> None:
    """Fills `sums` (float64) with the sum of squares of each block; exact, so without an order."""
    for block in range(by_block.size):
        at, total = block * HALF, np.int32(0)
        for i in range(HALF):
            packed = np.int32(codes[at + i])
            low, high = (packed & 15) - 8, (packed >> 4) - 8
            total += np.int32(low * low + high * high)
        scale = np.float64(by_block[block])
        sums[block] = np.float64(total) * scale * scale


@_compiled
def squares_int8(codes: I8, by_block: F32, sums: F64) -> None:
    """The same of int8 codes."""
    for block in range(by_block.size):
        base, total = block * BLOCK, np.int32(0)
        for i in range(base, base + BLOCK):
            code = np.int32(codes[i])
            total += np.int32(code * code)
        scale = np.float64(by_block[block])
        sums[block] = np.float64(total) * scale * scale


@_compiled
def add_int4(codes: U8, by_block: F32, factor: float, total: F64) -> None:
    """Adds factor times code times scale to `total` (float64): the product with the factor is
    rounded once, then the sum."""
    for block in range(by_block.size):
        base, at, scale = block * BLOCK, block * HALF, np.float64(by_block[block])
        for i in range(HALF):
            packed = np.int32(codes[at + i])
            total[base + i] += (np.float64((packed & 15) - 8) * scale) * factor
            total[base + HALF + i] += (np.float64((packed >> 4) - 8) * scale) * factor


@_compiled
def add_int8(codes: I8, by_block: F32, factor: float, total: F64) -> None:
    """The same of int8 codes."""
    for block in range(by_block.size):
        base, scale = block * BLOCK, np.float64(by_block[block])
        for i in range(base, base + BLOCK):
            total[i] += (np.float64(codes[i]) * scale) * factor


@_compiled
def squares(values: F32, sums: F64, fold: F64) -> None:
    """Fills `sums` (float64) with the sum of squares of each block of `values` (float32).

    Halves are added to halves, until one number is left. fold: 128 float64 to work in.
    """
    for block in range(sums.size):
        base = block * BLOCK
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
    """Multiplies float32 values by a float64 factor in place, within plus and minus `largest`."""
    for i in range(values.size):
        wide = np.float64(values[i]) * factor
        values[i] = np.float32(min(max(wide, -largest), largest))


@_compiled
def _flushed(value: np.float32) -> np.float32:
    """+0 for a subnormal and for -0, in every CPU mode: read as 0 it is below the limit too."""
    return _ZERO if abs(value) < _NORMAL_MIN else value


@_compiled
def flush(values: F32) -> None:
    """Turns subnormals and negative zeros into +0, in place; float32."""
    for i in range(values.size):
        values[i] = _flushed(values[i])


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
    for i in range(theta.size):
        buffer = _flushed(_flushed(momentum[i] * mu) + g[i])
        ahead = _flushed(_flushed(buffer * mu) + g[i]) if nesterov else buffer
        momentum_next[i] = buffer
        theta_next[i] = _flushed(theta[i] - _flushed(ahead * eta))
    return _is_finite(theta_next) and _is_finite(momentum_next)


@_compiled
def _is_finite(values: F32) -> bool:
    bits, worst = values.view(np.int32), np.int32(0)
    for i in range(bits.size):
        worst = max(worst, bits[i] & _EXPONENT)
    return bool(worst != _EXPONENT)
