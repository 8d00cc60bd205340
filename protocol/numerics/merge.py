"""Many pushes of one fragment to one merged displacement.

Tensors with rule `rda` are merged radially and directionally: the weighted mean of the norms times
the direction of the weighted mean of the unit vectors. Displacements of different learners are
nearly orthogonal, so their plain mean would shrink as learners are added; this keeps its length.
Tensors with rule `mean` (embeddings) are merged by weighted mean.

The result depends on the set of contributions only: not on the order in which they arrived, on
threads, or on the CPU. Payloads are decoded chunk by chunk in two passes, norms first, so memory is
the merged fragment and a few chunks, however many contributions there are. A chunk is summed in
float64 and stored as float32.

Source: Decoupled DiLoCo, arXiv 2604.21428. Decided by us, where it is silent:

- per tensor, not per fragment or block; the padding never counts, whatever a payload holds there;
- no contributions, or none of positive weight: zeros;
- a zero vector adds its weight and its zero norm to the radius, and nothing to the direction;
- directions that cancel, to less than 1e-12 of their weight: the weighted mean;
- exactly one contribution of positive weight: its values, bit for bit;
- an element that would leave float32 becomes the largest float32 of its sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InternalError
from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import kernels
from protocol.numerics.codecs import (
    CHUNK,
    F32,
    U8,
    Payload,
    decode_range,
    flush,
    planes,
    require_flat,
)
from protocol.project import CodecName, WeightRule

CLIP_PUSHES_MIN = 3
"""Fewer pushes have no majority whose median could say which one is the outlier."""

CANCELLED = 1e-12
"""A mean direction shorter than this share of its weight is rounding noise."""

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One push, still encoded."""

    key: tuple[bytes, int, int]
    """Push id (host, incarnation, sequence): unique in a merge, and the order of summation."""
    payload: Payload
    codec: CodecName
    weight: float
    """Finite, not negative; see `push_weight`."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeResult:
    """The merged fragment, and what became of each push, in the order they were given."""

    values: F32
    """Finite, without subnormals, zero in the padding."""
    norms: tuple[float, ...]
    """Of the whole push, before clipping."""
    scales: tuple[float, ...]
    """What each push was multiplied by; below 1 if it was clipped."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A contribution of positive weight, with what the first pass learned about it."""

    source: Contribution
    share: float
    """Its weight over the sum of weights."""
    scale: float
    span_norms: tuple[float, ...]


def norm(values: F32) -> float:
    """The L2 norm of a flat array of whole blocks: the same bits everywhere.

    Squares and block sums in float64, in an order fixed here and not by the CPU's vector width; the
    sum of the blocks is correctly rounded, so it has no order.
    """
    require_flat(values)
    return _root(_block_sums(values))


def token_weight(tokens: int, steps: int) -> float:
    """How much a push counts: tokens * tokens / steps, and 0 without tokens or steps.

    Quantity times quality: at equal batch size this is proportional to the work done, and larger
    batches count more than their tokens. Source: Decoupled DiLoCo, arXiv 2604.21428.
    """
    if tokens <= 0 or steps <= 0:
        return 0.0
    return tokens * tokens / steps


def push_weight(rule: WeightRule, tokens: int, steps: int) -> float:
    """How much a push of so many tokens in so many steps counts; 0 without tokens or steps.

    `quality`: `token_weight`; `tokens`: its tokens, as FedAvg (arXiv 1602.05629) weighs its
    clients; `equal`: 1, as DiLoCo (arXiv 2311.08105) averages its workers.
    """
    quality = token_weight(tokens, steps)
    if not quality or rule == "quality":
        return quality
    return float(tokens) if rule == "tokens" else 1.0


def merge_fragment(
    contributions: Sequence[Contribution], fragment: Fragment, clip_to_median: float
) -> MergeResult:
    """The merged displacement of `fragment`, of `fragment.numel` elements.

    With three or more contributions of positive weight, a push whose norm is over `clip_to_median`
    times the median of their norms is scaled down to that; if most are zero, so is that limit.
    Raises: MalformedPayload if a payload does not decode; check them on arrival, where the sender
    is known. InternalError if a key occurs twice or a weight is negative or not finite.
    Cost: each payload is decoded twice.
    """
    _require_sound(contributions)
    span_norms: list[tuple[float, ...]] = []
    norms: list[float] = []
    for contribution in contributions:
        whole, by_span = _norms(contribution, fragment)
        norms.append(whole)
        span_norms.append(by_span)
    scales = _clip_scales(norms, [c.weight for c in contributions], clip_to_median)
    total = math.fsum(c.weight for c in contributions)
    parts = [
        _Part(contribution, contribution.weight / total, scale, by_span)
        for contribution, scale, by_span in zip(contributions, scales, span_norms, strict=True)
        if contribution.weight > 0
    ]
    parts.sort(key=lambda part: part.source.key)
    values = np.zeros(fragment.numel, dtype=np.float32)
    for index, span in enumerate(fragment.spans):
        out = values[span.offset : span.offset + span.padded]
        if len(parts) == 1:
            _copy(parts[0], fragment, span, out)
        elif parts and span.rule == "mean":
            _mean(parts, fragment, span, out)
        elif parts:
            _radial(parts, fragment, index, out)
    flush(values)
    return MergeResult(values, tuple(norms), tuple(scales))


def _require_sound(contributions: Sequence[Contribution]) -> None:
    keys = sorted(contribution.key for contribution in contributions)
    if any(key == after for key, after in pairwise(keys)):
        raise InternalError("one push would be merged twice")
    for contribution in contributions:
        if not 0 <= contribution.weight < math.inf:
            raise InternalError(f"a push has the weight {contribution.weight}")


def _norms(contribution: Contribution, fragment: Fragment) -> tuple[float, tuple[float, ...]]:
    """Norm of the whole push, and of each tensor in it."""
    sums = np.zeros(fragment.numel // BLOCK, dtype=np.float64)
    for span in fragment.spans:
        first = span.offset // BLOCK
        for start, stop in _chunks(span):
            here = sums[first + start // BLOCK : first + stop // BLOCK]
            _sum_squares(contribution, fragment, span, start, here)
    by_span = tuple(
        _root(sums[span.offset // BLOCK : (span.offset + span.padded) // BLOCK])
        for span in fragment.spans
    )
    return _root(sums), by_span


def _clip_scales(
    norms: Sequence[float], weights: Sequence[float], clip_to_median: float
) -> list[float]:
    counted = sorted(n for n, weight in zip(norms, weights, strict=True) if weight > 0)
    scales = [1.0] * len(norms)
    if len(counted) < CLIP_PUSHES_MIN:
        return scales
    middle = len(counted) // 2
    median = counted[middle] if len(counted) % 2 else (counted[middle - 1] + counted[middle]) / 2
    limit = clip_to_median * median
    for index, (length, weight) in enumerate(zip(norms, weights, strict=True)):
        if weight > 0 and length > limit:
            scales[index] = limit / length
    return scales


def _copy(part: _Part, fragment: Fragment, span: TensorSpan, out: F32) -> None:
    for start, stop in _chunks(span):
        out[start:stop] = _decoded(part.source, fragment, span, start, stop)


def _mean(parts: Sequence[_Part], fragment: Fragment, span: TensorSpan, out: F32) -> None:
    _weighted_sum(parts, [part.share * part.scale for part in parts], fragment, span, out)


def _radial(parts: Sequence[_Part], fragment: Fragment, index: int, out: F32) -> None:
    """Fills `out` with the radial-directional average of the span of that index."""
    span = fragment.spans[index]
    pointing = [part for part in parts if part.span_norms[index] > 0]
    if not pointing:
        return
    factors = [part.share / part.span_norms[index] for part in pointing]
    _weighted_sum(pointing, factors, fragment, span, out)
    length = norm(out)
    if length < CANCELLED * math.fsum(part.share for part in pointing):
        _mean(parts, fragment, span, out)
        return
    radius = math.fsum(part.share * part.scale * part.span_norms[index] for part in parts)
    for start, stop in _chunks(span):
        chunk = out[start:stop]
        if kernels.IS_COMPILED:
            kernels.stretch(chunk, radius / length, _LARGEST)
            continue
        stretched = chunk.astype(np.float64)
        stretched *= radius / length
        # A radius is a norm and can exceed what one float32 element can hold.
        np.clip(stretched, -_LARGEST, _LARGEST, out=stretched)
        chunk[:] = stretched


def _weighted_sum(
    parts: Sequence[_Part],
    factors: Sequence[float],
    fragment: Fragment,
    span: TensorSpan,
    out: F32,
) -> None:
    """Fills `out` with the sum of factor times values, over `parts` in the order given."""
    for start, stop in _chunks(span):
        total = np.zeros(stop - start, dtype=np.float64)
        for part, factor in zip(parts, factors, strict=True):
            _add(part.source, fragment, span, start, factor, total)
        # A mean exceeds its largest term by float64 rounding at most: it cannot overflow.
        out[start:stop] = total


def _chunks(span: TensorSpan) -> list[tuple[int, int]]:
    """Begin and end of the chunks of a span, counted from the span's own begin."""
    return [(start, min(start + CHUNK, span.padded)) for start in range(0, span.padded, CHUNK)]


def _decoded(
    contribution: Contribution, fragment: Fragment, span: TensorSpan, start: int, stop: int
) -> F32:
    """Elements `start` to `stop` of the span, with zeros for whatever the padding holds."""
    values = decode_range(
        contribution.codec,
        contribution.payload,
        fragment.numel,
        span.offset + start,
        span.offset + stop,
    )
    values[max(span.numel - start, 0) :] = 0
    return values


def _whole(span: TensorSpan, start: int, count: int) -> int:
    """How many of the `count` elements from `start` on are in blocks without padding."""
    return min(count, max(span.numel // BLOCK * BLOCK - start, 0))


def _sum_squares(
    contribution: Contribution,
    fragment: Fragment,
    span: TensorSpan,
    start: int,
    sums: NDArray[np.float64],
) -> None:
    """Fills `sums` with the sum of squares of the span's blocks from element `start` on."""
    stop, kernel = start + sums.size * BLOCK, _SQUARES.get(contribution.codec)
    middle = start + (_whole(span, start, stop - start) if kernel is not None else 0)
    if kernel is not None and middle > start:
        codes, scales = _planes(contribution, fragment, span, start, middle)
        kernel(codes, scales, sums[: (middle - start) // BLOCK])
    if stop > middle:
        values = _decoded(contribution, fragment, span, middle, stop)
        sums[(middle - start) // BLOCK :] = _block_sums(values)


def _add(
    contribution: Contribution,
    fragment: Fragment,
    span: TensorSpan,
    start: int,
    factor: float,
    total: NDArray[np.float64],
) -> None:
    """Adds factor times the span's elements from `start` on to `total`."""
    stop, kernel = start + total.size, _ADDERS.get(contribution.codec)
    middle = start + (_whole(span, start, stop - start) if kernel is not None else 0)
    if kernel is not None and middle > start:
        codes, scales = _planes(contribution, fragment, span, start, middle)
        kernel(codes, scales, factor, total[: middle - start])
    if stop > middle:
        term = _decoded(contribution, fragment, span, middle, stop).astype(np.float64)
        term *= factor
        total[middle - start :] += term


def _planes(
    contribution: Contribution, fragment: Fragment, span: TensorSpan, start: int, stop: int
) -> tuple[U8, F32]:
    codes, scales = planes(
        contribution.codec,
        contribution.payload,
        fragment.numel,
        span.offset + start,
        span.offset + stop,
    )
    return (codes.view(np.int8) if contribution.codec == "int8" else codes), scales


_SQUARES: dict[CodecName, Callable[[Any, F32, NDArray[np.float64]], None]] = {
    "int4": kernels.squares_int4,
    "int8": kernels.squares_int8,
}
_ADDERS: dict[CodecName, Callable[[Any, F32, float, NDArray[np.float64]], None]] = {
    "int4": kernels.add_int4,
    "int8": kernels.add_int8,
}
if not kernels.IS_COMPILED:
    _SQUARES.clear()
    _ADDERS.clear()


def _block_sums(values: F32) -> NDArray[np.float64]:
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


def _root(block_sums: NDArray[np.float64]) -> float:
    """Of their exact sum, rounded once."""
    if not kernels.IS_COMPILED or not np.isfinite(block_sums).all():
        return math.sqrt(math.fsum(block_sums.tolist()))
    limbs = np.zeros(kernels.LIMBS, dtype=np.int64)
    kernels.add_exactly(block_sums, limbs)
    exact = sum(limb << (kernels.LIMB_BITS * place) for place, limb in enumerate(limbs.tolist()))
    # A quotient of two integers is correctly rounded.
    return math.sqrt(exact / (1 << kernels.LIMB_UNIT_BITS))
