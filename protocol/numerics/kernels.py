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
_FEW = 4
"""Blocks that are encoded together: what one loop reads, the next finds in the nearest cache."""
_SOON = 8
"""Blocks between the one at work and the one that is loaded."""
# Plain Python integers would make every intermediate 64 bits wide.
_SEVEN, _EIGHT, _FIFTEEN, _NIBBLE = np.int32(7), np.int32(8), np.int32(15), np.int32(4)
_ONE, _LAST, _TOP = np.uint32(1), np.uint32(31), np.uint32(0x8000_0000)


def compiled(function: _Kernel) -> _Kernel:
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


@compiled
def flushed(value: np.float32) -> np.float32:
    """+0 for a subnormal and for -0, in every CPU mode: read as 0 it is below the limit too."""
    return _ZERO if abs(value) < _NORMAL_MIN else value


@compiled
def _bf16(value: np.float32) -> np.uint16:
    """Bits of the nearest bf16, ties to even; the largest values become Inf, as Inf and NaN do."""
    bits = np.uint32(np.float32(value).view(np.uint32))
    if (bits & np.uint32(0x7FFF_FFFF)) > np.uint32(0x7F80_0000):
        return np.uint16(0x7F80)
    halfway = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16((bits + halfway) >> np.uint32(16))


@compiled
def wide(bits: np.uint16) -> np.float32:
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


@compiled
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
        inverses[block] = _UNIT / wide(scale) if scale != 0 else _UNIT
    return is_sound


@compiled
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
            into[i] = flushed(now[i] + before[i])
    else:
        base = minus[here]
        for i in range(BLOCK):
            into[i] = flushed((now[i] - base[i]) + before[i])


@_inlined
def _leave_int4(codes: U8, scale: np.float32, left: F32) -> None:
    """Takes from one block what its codes say, and flushes the rest."""
    for i in range(HALF):
        packed = np.int32(codes[i])
        low = np.float32(np.int32(packed & _FIFTEEN) - _EIGHT) * scale
        high = np.float32(np.int32(packed >> _NIBBLE) - _EIGHT) * scale
        left[i] = flushed(left[i] - low)
        left[HALF + i] = flushed(left[HALF + i] - high)


@_inlined
def _leave_int8(codes: I8, scale: np.float32, left: F32) -> None:
    for i in range(BLOCK):
        left[i] = flushed(left[i] - np.float32(codes[i]) * scale)


@compiled
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
                said, scale = codes[at : at + HALF], wide(scales[block])
                _leave_int4(said, scale, left[start : start + BLOCK])
    return is_sound


@compiled
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
                _leave_int8(codes[here], wide(scales[block]), left[here])
    return is_sound


@compiled
def scales(bits: U16, out: F32) -> bool:
    """Fills `out` (float32) with bf16 scales (uint16); whether each is 0 or in [2^-100, 2^100]."""
    wide, is_sound = out.view(np.uint32), True
    for block in range(bits.size):
        magnitude = bits[block] & np.uint16(0x7FFF)
        is_sound &= (magnitude == 0) | ((magnitude >= SCALE_MIN) & (magnitude <= SCALE_MAX))
        wide[block] = np.uint32(bits[block]) << np.uint32(16)
    return is_sound


@compiled
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


@compiled
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


@compiled
def flush(values: F32) -> None:
    """Turns subnormals and negative zeros into +0, in place; float32."""
    for start in range(0, values.size, BLOCK):
        ahead(values, start + _SOON * BLOCK, start + (_SOON + 1) * BLOCK)
        here = values[start : start + BLOCK]
        for i in range(here.size):
            here[i] = flushed(here[i])


@compiled
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
            buffer = flushed(flushed(old[i] * mu) + step[i])
            along = buffer
            if nesterov:
                along = flushed(flushed(buffer * mu) + step[i])
            kept[i] = buffer
            moved[i] = flushed(now[i] - flushed(along * eta))
        worst = max(worst, _exponent(moved.view(np.int32)), _exponent(kept.view(np.int32)))
    return bool(worst != _EXPONENT)


@compiled
def _exponent(bits: I32) -> np.int32:
    """The largest exponent, in place; that of Inf and NaN is `_EXPONENT`."""
    worst = np.int32(0)
    for i in range(bits.size):
        worst = max(worst, np.int32(bits[i] & _EXPONENT))
    return worst
