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
from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.fragments import BLOCK, TensorSpan
from protocol.numerics import codecs, low_bit, payload_sizes
from protocol.numerics.codecs import F32, Payload
from protocol.numerics.compiled import kernels, sum_kernels
from protocol.numerics.compiled.sum_kernels import TOGETHER
from protocol.numerics.workers import pieces
from protocol.project import CodecName

F64 = NDArray[np.float64]

I64 = NDArray[np.int64]
Squares: TypeAlias = NDArray[Any]
"""What is summed exactly: digits where loops are compiled, else float64 sums to be added."""

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
            codes, self._bits = codecs.code_planes(codec, payload, numel)
            self._codes = codes.view(np.int8) if codec == "int8" else codes

    def whole(self, span: TensorSpan) -> int:
        """Elements from the begin of the span that are handled as whole blocks of codes."""
        return span.numel // BLOCK * BLOCK if self.codec in _BLOCKWISE else 0

    def codes(self, start: int, stop: int) -> Any:
        """Codes of these elements of the fragment."""
        bits = payload_sizes.CODE_BITS[self.codec]
        width = bits if self.codec == "int4" else 8
        return self._codes[start * width // 8 : stop * width // 8]

    def bits(self, start: int, stop: int) -> NDArray[np.uint16]:
        """Scales of the blocks of these elements of the fragment, as bf16 bits."""
        return self._bits[start // BLOCK : stop // BLOCK]

    def whole_planes(self) -> tuple[Any, NDArray[np.uint16]] | None:
        """All codes, and all scales as bf16 bits; None for a codec that is not read as codes."""
        return (self._codes, self._bits) if self.codec in _BLOCKWISE else None

    def decoded(self, span: TensorSpan, start: int, stop: int) -> F32:
        """Elements `start` to `stop` of the span, with zeros for whatever the padding holds."""
        values = codecs.decode_range(
            self.codec, self._payload, self._numel, span.offset + start, span.offset + stop
        )
        values[max(span.numel - start, 0) :] = 0
        return values

    def blocks(self, chosen: NDArray[np.int64]) -> F32:
        """Values of these blocks of the fragment, whatever the padding holds."""
        return codecs.decode_blocks(self.codec, self._payload, self._numel, chosen)

    def copy(self, span: TensorSpan, start: int, out: F32, is_streamed: bool) -> None:
        """Fills `out` with values of the span, from `start` on; is_streamed: past the caches."""
        begin = span.offset + start
        codecs.decode_into(
            self.codec, self._payload, self._numel, begin, out, is_streamed=is_streamed
        )
        out[max(span.numel - start, 0) :] = 0

    def squares(self, span: TensorSpan, start: int, stop: int) -> Squares:
        """Of these elements of the span."""
        whole = min(self.whole(span), stop) if kernels.IS_COMPILED else 0
        rest = pieces(stop - max(whole, start), max(whole, start), codecs.CHUNK)
        found = [squares_of(self.decoded(span, at, end)) for at, end in rest]
        if whole > start:
            begin, end, limbs = span.offset + start, span.offset + whole, _nothing()
            sum_kernels.tally(self.codes(begin, end), self.bits(begin, end), limbs)
            found.append(limbs)
        return joined(found)


def weighted_sum(
    parts: Sequence[tuple[Source, float]], span: TensorSpan, start: int, out: F32
) -> Squares:
    """Fills `out` with the sum of factor times values over `parts`, in the order given; of the
    elements of the span from `start` on. Returns the squares of that."""
    begin, done = span.offset + start, 0
    limbs = _nothing()
    is_alike = len({source.codec for source, _ in parts}) == 1
    for number, (codec, run) in enumerate(groupby(parts, key=lambda part: part[0].codec)):
        alike = list(run)
        whole = min(max(alike[0][0].whole(span) - start, 0), out.size)
        for first in range(0, len(alike) if whole else 0, TOGETHER):
            together, is_new = alike[first : first + TOGETHER], not number and not first
            is_last = is_alike and first + TOGETHER >= len(alike)
            add_together(codec, together, begin, out[:whole], is_new, is_last, limbs)
            done = whole if is_last and kernels.IS_COMPILED else 0
        if not number:
            out[whole:] = 0
        for source, factor in alike:
            _add_decoded(source, factor, span, start + whole, out[whole:])
    rest = squares_of(out[done:])
    return joined([rest, limbs]) if kernels.IS_COMPILED else rest


def add_together(
    codec: CodecName,
    parts: Sequence[tuple[Source, float]],
    begin: int,
    out: F32,
    is_new: bool,
    is_last: bool,
    limbs: I64,
) -> None:
    """Adds elements of the fragment from `begin` on; is_last: where kernels are compiled, the
    squares of the sum are added to `limbs`."""
    end = begin + out.size
    planes = [source.codes(begin, end) for source, _ in parts]
    scales = [source.bits(begin, end) for source, _ in parts]
    shares = np.array([factor for _, factor in parts], dtype=np.float64)
    if not kernels.IS_COMPILED:
        _twin_add(codec, planes, scales, shares, out, is_new)
        return
    # One length for all, or the loop would be compiled for each.
    more = TOGETHER - len(parts)
    planes, scales = planes + planes[:1] * more, scales + scales[:1] * more
    told = (tuple(planes), tuple(scales), shares, len(parts))
    sum_kernels.add(*told, out, is_new, is_last, limbs)


def _add_decoded(source: Source, factor: float, span: TensorSpan, begin: int, out: F32) -> None:
    """Adds what no kernel reads: other codecs, and a last block that is not full."""
    for start, stop in pieces(out.size, 0, codecs.CHUNK):
        term = source.decoded(span, begin + start, begin + stop).astype(np.float64)
        term *= factor
        term += out[start:stop]
        # A mean exceeds its largest term by rounding, which is enough to leave float32.
        np.clip(term, -LARGEST, LARGEST, out=out[start:stop], casting="unsafe")
        codecs.flush(out[start:stop])


def _twin_add(
    codec: CodecName,
    planes: Sequence[Any],
    scales: Sequence[NDArray[np.uint16]],
    shares: F64,
    total: F32,
    is_new: bool,
) -> None:
    """What the kernels do, in NumPy."""
    if is_new:
        total[:] = 0
    ones, codes = np.ones(total.size // BLOCK, np.float32), np.empty_like(total)
    for plane, bits, share in zip(planes, scales, shares, strict=True):
        factors = (codecs.wide_scales(bits).astype(np.float64) * share).astype(np.float32)
        factors[np.abs(factors) < _FACTOR_MIN] = 0
        codecs.TWIN_DECODERS[codec](plane.view(np.uint8), ones, codes)
        total += (codes.reshape(-1, BLOCK) * factors[:, None]).reshape(-1)


def block_sums(values: F32) -> F64:
    """The sum of squares of each block, in float64."""
    sums = np.empty(values.size // BLOCK, dtype=np.float64)
    if kernels.IS_COMPILED:
        sum_kernels.squares(values, sums)
        return sums
    for start in range(0, values.size, codecs.CHUNK):
        blocks = values[start : start + codecs.CHUNK].reshape(-1, BLOCK)
        # One row per place in the block: each fold is then a long addition of whole rows.
        squares = blocks.T.astype(np.float64, order="C")
        squares *= squares
        sums[start // BLOCK : start // BLOCK + len(blocks)] = low_bit.folded(squares)
    return sums


def squares_of(values: F32) -> Squares:
    """Of finite values, in whole blocks."""
    return _summed(block_sums(values))


def joined(parts: Sequence[Squares]) -> Squares:
    """All of them as one."""
    if not kernels.IS_COMPILED:
        return np.concatenate(parts)
    total: Squares = sum(parts[1:], parts[0])
    return total


def root_of(squares: Squares) -> float:
    """Of the exact sum of all squares, rounded once."""
    if squares.dtype == np.float64:
        return math.sqrt(math.fsum(squares.tolist()))
    places = np.flatnonzero(squares).tolist()
    exact = sum(int(squares[place]) << (sum_kernels.LIMB_BITS * place) for place in places)
    # A quotient of two integers is correctly rounded.
    return math.sqrt(exact / (1 << sum_kernels.LIMB_UNIT_BITS))


def root(sums: F64) -> float:
    """The same of sums of squares in float64, whatever they are."""
    return root_of(_summed(sums) if np.isfinite(sums).all() else sums)


def _summed(sums: F64) -> Squares:
    """Finite sums of squares as one, where loops are compiled."""
    if not kernels.IS_COMPILED:
        return sums
    limbs = _nothing()
    sum_kernels.add_exactly(sums, limbs)
    return limbs


def _nothing() -> I64:
    return np.zeros(sum_kernels.LIMBS, dtype=np.int64)
