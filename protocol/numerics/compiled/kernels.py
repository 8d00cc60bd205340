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
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.fragments import BLOCK
from protocol.numerics.compiled.compiling import compiled, nb
from protocol.numerics.compiled.vectors import LANES, Row, Vector, settle, spelt, tabled, when

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
I8: TypeAlias = NDArray[np.int8]
I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]
U16: TypeAlias = NDArray[np.uint16]
Codes: TypeAlias = U8 | I8
"""Two int4 codes in each byte, or int8 codes, which a kernel tells apart while it is compiled."""

IS_COMPILED: Final = nb is not None and sys.byteorder == "little"
HALF: Final = BLOCK // 2

SCALE_MIN: Final = np.uint16(0x0D80)
"""2^-100 as bf16 bits."""
SCALE_MAX: Final = np.uint16(0x7180)
"""2^100 as bf16 bits; Inf and NaN are above it."""

_EXPONENT: Final = 0x7F80_0000
_TOP: Final = 0x8000_0000
_ROUNDER: Final = 12_582_912.0
"""1.5 * 2^23: adding it and taking it away rounds to the nearest integer, ties to even."""
ZERO = np.float32(0.0)
_NORMAL_MIN = np.float32(2.0**-126)
_ROUNDER_BITS: Final = 0x4B40_0000
_UNIT = np.float32(1.0)
_INT4_OFFSET = np.float32(8.0)
_INT8_MAX = np.float32(127.0)
_FEW = 12
"""Blocks that are encoded together: what one loop reads, the next finds in the nearest cache."""
_LEAD = 24
"""Blocks between those that are encoded and those that are loaded."""
SOON = 8
"""Blocks between the one at work and the one that is loaded."""
SOON_CODES: Final = 2048
"""Bytes between the codes at work and those that are loaded."""


@spelt(None)
def ahead(values: Row) -> None:
    """A hint to the CPU: the block that begins there is needed soon. It changes no value, may be
    beyond the array, and has nothing to do in a twin.

    The processor's own prefetcher stops at each page of 4 KiB; kernels that stream through arrays
    larger than any cache then wait for memory at every page.
    """
    for at in values.lines(BLOCK if values.is_signed else HALF):
        values.hint(at)


@spelt("int64")
def code_bytes(codes: Row) -> Vector:
    """What the codes of one block take: known when a kernel is compiled."""
    return codes.constant(BLOCK if codes.is_signed else HALF)


@compiled
def flushed(value: np.float32) -> np.float32:
    """+0 for a subnormal and for -0, in every CPU mode: read as 0 it is below the limit too."""
    return ZERO if abs(value) < _NORMAL_MIN else value


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


@spelt("uint32")
def _want(values: Row, minus: Row | None, residual: Row | None, into: Row) -> Vector:
    """Of one block: puts what there is to say into `into`, flushed: how far values are from
    `minus`, and what was left before. Without `residual` it is the values, and nothing is put.

    Returns the bits of the element of largest magnitude, of two equal ones the positive. Inf and
    NaN come out as such: they are the largest. The sign rides in the lowest bit, so that one
    comparison of integers finds both.
    """
    most: Vector | None = None
    for at in range(0, BLOCK, LANES):
        told = values.load(at)
        if residual is not None:
            told = told if minus is None else told - minus.load(at)
            told = (told + residual.load(at)).flushed()
            into.store(at, told)
        turned = told.bits() ^ _TOP
        turned = (turned << 1) | (turned >> 31)
        most = turned if most is None else most.most(turned, is_signed=False)
    assert most is not None
    found = most.folded(lambda one, other: one.most(other, is_signed=False))
    return ((found >> 1) | (found << 31)) ^ _TOP


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


def _rounded(values: Vector) -> Vector:
    """The nearest integers, ties to even, of values below 2^22 in magnitude."""
    return (values + _ROUNDER).bits() - _ROUNDER_BITS


def _leave(left: Row, at: int, rest: Vector, is_streamed: Vector) -> None:
    with when(is_streamed.is_set(), is_streamed):
        left.stream(at, rest)
    with when((is_streamed ^ 1).is_set(), is_streamed):
        left.store(at, rest)


@spelt(None)
def _say(
    told: Row,
    codes: Row,
    inverse: Vector,
    scale: Vector,
    left: Row | None,
    is_streamed: Vector,
) -> None:
    """The codes of one block, and what they do not say, flushed, where that is asked for."""
    inverses, scales = inverse.spread(), scale.spread()
    for at in range(0, BLOCK if codes.is_signed else HALF, LANES):
        places = (at,) if codes.is_signed else (at, HALF + at)
        values = [told.load(place) for place in places]
        said = [_rounded(one * inverses) for one in values]
        if codes.is_signed:
            codes.store(at, said[0].narrow(8))
        else:
            said = [code.least(7) for code in said]
            low, high = (code + 8 for code in said)
            codes.store(at, (low | (high << 4)).narrow(8))
        if left is not None:
            for place, one, code in zip(places, values, said, strict=True):
                rest = (one - code.floats() * scales).flushed()
                _leave(left, place, rest, is_streamed)


@compiled
def tell(
    values: F32,
    minus: F32 | None,
    residual: F32 | None,
    left: F32 | None,
    codes: Codes,
    scales: U16,
    is_streamed: bool,
) -> bool:
    """Fills `codes` and `scales` with what there is to say, and `left` with what they do not say;
    whether every scale is sound. Without `residual`, and then without `left`, it is the values
    that are said. is_streamed: whether `left` is written past the caches.

    Each of the loops over a few blocks loads some of the arrays for later ones.
    """
    extremes, inverses = np.empty(_FEW, np.float32), np.empty(_FEW, np.float32)
    found, is_sound, size = extremes.view(np.uint32), True, code_bytes(codes, 0)
    told = np.empty(_FEW * BLOCK, np.float32)
    for first in range(0, scales.size, _FEW):
        stop = min(first + _FEW, scales.size)
        for block in range(first, stop):
            start, at = block * BLOCK, (block - first) * BLOCK
            ahead(values, start + _LEAD * BLOCK)
            if residual is not None:
                ahead(residual, start + _LEAD * BLOCK)
            found[block - first] = _want(values, start, minus, start, residual, start, told, at)
        divisor = -_INT4_OFFSET
        if size == BLOCK:
            np.abs(extremes, extremes)
            divisor = _INT8_MAX
        is_sound &= _scales_of(extremes, divisor, scales[first:stop], inverses)
        for block in range(first, stop):
            start, at = block * BLOCK, (block - first) * BLOCK
            if minus is not None:
                ahead(minus, start + _LEAD * BLOCK)
            inverse, scale, place = inverses[block - first], wide(scales[block]), block * size
            ahead(codes, place + _LEAD * size)
            if left is None:
                _say(values, start, codes, place, inverse, scale, left, start, is_streamed)
            else:
                if not is_streamed:
                    ahead(left, start + _LEAD * BLOCK)
                _say(told, at, codes, place, inverse, scale, left, start, is_streamed)
    if is_streamed:
        settle(0)
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


def products(codes: Row, factor: Vector) -> Iterator[tuple[int, Vector]]:
    """The codes of one block times a factor, a scalar: sixteen of them, and where they begin."""
    factors = factor.spread()
    if codes.is_signed:
        for at in range(0, BLOCK, LANES):
            yield at, codes.load(at).wide_signed().floats() * factors
        return
    value = tabled(lambda code: (code - 8).floats() * factors, factor)
    for at in range(0, HALF, LANES):
        packed = codes.load(at).wide()
        low, high = value(packed), value(packed >> 4)
        yield at, low
        yield HALF + at, high


@spelt(None)
def _decode_block(codes: Row, scale: Vector, into: Row) -> None:
    for at, values in products(codes, scale):
        into.store(at, values + 0.0)


@spelt(None)
def _stream_block(codes: Row, scale: Vector, into: Row) -> None:
    for at, values in products(codes, scale):
        into.stream(at, values + 0.0)


@compiled
def decode(codes: Codes, by_block: F32, out: F32) -> None:
    """Fills `out` (float32) with code times scale; adding +0 makes -0 positive."""
    size = code_bytes(codes, 0)
    for block in range(by_block.size):
        at, soon = block * size, (block + SOON) * BLOCK
        ahead(codes, at + SOON_CODES)
        ahead(out, soon)
        _decode_block(codes, at, by_block[block], out, block * BLOCK)


@compiled
def stream(codes: Codes, by_block: F32, out: F32) -> None:
    """`decode` past the caches, into an array that begins at a border of 64 bytes."""
    size = code_bytes(codes, 0)
    for block in range(by_block.size):
        at = block * size
        ahead(codes, at + 2 * SOON_CODES)
        _stream_block(codes, at, by_block[block], out, block * BLOCK)
    settle(0)


@compiled
def flush(values: F32) -> None:
    """Turns subnormals and negative zeros into +0, in place; float32."""
    for start in range(0, values.size, BLOCK):
        ahead(values, start + SOON * BLOCK)
        here = values[start : start + BLOCK]
        for i in range(here.size):
            here[i] = flushed(here[i])


def _outer_block(is_nesterov: bool) -> Any:
    """What does one outer step on one block, and gives back the largest exponent of any result."""

    def block(
        theta: Row,
        momentum: Row,
        g: Row,
        moved: Row,
        kept: Row,
        eta: Vector,
        mu: Vector,
        is_streamed: Vector,
    ) -> Vector:
        etas, mus, worst = eta.spread(), mu.spread(), None
        for at in range(0, BLOCK, LANES):
            step = g.load(at)
            buffer = ((momentum.load(at) * mus).flushed() + step).flushed()
            along = ((buffer * mus).flushed() + step).flushed() if is_nesterov else buffer
            result = (theta.load(at) - (along * etas).flushed()).flushed()
            _leave(kept, at, buffer, is_streamed)
            _leave(moved, at, result, is_streamed)
            largest = (buffer.bits() & _EXPONENT).most(result.bits() & _EXPONENT)
            worst = largest if worst is None else worst.most(largest)
        assert worst is not None
        return worst.folded(Vector.most)

    return spelt("int32")(block)


_outer_nesterov, _outer_plain = (_outer_block(is_nesterov) for is_nesterov in (True, False))


@compiled
def outer(
    theta: F32,
    momentum: F32,
    g: F32,
    eta: np.float32,
    mu: np.float32,
    nesterov: bool,
    moved: F32,
    kept: F32,
    is_streamed: bool,
) -> bool:
    """One outer step on one chunk, all float32: theta becomes `moved`, momentum `kept`; whether
    every result is finite. is_streamed: whether both are written past the caches.

    Each product and each sum is rounded, and flushed if it is subnormal.
    """
    worst = np.int32(0)
    for at in range(0, theta.size, BLOCK):
        soon = at + SOON * BLOCK
        ahead(theta, soon)
        ahead(momentum, soon)
        if not is_streamed:
            ahead(moved, soon)
            ahead(kept, soon)
        if nesterov:
            found = _outer_nesterov(
                theta, at, momentum, at, g, at, moved, at, kept, at, eta, mu, is_streamed
            )
        else:
            found = _outer_plain(
                theta, at, momentum, at, g, at, moved, at, kept, at, eta, mu, is_streamed
            )
        worst = max(worst, found)
    if is_streamed:
        settle(0)
    return bool(worst != _EXPONENT)
