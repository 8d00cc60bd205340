"""Payloads that are summed without ever being decoded whole.

Of each tensor: the sum of squares of its blocks, exact; and a weighted sum of several payloads, in
float32 and in the order given. int8 and int4 are read up to eight payloads at a time, so that the
sum moves through memory once for all of them: the factor of a payload times the scale of a block is
rounded to float32, and 0 below 2^-100, which keeps every product and every sum 0 or normal. Other
codecs are decoded chunk by chunk, and each product is formed in float64.

What the padding of a tensor holds in a payload never counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.fragments import BLOCK, TensorSpan
from protocol.numerics import kernels
from protocol.numerics.codecs import (
    CHUNK,
    CODE_BITS,
    F32,
    TWIN_DECODERS,
    Payload,
    code_planes,
    decode_into,
    decode_range,
    flush,
    wide_scales,
)
from protocol.numerics.workers import ALONE, Workers, pieces
from protocol.project import CodecName

F64 = NDArray[np.float64]

TOGETHER = 8
"""Payloads that are added in one pass."""

_Adder: TypeAlias = Callable[[tuple[Any, ...], int, F32, F32, bool], None]

LARGEST = float(np.finfo(np.float32).max)

_BLOCKWISE: tuple[CodecName, ...] = ("int8", "int4")
_FACTOR_MIN = 2.0**-100


class Source:
    """One payload of a fragment."""

    def __init__(
        self, codec: CodecName, payload: Payload, numel: int, key: tuple[bytes, int, int]
    ) -> None:
        """Raises: MalformedPayload if the length is wrong, or a scale of int8 or int4."""
        self.codec = codec
        self.key = key
        self._payload = payload
        self._numel = numel
        self._codes: Any = None
        if codec in _BLOCKWISE:
            codes, self._bits = code_planes(codec, payload, numel)
            self._codes = codes.view(np.int8) if codec == "int8" else codes

    def whole(self, span: TensorSpan) -> int:
        """Elements from the begin of the span that are handled as whole blocks of codes."""
        return span.numel // BLOCK * BLOCK if self.codec in _BLOCKWISE else 0

    def codes(self, start: int, stop: int) -> Any:
        """Codes of these elements of the fragment."""
        bits = CODE_BITS[self.codec]
        width = bits if self.codec == "int4" else 8
        return self._codes[start * width // 8 : stop * width // 8]

    def bits(self, start: int, stop: int) -> NDArray[np.uint16]:
        """Scales of the blocks of these elements of the fragment, as bf16 bits."""
        return self._bits[start // BLOCK : stop // BLOCK]

    def decoded(self, span: TensorSpan, start: int, stop: int) -> F32:
        """Elements `start` to `stop` of the span, with zeros for whatever the padding holds."""
        values = decode_range(
            self.codec, self._payload, self._numel, span.offset + start, span.offset + stop
        )
        values[max(span.numel - start, 0) :] = 0
        return values

    def copy(self, span: TensorSpan, start: int, out: F32) -> None:
        """Fills `out` with values of the span, from `start` on."""
        decode_into(self.codec, self._payload, self._numel, span.offset + start, out)
        out[max(span.numel - start, 0) :] = 0

    def sum_squares(self, span: TensorSpan, start: int, stop: int, sums: F64) -> None:
        """Fills `sums` with the sum of squares of each block of these elements of the span."""
        whole = min(self.whole(span), stop) if kernels.IS_COMPILED else 0
        if whole > start:
            kernel = kernels.squares_int8 if self.codec == "int8" else kernels.squares_int4
            begin, end = span.offset + start, span.offset + whole
            wide = wide_scales(self.bits(begin, end))
            kernel(self.codes(begin, end), wide, sums[: wide.size])
        for at, end in pieces(stop - max(whole, start), max(whole, start), CHUNK):
            here = slice((at - start) // BLOCK, (end - start) // BLOCK)
            sums[here] = block_sums(self.decoded(span, at, end))


def weighted_sum(
    parts: Sequence[tuple[Source, float]], span: TensorSpan, start: int, out: F32
) -> None:
    """Fills `out` with the sum of factor times values over `parts`, in the order given; of the
    elements of the span from `start` on."""
    begin = span.offset + start
    for number, (codec, run) in enumerate(groupby(parts, key=lambda part: part[0].codec)):
        alike = list(run)
        whole = min(max(alike[0][0].whole(span) - start, 0), out.size)
        for first in range(0, len(alike) if whole else 0, TOGETHER):
            together, is_new = alike[first : first + TOGETHER], not number and not first
            _add_together(codec, together, begin, out[:whole], is_new=is_new)
        if not number:
            out[whole:] = 0
        for source, factor in alike:
            _add_decoded(source, factor, span, start + whole, out[whole:])


def _add_together(
    codec: CodecName, parts: Sequence[tuple[Source, float]], begin: int, out: F32, *, is_new: bool
) -> None:
    """Adds elements of the fragment from `begin` on."""
    add = _ADDERS[codec] if kernels.IS_COMPILED else _twin_adder(codec)
    end = begin + out.size
    by_block = np.empty((len(parts), out.size // BLOCK), dtype=np.float32)
    for (source, factor), row in zip(parts, by_block, strict=True):
        _fill_factors(source.bits(begin, end), factor, row)
    planes = [source.codes(begin, end) for source, _ in parts]
    # One length for all, or the loop would be compiled for each.
    planes += planes[:1] * (TOGETHER - len(planes))
    add(tuple(planes), len(parts), by_block, out, is_new)


def _add_decoded(source: Source, factor: float, span: TensorSpan, begin: int, out: F32) -> None:
    """Adds what no kernel reads: other codecs, and a last block that is not full."""
    for start, stop in pieces(out.size, 0, CHUNK):
        term = source.decoded(span, begin + start, begin + stop).astype(np.float64)
        term *= factor
        term += out[start:stop]
        # A mean exceeds its largest term by rounding, which is enough to leave float32.
        np.clip(term, -LARGEST, LARGEST, out=out[start:stop], casting="unsafe")
        flush(out[start:stop])


def _fill_factors(bits: NDArray[np.uint16], factor: float, out: F32) -> None:
    if kernels.IS_COMPILED:
        kernels.factors(bits, factor, out)
        return
    out[:] = wide_scales(bits).astype(np.float64) * factor
    out[np.abs(out) < _FACTOR_MIN] = 0


def _twin_adder(codec: CodecName) -> _Adder:
    """What the kernel does, in NumPy."""

    def add(planes: tuple[Any, ...], count: int, by_block: F32, total: F32, is_new: bool) -> None:
        if is_new:
            total[:] = 0
        ones, codes = np.ones(by_block.shape[1], np.float32), np.empty_like(total)
        for plane, factors in zip(planes[:count], by_block, strict=True):
            TWIN_DECODERS[codec](plane.view(np.uint8), ones, codes)
            total += (codes.reshape(-1, BLOCK) * factors[:, None]).reshape(-1)

    return add


_ADDERS: dict[CodecName, _Adder] = {
    "int4": kernels.add_int4,
    "int8": kernels.add_int8,
}


def block_sums(values: F32) -> F64:
    """The sum of squares of each block, in float64."""
    sums = np.empty(values.size // BLOCK, dtype=np.float64)
    if kernels.IS_COMPILED:
        kernels.squares(values, sums, np.empty(BLOCK, dtype=np.float64))
        return sums
    for start in range(0, values.size, CHUNK):
        blocks = values[start : start + CHUNK].reshape(-1, BLOCK)
        # One row per place in the block: each fold is then a long addition of whole rows.
        squares = blocks.T.astype(np.float64, order="C")
        squares *= squares
        rows = BLOCK
        while rows > 1:
            rows //= 2
            squares[:rows] += squares[rows : 2 * rows]
        sums[start // BLOCK : start // BLOCK + len(blocks)] = squares[0]
    return sums


def root(sums: F64) -> float:
    """Of the exact sum of these sums, rounded once."""
    return roots([sums])[0]


def roots(parts: Sequence[F64], *, workers: Workers = ALONE) -> tuple[float, list[float]]:
    """Of the exact sum of all these sums, rounded once, and of the exact sum of each part."""
    if not kernels.IS_COMPILED or not all(np.isfinite(sums).all() for sums in parts):
        each = [sums.tolist() for sums in parts]
        whole = math.fsum(value for values in each for value in values)
        return math.sqrt(whole), [math.sqrt(math.fsum(values)) for values in each]
    limbs = workers.map(_exact, parts)
    return _root(sum(limbs, np.zeros(kernels.LIMBS, dtype=np.int64))), [_root(one) for one in limbs]


def _exact(sums: F64) -> NDArray[np.int64]:
    limbs = np.zeros(kernels.LIMBS, dtype=np.int64)
    kernels.add_exactly(sums, limbs)
    return limbs


def _root(limbs: NDArray[np.int64]) -> float:
    exact = sum(limb << (kernels.LIMB_BITS * place) for place, limb in enumerate(limbs.tolist()))
    # A quotient of two integers is correctly rounded.
    return math.sqrt(exact / (1 << kernels.LIMB_UNIT_BITS))
