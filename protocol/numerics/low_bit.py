"""Blocks of values as signs and sizes: the two- and one-bit codecs.

A code c of b bits stands for (2c - 2^b + 1) times the block's scale: -3, -1, 1, 3 or -1, 1. No code
is zero, yet padding must decode to zeros and stay zeros, or errors would pile up there. So a block
that ends in zeros says where they begin: its scale is sent negative, and from its first trailing
zero on its codes are a 1 and then only 0. That costs no byte.

Scales are fitted by least squares to the codes chosen. Therefore a decoded block is never further
from the original than zero would be, whatever it holds, and error feedback cannot run away.

Source: that outer gradients stand 2 and 1 bit is Decoupled DiLoCo's (arXiv 2604.21428); it names no
format, and this one is ours. The threshold is the optimal uniform one for Gaussian values (J. Max,
Quantizing for minimum distortion, 1960).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import MalformedPayload
from protocol.fragments import BLOCK

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
U8: TypeAlias = NDArray[np.uint8]
Bits: TypeAlias = Literal[1, 2]

THRESHOLD = 0.9957
"""Of two bits, in root mean squares: a larger value gets the outer code."""


def quantise(blocks: F32, bits: Bits) -> tuple[U8, F32]:
    """Codes [n, BLOCK] and scales [n] of finite blocks [n, BLOCK].

    A scale is negative where the block ends in zeros, and 0 where it is nothing else. The same bits
    on any CPU: sums run in float64, in an order fixed here.
    """
    lengths = _lengths(blocks)
    # One row per place in the block: each fold is then a long addition of whole rows.
    sizes = np.abs(blocks.T.astype(np.float64, order="C"))
    if bits == 1:
        steps, fitted = np.ones_like(sizes), folded(sizes)
        norms = lengths.astype(np.float64)
    else:
        limit = THRESHOLD * np.sqrt(folded(sizes * sizes) / np.maximum(lengths, 1))
        steps = np.where(sizes > limit, 3.0, 1.0)
        is_value = np.arange(BLOCK)[:, None] < lengths
        fitted, norms = folded(steps * sizes), folded(steps * steps * is_value)
    with np.errstate(over="ignore"):
        scales = (fitted / np.maximum(norms, 1.0)).astype(np.float32)
    scales[lengths < BLOCK] *= np.float32(-1)
    signed = np.where(blocks < 0, -steps.T, steps.T)
    codes = ((signed + (2**bits - 1)) / 2).astype(np.uint8)
    place = np.arange(BLOCK)
    codes[place >= lengths[:, None]] = 0
    codes[place == lengths[:, None]] = 1
    return codes, scales


def restore(codes: U8, scales: F32, bits: Bits, out: F32) -> None:
    """Fills `out` [n, BLOCK] with the values of codes [n, BLOCK] under their scales [n].

    Raises: MalformedPayload if a block with a negative scale does not say where its zeros begin.
    """
    np.multiply(codes, np.float32(2), out=out)
    out -= np.float32(2**bits - 1)
    out *= np.abs(scales)[:, None]
    ending = np.flatnonzero(scales < 0)
    if not ending.size:
        return
    marks = codes[ending, ::-1] != 0
    if not marks.any(axis=1).all():
        raise MalformedPayload(f"an int{bits} block ends in zeros and does not say where")
    begins = BLOCK - 1 - marks.argmax(axis=1)
    out[ending] *= np.arange(BLOCK) < begins[:, None]


def pack(codes: U8, bits: Bits) -> bytes:
    """Codes [n, BLOCK] as bytes: byte j of a block of m holds elements j, j + m, j + 2m, ...

    The first of them in the lowest bits.
    """
    packed = np.zeros((len(codes), BLOCK * bits // 8), dtype=np.uint8)
    for at, plane in enumerate(np.split(codes, 8 // bits, axis=1)):
        packed |= plane << np.uint8(bits * at)
    return packed.tobytes()


def unpack(packed: U8, bits: Bits) -> U8:
    """The codes [n, BLOCK] of packed bytes."""
    rows = packed.reshape(-1, BLOCK * bits // 8)
    shifts = (np.uint8(bits * at) for at in range(8 // bits))
    return np.concatenate([rows >> shift & np.uint8(2**bits - 1) for shift in shifts], axis=1)


def _lengths(blocks: F32) -> NDArray[np.int64]:
    """Elements of each block before its trailing zeros."""
    is_used = blocks[:, ::-1] != 0
    return np.where(is_used.any(axis=1), BLOCK - is_used.argmax(axis=1), 0)


def folded(rows: F64) -> F64:
    """The sum over the first axis, of BLOCK rows: halves added to halves until one is left."""
    left = BLOCK // 2
    sums = rows[:left] + rows[left:]
    while left > 1:
        left //= 2
        sums = sums[:left] + sums[left:]
    total: F64 = sums[0]
    return total
