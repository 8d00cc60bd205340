"""Many pushes of one fragment to one merged displacement.

Tensors with rule `rda` are merged radially and directionally: the weighted mean of the norms times
the direction of the weighted mean of the unit vectors. Displacements of different learners are
nearly orthogonal, so their plain mean would shrink as learners are added; this keeps its length.
Tensors with rule `mean` (embeddings) are merged by weighted mean.

The result depends on the set of contributions only: not on the order in which they arrived, on
threads, or on the CPU. Payloads are read in two passes, norms first, so memory is the merged
fragment and a few chunks, however many contributions there are. Norms are exact sums; the merged
values are summed in float32, in the order of the push ids (`protocol.numerics.summing`).

Source: Decoupled DiLoCo, arXiv 2604.21428. Decided by us, where it is silent:

- per tensor, not per fragment or block; the padding never counts, whatever a payload holds there;
- no contributions, or none of positive weight: zeros;
- a zero vector adds its weight and its zero norm to the radius, and nothing to the direction;
- directions that cancel, to less than a millionth of their weight: the weighted mean;
- exactly one contribution of positive weight: its values, bit for bit;
- an element that would leave float32 becomes the largest float32 of its sign.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from protocol import standing
from protocol.errors import InternalError
from protocol.fragments import Fragment, TensorSpan
from protocol.numerics import buffers, summing
from protocol.numerics.codecs import F32, Payload, flush, require_flat
from protocol.numerics.compiled import kernels, sum_kernels
from protocol.numerics.workers import ALONE, Workers, pieces
from protocol.project import CodecName, WeightRule
from protocol.standing import NOBODY, Standing

CLIP_PUSHES_MIN = 3
"""Fewer pushes have no majority whose median could say which one is the outlier."""

GAIN_MAX = 1.5
"""How much more others may count in place of who is not trusted: a third of the weight is made up
for, and no more, so that a wrong judgement of many does not hand the merge to few."""

READ = 1 << 20
"""Elements of a piece of which only the codes are read."""

CANCELLED = 1e-6
"""A mean direction no longer than this share of its weight is rounding noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One push, still encoded."""

    key: tuple[bytes, int, int]
    """Push id (host, incarnation, sequence): unique in a merge, and the order of summation."""
    payload: Payload
    codec: CodecName
    weight: float
    """Finite, not negative; see `push_weight`."""
    standing: Standing = NOBODY
    """Of its learner, before this merge."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What pushes are measured against where trust is earned."""

    momentum: F32
    """The outer momentum of the version that the merge begins from."""
    typical: float
    """Median direction of the swarm's learners; 0 where nothing can be compared."""
    norms: tuple[float, ...]
    """Of the newest push of every learner that has none in this merge."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeResult:
    """The merged fragment, and what became of each push, in the order they were given."""

    values: F32
    """Finite, without subnormals, zero in the padding."""
    norms: tuple[float, ...]
    """Of the whole push, before clipping."""
    scales: tuple[float, ...]
    """What each push was multiplied by; below 1 if it was clipped."""
    cosines: tuple[float, ...]
    """To where the others point; 0 where there was no reference, or one of both was zero."""
    trusts: tuple[float, ...]
    """How far each push counted."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A contribution of positive weight, with what the first pass learned about it."""

    source: summing.Source
    share: float
    """Its weight over the sum of weights."""
    scale: float
    span_norms: tuple[float, ...]


def norm(values: F32, *, workers: Workers = ALONE) -> float:
    """The L2 norm of a flat array of whole blocks: the same bits everywhere.

    Squares and block sums in float64, in an order fixed here and not by the CPU's vector width; the
    sum of the blocks is correctly rounded, so it has no order.
    """
    require_flat(values)
    sums = workers.map(lambda part: summing.block_sums(values[slice(*part)]), pieces(values.size))
    return summing.root(np.concatenate(sums)) if sums else 0.0


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
    contributions: Sequence[Contribution],
    fragment: Fragment,
    clip_to_median: float,
    reference: Reference | None = None,
    *,
    workers: Workers = ALONE,
) -> MergeResult:
    """The merged displacement of `fragment`, of `fragment.numel` elements.

    With three or more contributions of positive weight, a push whose norm is over `clip_to_median`
    times the median of their norms is scaled down to that; if most are zero, so is that limit.
    With a reference that median is of every learner's newest push, learners without a standing are
    clipped to the median itself, and a push counts as far as its learner is trusted. What others
    leave of the whole weight is shared out among those who are trusted, up to `GAIN_MAX` times
    theirs; the rest of it moves nothing.
    Raises: MalformedPayload if a payload does not decode; check them on arrival, where the sender
    is known. InternalError if a key occurs twice or a weight is negative or not finite.
    Cost: each payload is decoded twice.
    """
    _require_sound(contributions)
    sources = [
        summing.Source(one.codec, one.payload, fragment.numel, one.key) for one in contributions
    ]
    span_norms = _norms(sources, fragment, workers)
    norms = [whole for whole, _ in span_norms]
    scales = _clip_scales(norms, contributions, clip_to_median, reference)
    cosines, trusts = _judged(sources, contributions, norms, fragment, reference, workers)
    shares = _shares(contributions, trusts, reference)
    parts = [
        _Part(source, share, scale, by_span)
        for source, share, scale, (_, by_span) in zip(
            sources, shares, scales, span_norms, strict=True
        )
        if share > 0
    ]
    parts.sort(key=lambda part: part.source.key)
    values = buffers.empty(fragment.numel)
    for index, span in enumerate(fragment.spans):
        out = values[span.offset : span.offset + span.padded]
        if len(parts) == 1 and parts[0].share == parts[0].scale == 1.0:
            _copy(parts[0].source, span, out, workers)
        elif parts and span.rule == "mean":
            _mean(parts, span, out, workers)
        elif parts:
            _radial(parts, span, index, out, workers)
        else:
            out[:] = 0
    return MergeResult(values, tuple(norms), tuple(scales), tuple(cosines), tuple(trusts))


def _require_sound(contributions: Sequence[Contribution]) -> None:
    keys = sorted(contribution.key for contribution in contributions)
    if any(key == after for key, after in pairwise(keys)):
        raise InternalError("one push would be merged twice")
    for contribution in contributions:
        if not 0 <= contribution.weight < math.inf:
            raise InternalError(f"a push has the weight {contribution.weight}")


def _norms(
    sources: Sequence[summing.Source], fragment: Fragment, workers: Workers
) -> list[tuple[float, tuple[float, ...]]]:
    """Of each: the norm of the whole push, and of each tensor in it."""
    places = [
        (source, span, *part)
        for source in sources
        for span in fragment.spans
        for part in pieces(span.padded, 0, READ)
    ]
    found = workers.map(lambda place: place[0].squares(*place[1:]), places)
    norms, turn = [], iter(found)
    for _ in sources:
        by_span = [
            summing.joined([next(turn) for _ in pieces(span.padded, 0, READ)])
            for span in fragment.spans
        ]
        whole = summing.root_of(summing.joined(by_span)) if by_span else 0.0
        norms.append((whole, tuple(summing.root_of(squares) for squares in by_span)))
    return norms


def _clip_scales(
    norms: Sequence[float],
    contributions: Sequence[Contribution],
    clip_to_median: float,
    reference: Reference | None,
) -> list[float]:
    pushes = list(zip(norms, contributions, strict=True))
    counted = [norm for norm, one in pushes if one.weight > 0]
    known = [*counted, *(reference.norms if reference is not None else ())]
    scales = [1.0] * len(norms)
    if len(known) < CLIP_PUSHES_MIN:
        return scales
    median = statistics.median(known)
    for index, (length, one) in enumerate(pushes):
        is_new = reference is not None and one.standing.judged < standing.JUDGED_MIN
        limit = median if is_new else clip_to_median * median
        if one.weight > 0 and length > limit:
            scales[index] = limit / length
    return scales


def _judged(
    sources: Sequence[summing.Source],
    contributions: Sequence[Contribution],
    norms: Sequence[float],
    fragment: Fragment,
    reference: Reference | None,
    workers: Workers,
) -> tuple[list[float], list[float]]:
    """Of each push: its cosine to where the others point, and how far it counts."""
    if reference is None:
        return [0.0] * len(sources), [1.0] * len(sources)
    before = [standing.trust(one.standing, reference.typical) for one in contributions]
    voices = [was * (length > 0) for was, length in zip(before, norms, strict=True)]
    if sum(voice > 0 for voice in voices) >= standing.LEARNERS_COMPARED_MIN:
        cosines = _cosines_to_others(sources, norms, voices, fragment, workers)
    else:
        cosines = _cosines_to(reference.momentum, sources, norms, fragment, workers)
    now = [
        standing.after(one.standing, cosine) if cosine else one.standing
        for one, cosine in zip(contributions, cosines, strict=True)
    ]
    # A young swarm is compared with those who are in this merge.
    compared_with = reference.typical or standing.typical(now, fragment.numel, judged_min=1)
    return cosines, [
        standing.trust_now(one.standing, cosine, compared_with)
        for one, cosine in zip(contributions, cosines, strict=True)
    ]


def _cosines_to(
    other: F32,
    sources: Sequence[summing.Source],
    norms: Sequence[float],
    fragment: Fragment,
    workers: Workers,
) -> list[float]:
    length = norm(other, workers=workers)
    if not length > 0:
        return [0.0] * len(sources)
    dots = _dots(sources, fragment, other, workers)
    return [
        _cosine(dot, mine * length) if mine > 0 else 0.0
        for dot, mine in zip(dots, norms, strict=True)
    ]


def _cosines_to_others(
    sources: Sequence[summing.Source],
    norms: Sequence[float],
    voices: Sequence[float],
    fragment: Fragment,
    workers: Workers,
) -> list[float]:
    """To the sum of the other pushes' unit vectors, each as loud as its voice.

    Not to the momentum, where enough are here: who repeats itself has made the momentum its own.
    All have one voice, whatever weight they claim.
    """
    whole = buffers.empty(fragment.numel)
    units = [
        (source, voice / length)
        for source, voice, length in zip(sources, voices, norms, strict=True)
        if voice > 0
    ]
    units.sort(key=lambda unit: unit[0].key)
    for span in fragment.spans:
        _sum(units, span, whole[span.offset : span.offset + span.padded], workers)
    square = norm(whole, workers=workers) ** 2
    found = []
    for dot, voice, length in zip(
        _dots(sources, fragment, whole, workers), voices, norms, strict=True
    ):
        along = dot / length if length > 0 else 0.0
        rest = square - 2.0 * voice * along + voice * voice
        found.append(_cosine(along - voice, math.sqrt(rest)) if rest > 0 and length > 0 else 0.0)
    return found


def _cosine(dot: float, lengths: float) -> float:
    return min(1.0, max(-1.0, dot / lengths))


def _dots(
    sources: Sequence[summing.Source], fragment: Fragment, other: F32, workers: Workers
) -> list[float]:
    """The inner product of each push with an array of the fragment, rounded once."""
    places = [
        (source, span, *part)
        for source in sources
        for span in fragment.spans
        for part in pieces(span.padded, 0, READ)
    ]

    def work(place: tuple[summing.Source, TensorSpan, int, int]) -> summing.F64:
        source, span, start, stop = place
        begin = span.offset
        return summing.products(source, span, start, stop, other[begin + start : begin + stop])

    found, each = workers.map(work, places), len(places) // len(sources) if sources else 0
    parts = [found[at * each : (at + 1) * each] for at in range(len(sources))]
    return [summing.total(np.concatenate(part)) if part else 0.0 for part in parts]


def _shares(
    contributions: Sequence[Contribution], trusts: Sequence[float], reference: Reference | None
) -> list[float]:
    """What each push adds of the whole: its weight over the sum of weights, where all are trusted.

    Who was not trusted before counts nowhere. Of what was lost just now, the others make up for as
    much as is bounded by `GAIN_MAX`.
    """
    before = [
        standing.trust(one.standing, reference.typical) if reference is not None else 1.0
        for one in contributions
    ]
    total = math.fsum(one.weight * was for one, was in zip(contributions, before, strict=True))
    counted = [one.weight * trust for one, trust in zip(contributions, trusts, strict=True)]
    left = math.fsum(counted)
    if not left > 0 or not total > 0:
        return [0.0] * len(counted)
    gain = min(1.0, GAIN_MAX * left / total)
    return [one / left * gain for one in counted]


def _copy(source: summing.Source, span: TensorSpan, out: F32, workers: Workers) -> None:
    is_streamed = buffers.is_streamed(out)

    def work(part: tuple[int, int]) -> None:
        source.copy(span, part[0], out[slice(*part)], is_streamed)

    workers.map(work, pieces(span.padded))


def _mean(parts: Sequence[_Part], span: TensorSpan, out: F32, workers: Workers) -> None:
    _sum([(part.source, part.share * part.scale) for part in parts], span, out, workers)


def _sum(
    parts: Sequence[tuple[summing.Source, float]], span: TensorSpan, out: F32, workers: Workers
) -> float:
    """Fills `out` with the weighted sum of the span; its norm."""

    def work(part: tuple[int, int]) -> summing.Squares:
        return summing.weighted_sum(parts, span, part[0], out[slice(*part)])

    return summing.root_of(summing.joined(workers.map(work, pieces(span.padded))))


def _radial(
    parts: Sequence[_Part], span: TensorSpan, index: int, out: F32, workers: Workers
) -> None:
    """Fills `out` with the radial-directional average of the span of that index."""
    pointing = [part for part in parts if part.span_norms[index] > 0]
    if not pointing:
        out[:] = 0
        return
    units = [(one.source, one.share / one.span_norms[index]) for one in pointing]
    length = _sum(units, span, out, workers)
    if length <= CANCELLED * math.fsum(part.share for part in pointing):
        _mean(parts, span, out, workers)
        return
    radius = math.fsum(part.share * part.scale * part.span_norms[index] for part in parts)
    workers.map(lambda part: _stretch(out[slice(*part)], radius / length), pieces(span.padded))


def _stretch(values: F32, factor: float) -> None:
    """Multiplies in place; flushed."""
    if kernels.IS_COMPILED:
        sum_kernels.stretch(values, factor, summing.LARGEST)
        return
    stretched = values.astype(np.float64)
    stretched *= factor
    # A radius is a norm and can exceed what one float32 element can hold.
    np.clip(stretched, -summing.LARGEST, summing.LARGEST, out=stretched)
    values[:] = stretched
    flush(values)
