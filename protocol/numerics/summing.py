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
from typing import Any

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
    decode_range,
    flush,
    wide_scales,
)
from protocol.project import CodecName

F64 = NDArray[np.float64]

TOGETHER = 8
"""Payloads that are added in one pass."""

PIECE = 1 << 20
"""Elements between two returns to Python; a multiple of BLOCK."""

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

    def copy(self, span: TensorSpan, out: F32) -> None:
        """Fills `out` with the values of the span."""
        for start, stop in _parts(0, span.padded, CHUNK):
            out[start:stop] = self.decoded(span, start, stop)

    def sum_squares(self, span: TensorSpan, sums: F64) -> None:
        """Fills `sums` with the sum of squares of each block of the span."""
        whole = self.whole(span) if kernels.IS_COMPILED else 0
        kernel = kernels.squares_int8 if self.codec == "int8" else kernels.squares_int4
        for start, stop in _parts(0, whole, PIECE):
            begin, end = span.offset + start, span.offset + stop
            wide = wide_scales(self.bits(begin, end))
            kernel(self.codes(begin, end), wide, sums[start // BLOCK : stop // BLOCK])
        for start, stop in _parts(whole, span.padded, CHUNK):
            sums[start // BLOCK : stop // BLOCK] = block_sums(self.decoded(span, start, stop))


def weighted_sum(parts: Sequence[tuple[Source, float]], span: TensorSpan, out: F32) -> None:
    """Fills `out` with the sum of factor times values over `parts`, in the order given."""
    out[:] = 0
    for codec, run in groupby(parts, key=lambda part: part[0].codec):
        alike = list(run)
        whole = alike[0][0].whole(span)
        for first in range(0, len(alike) if whole else 0, TOGETHER):
            _add_together(codec, alike[first : first + TOGETHER], span, out[:whole])
        for source, factor in alike:
            _add_decoded(source, factor, span, whole, out)


def _add_together(
    codec: CodecName, parts: Sequence[tuple[Source, float]], span: TensorSpan, out: F32
) -> None:
    add = _ADDERS[codec] if kernels.IS_COMPILED else _twin_adder(codec)
    for start, stop in _parts(0, out.size, PIECE):
        begin, end = span.offset + start, span.offset + stop
        by_block = np.empty((len(parts), (stop - start) // BLOCK), dtype=np.float32)
        for (source, factor), row in zip(parts, by_block, strict=True):
            _fill_factors(source.bits(begin, end), factor, row)
        planes = [source.codes(begin, end) for source, _ in parts]
        # One length for all, or the loop would be compiled for each.
        planes += planes[:1] * (TOGETHER - len(planes))
        add(tuple(planes), len(parts), by_block, out[start:stop])


def _add_decoded(source: Source, factor: float, span: TensorSpan, begin: int, out: F32) -> None:
    """Adds what no kernel reads: other codecs, and a last block that is not full."""
    for start, stop in _parts(begin, span.padded, CHUNK):
        term = source.decoded(span, start, stop).astype(np.float64)
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


def _twin_adder(codec: CodecName) -> Callable[[tuple[Any, ...], int, F32, F32], None]:
    """What the kernel does, in NumPy."""

    def add(planes: tuple[Any, ...], count: int, by_block: F32, total: F32) -> None:
        ones, codes = np.ones(by_block.shape[1], np.float32), np.empty_like(total)
        for plane, factors in zip(planes[:count], by_block, strict=True):
            TWIN_DECODERS[codec](plane.view(np.uint8), ones, codes)
            total += (codes.reshape(-1, BLOCK) * factors[:, None]).reshape(-1)

    return add


_ADDERS: dict[CodecName, Callable[[tuple[Any, ...], int, F32, F32], None]] = {
    "int4": kernels.add_int4,
    "int8": kernels.add_int8,
}


def _parts(begin: int, end: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, end)) for start in range(begin, end, step)]


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
    if not kernels.IS_COMPILED or not np.isfinite(sums).all():
        return math.sqrt(math.fsum(sums.tolist()))
    limbs = np.zeros(kernels.LIMBS, dtype=np.int64)
    kernels.add_exactly(sums, limbs)
    exact = sum(limb << (kernels.LIMB_BITS * place) for place, limb in enumerate(limbs.tolist()))
    # A quotient of two integers is correctly rounded.
    return math.sqrt(exact / (1 << kernels.LIMB_UNIT_BITS))
