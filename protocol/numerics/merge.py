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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from protocol import novelty, standing
from protocol.errors import InternalError
from protocol.fragments import Fragment, TensorSpan
from protocol.merge_rules import GAIN_MAX, RULES, MergeRules
from protocol.novelty import UNHEARD, Novelty
from protocol.numerics import buffers, directions, echoes, lengths, repeats, summing
from protocol.numerics.codecs import F32, Payload, flush, require_flat
from protocol.numerics.compiled import kernels, sum_kernels
from protocol.numerics.directions import Sample
from protocol.numerics.lengths import Length
from protocol.numerics.repeats import Former
from protocol.numerics.workers import ALONE, Workers, pieces
from protocol.project import CodecName, WeightRule
from protocol.standing import NOBODY, Standing

READ = 1 << 20
"""Elements of a piece of which only the codes are read."""

NOTHING_FORMER = Former(0)

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
    steps: int = 0
    """Local steps that it claims; 0 where that is not told."""
    novelty: Novelty = UNHEARD
    """As `standing`."""
    is_late: bool = False
    """Its base is not the newest version: what it was trained for was merged meanwhile."""
    base_version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What pushes are measured against where trust is earned."""

    momentum: F32
    """The outer momentum of the version that the merge begins from."""
    typical: float
    """Median direction of the swarm's learners; 0 where nothing can be compared."""
    known: tuple[Length, ...]
    """Of the newest push of every learner that has none in this merge."""
    is_established: bool = False
    """Enough learners are here that were judged for long: others add little, and say nothing of
    where to go."""
    seed: int = 0
    """Of the draw of the elements that are compared; nobody who hands in may know it."""
    rules: MergeRules = RULES
    repeats: float = 1.0
    """How far learners usually repeat themselves; 1 where nothing can be compared."""
    former: Former = NOTHING_FORMER
    """Own parts of their former pushes."""
    lately: tuple[tuple[CodecName, Payload], ...] = ()
    """The newest merged displacements of the fragment."""
    typical_novelty: float = 0.0
    """Median novelty of the swarm's learners; 0 where nothing can be compared."""
    strays: float = 0.0
    """Share of the median direction by which that of a learner may stray by chance."""
    novelty_strays: float = 0.0
    """The same of novelty."""


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
    """How far each push counted, by where it and its learner's earlier ones pointed."""
    shares: tuple[float, ...]
    """What each push added of the whole, after all of this but clipping; their sum is at most 1."""
    tensors: tuple[bytes, ...] = ()
    """Norms by tensor of each push, as `lengths` writes them; none where trust is not earned."""
    tensors_clipped: tuple[int, ...] = ()
    """How many tensors of each push were scaled down further than all of it."""
    expected: tuple[float, ...] = ()
    """Of the usual cosine, how much each could be expected to have; none where trust is not
    earned."""
    repeats: tuple[float, ...] = ()
    """How far each repeats its learner's former push; none where trust is not earned. Says nothing
    about this merge: it is for the next."""
    own_parts: tuple[F32, ...] = ()
    """What next pushes of the fragment may repeat, in the blocks of `Former`."""
    echoes: tuple[float, ...] = ()
    """How much of each push was merged lately; none where nothing was."""
    novelties: tuple[float | None, ...] = ()
    """Cosine of the rest to that of the others; None where too few others are in the merge, and of
    late pushes."""


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What the directions of the pushes say, of each in the order they were given."""

    cosines: tuple[float, ...]
    trusts: tuple[float, ...]
    crowds: tuple[int, ...]
    expected: tuple[float, ...] = ()
    repeats: tuple[float, ...] = ()
    own_parts: tuple[F32, ...] = ()
    echoes: tuple[float, ...] = ()
    novelties: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class _Clip:
    """What a push is multiplied by."""

    whole: float
    tensors: tuple[float, ...]
    """At most that, of each."""

    @classmethod
    def of_whole(cls, one: Contribution, norm: float, most: float, tensors: int) -> _Clip:
        scale = most / norm if one.weight > 0 and norm > most else 1.0
        return cls(scale, (scale,) * tensors)

    @property
    def tensors_clipped(self) -> int:
        return sum(scale < self.whole for scale in self.tensors)


@dataclass(frozen=True, slots=True)
class _Part:
    """A contribution of positive weight, with what the first pass learned about it."""

    source: summing.Source
    share: float
    """Its weight over the sum of weights."""
    scales: tuple[float, ...]
    """Of each tensor."""
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
    clipped to the median itself, no push is much longer than its local steps are worth, and no
    tensor of it than `clip_to_median` times the median of that tensor
    (`protocol.numerics.lengths`); a push counts as far as its learner is trusted. What others
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
    judged = _judged(sources, contributions, fragment, reference, workers)
    clips = _clipped(span_norms, contributions, clip_to_median, reference)
    shares = _shares(contributions, judged, reference)
    parts = [
        _Part(source, share, clip.tensors, by_span)
        for source, share, clip, (_, by_span) in zip(
            sources, shares, clips, span_norms, strict=True
        )
        if share > 0
    ]
    parts.sort(key=lambda part: part.source.key)
    values = _merged(parts, fragment, workers)
    return MergeResult(
        values,
        norms=tuple(whole for whole, _ in span_norms),
        scales=tuple(clip.whole for clip in clips),
        tensors=tuple(lengths.encode(by_span, whole) for whole, by_span in span_norms)
        if reference is not None
        else (),
        tensors_clipped=tuple(clip.tensors_clipped for clip in clips),
        cosines=judged.cosines,
        trusts=judged.trusts,
        shares=tuple(shares),
        expected=judged.expected,
        repeats=judged.repeats,
        own_parts=judged.own_parts,
        echoes=judged.echoes,
        novelties=judged.novelties,
    )


def _merged(parts: Sequence[_Part], fragment: Fragment, workers: Workers) -> F32:
    """The merged displacement; zeros if there are no parts."""
    values = buffers.empty(fragment.numel)
    for index, span in enumerate(fragment.spans):
        out = values[span.offset : span.offset + span.padded]
        if len(parts) == 1 and parts[0].share == parts[0].scales[index] == 1.0:
            _copy(parts[0].source, span, out, workers)
        elif parts and span.rule == "mean":
            _mean(parts, span, index, out, workers)
        elif parts:
            _radial(parts, span, index, out, workers)
        else:
            out[:] = 0
    return values


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


def _clipped(
    norms: Sequence[tuple[float, tuple[float, ...]]],
    contributions: Sequence[Contribution],
    clip_to_median: float,
    reference: Reference | None,
) -> list[_Clip]:
    """What is left of each push and of its tensors. norms: whole, and by tensor."""
    pushes = list(zip(norms, contributions, strict=True))
    found = [
        Length(whole, one.steps, by_span) for (whole, by_span), one in pushes if one.weight > 0
    ]
    tensors = len(norms[0][1]) if norms else 0
    if reference is None:
        usual = lengths.medians(found, 0)
        limits = [lengths.limit(usual, clip_to_median, is_new=False) for _ in pushes]
        return [
            _Clip.of_whole(one, whole, most, tensors)
            for ((whole, _), one), most in zip(pushes, limits, strict=True)
        ]
    usual, rules = lengths.medians([*found, *reference.known], tensors), reference.rules
    in_merge = lengths.medians(found, 0)
    clips = []
    for (whole, by_span), one in pushes:
        is_new = one.standing.judged < standing.JUDGED_MIN
        most = lengths.limit(usual, clip_to_median, is_new=is_new)
        # While the learning rate may still warm up, pushes grow from one merge to the next.
        alike = usual if reference.is_established else in_merge
        most = min(most, lengths.limit_for_work(alike, one.steps, rules))
        clip = _Clip.of_whole(one, whole, most, tensors)
        if one.weight > 0:
            multiple = clip_to_median * rules.tensor_length_max
            multiple *= lengths.work_factor(usual, one.steps, clip_to_median)
            clip = _Clip(clip.whole, lengths.tensor_scales(by_span, clip.whole, usual, multiple))
        clips.append(clip)
    return clips


def _judged(
    sources: Sequence[summing.Source],
    contributions: Sequence[Contribution],
    fragment: Fragment,
    reference: Reference | None,
    workers: Workers,
) -> _Judgement:
    """Where each push points, and how far it counts."""
    if reference is None:
        some = len(sources)
        return _Judgement((0.0,) * some, (1.0,) * some, (1,) * some)
    sample = Sample(fragment, reference.seed)
    crowds = [1] * len(sources)
    if len(sources) >= standing.LEARNERS_COMPARED_MIN:
        crowds = directions.crowds(sources, sample, workers, reference.rules.likeness_max)
    along = _along(sources, fragment, reference, sample, workers)
    heard = tuple(map(echoes.share, along)) if along else (0.0,) * len(sources)
    voices = _voices(contributions, crowds, heard, reference)
    found: Sequence[float | None] = (None,) * len(sources)
    are_enough = sum(voice > 0 for voice in voices) >= standing.LEARNERS_COMPARED_MIN
    if are_enough:
        toward = directions.toward_others(sources, voices, sample, workers)
        cosines = [one.cosine for one in toward]
        if along and not _is_of_the_beginning(contributions, voices):
            made = echoes.novelties(along, voices, toward)
            found = [
                None if one.is_late else its for one, its in zip(contributions, made, strict=True)
            ]
    else:
        cosines = directions.cosines_to(reference.momentum, sources, sample, workers)
    own = repeats.compared(
        sources,
        voices,
        None if are_enough else reference.momentum,
        fragment,
        reference.former,
        workers,
    )
    compared = directions.elements_compared(fragment.numel)
    expected, trusts = _direction_trusts(contributions, cosines, compared, reference)
    new = _novelty_trusts(contributions, heard, found, compared, reference)
    return _Judgement(
        tuple(cosines),
        tuple(min(trust, its) for trust, its in zip(trusts, new, strict=True)),
        tuple(crowds),
        tuple(expected),
        tuple(repeat for repeat, _ in own),
        tuple(part for _, part in own),
        *((heard, tuple(found)) if along else ((), ())),
    )


def _is_of_the_beginning(contributions: Sequence[Contribution], voices: Sequence[float]) -> bool:
    """Whether most of what says where to go lags from version 0: it says nothing of what is new.

    What such pushes have beside what was merged is the small first local steps of a run, and points
    elsewhere than those that began from the first merge.
    """
    first = [
        voice
        for one, voice in zip(contributions, voices, strict=True)
        if one.is_late and one.base_version == 0
    ]
    return 2.0 * math.fsum(first) > math.fsum(voices)


def _direction_trusts(
    contributions: Sequence[Contribution],
    cosines: Sequence[float],
    elements: int,
    reference: Reference,
) -> tuple[list[float], list[float]]:
    """Of each push: what was expected of its cosine, and how far it counts by that and by how far
    its learner repeats itself."""
    usual = lengths.usual_steps(
        [Length(0.0, one.steps) for one in contributions if one.weight > 0] + list(reference.known)
    )
    expected = [standing.expected(one.steps, usual) for one in contributions]
    told = list(zip(contributions, cosines, expected, strict=True))
    after = [
        standing.after(one.standing, cosine, expected=its) if cosine else one.standing
        for one, cosine, its in told
    ]
    # A young swarm is compared with those who are in this merge.
    compared_with, strays = reference.typical, reference.strays
    is_young = not compared_with
    if is_young:
        told_of = [
            its
            for its, one in zip(after, contributions, strict=True)
            if not standing.is_of_the_beginning(
                one.base_version, is_late=one.is_late, pushes=len(contributions)
            )
        ]
        compared_with = standing.typical(told_of, elements, judged_min=1)
        strays = standing.strays(told_of, compared_with, judged_min=1)
    bounds = reference.rules.trust_bounds
    trusts = [
        min(
            standing.trust_now(
                one.standing,
                cosine,
                compared_with,
                bounds,
                expected=its,
                strays=strays,
                is_young=is_young,
            ),
            _by_repeats(one, reference),
        )
        for one, cosine, its in told
    ]
    return expected, trusts


def _by_repeats(one: Contribution, reference: Reference) -> float:
    rules = reference.rules
    return standing.trust_by_repeats(
        one.standing, reference.repeats, rules.repeats_bounds, rules.other_text_repeats_bounds
    )


def _along(
    sources: Sequence[summing.Source],
    fragment: Fragment,
    reference: Reference,
    sample: Sample,
    workers: Workers,
) -> list[echoes.Coordinates]:
    """Of each push, in what was merged lately; empty where nothing was."""
    if not reference.lately:
        return []
    merged = [
        summing.Source(codec, payload, fragment.numel, (b"", 0, at))
        for at, (codec, payload) in enumerate(reference.lately)
    ]
    vectors = workers.map(sample.once, merged)
    lately = echoes.Lately.of([*vectors, sample.of_values(reference.momentum)])
    return echoes.echoes(sources, lately, sample, workers)


def _novelty_trusts(
    contributions: Sequence[Contribution],
    heard: Sequence[float],
    found: Sequence[float | None],
    elements: int,
    reference: Reference,
) -> list[float]:
    """How far each push counts by what is new in it."""
    pushes = list(zip(contributions, heard, found, strict=True))
    after = [
        novelty.after(one.novelty, echo, its, is_late=one.is_late) for one, echo, its in pushes
    ]
    usual, strays = reference.typical_novelty, reference.novelty_strays
    if not usual:
        usual = novelty.typical(after, elements, judged_min=1)
        strays = novelty.strays(after, usual, judged_min=1)
    return [
        novelty.trust_now(one.novelty, echo, its, usual, is_late=one.is_late, strays=strays)
        for one, echo, its in pushes
    ]


def _before(one: Contribution, reference: Reference) -> float:
    """How far its learner was trusted before this merge."""
    bounds = reference.rules.trust_bounds
    direction = standing.trust(one.standing, reference.typical, bounds, reference.strays)
    new = novelty.trust(one.novelty, reference.typical_novelty, reference.novelty_strays)
    return min(direction, new, _by_repeats(one, reference))


def _voices(
    contributions: Sequence[Contribution],
    crowds: Sequence[int],
    heard: Sequence[float],
    reference: Reference,
) -> list[float]:
    """How loud each push says where to go, whatever weight it claims: 1 for those that are trusted
    and alone; echoes say nothing, and new learners while enough others do."""
    voices = [
        0.0 if novelty.is_echo(echo, is_late=one.is_late) else _before(one, reference) / crowd
        for one, crowd, echo in zip(contributions, crowds, heard, strict=True)
    ]
    settled = [
        voice if one.standing.is_established else 0.0
        for voice, one in zip(voices, contributions, strict=True)
    ]
    enough = sum(voice > 0 for voice in settled) >= standing.LEARNERS_COMPARED_MIN
    return settled if enough and reference.is_established else voices


def _shares(
    contributions: Sequence[Contribution], judged: _Judgement, reference: Reference | None
) -> list[float]:
    """What each push adds of the whole: its weight over the sum of weights, where all are trusted.

    Who was not trusted before counts nowhere. Of what was lost just now, the others make up for as
    much as is bounded by `GAIN_MAX`.
    """
    weights = [one.weight for one in contributions]
    if reference is None:
        total = math.fsum(weights)
        return [weight / total if total > 0 else 0.0 for weight in weights]
    weights = _as_crowds(weights, judged.crowds)
    rules = reference.rules
    before = [_before(one, reference) for one in contributions]
    total = math.fsum(weight * was for weight, was in zip(weights, before, strict=True))
    counted = [weight * trust for weight, trust in zip(weights, judged.trusts, strict=True)]
    left = math.fsum(counted)
    if not left > 0 or not total > 0:
        return [0.0] * len(counted)
    gain = min(1.0, GAIN_MAX * left / total)
    shares = [one / left * gain for one in counted]
    if reference.is_established:
        are_new = [not one.standing.is_established for one in contributions]
        shares = _with_few_new(shares, are_new, rules.new_share_max)
    return _capped(shares, rules)


def _as_crowds(weights: Sequence[float], crowds: Sequence[int]) -> list[float]:
    """Pushes that are one share one weight."""
    return [weight / crowd for weight, crowd in zip(weights, crowds, strict=True)]


def _with_few_new(
    shares: Sequence[float], are_new: Sequence[bool], share_max: float
) -> list[float]:
    """New learners together add at most that; others make up for it up to `GAIN_MAX`."""
    new = math.fsum(share for share, is_new in zip(shares, are_new, strict=True) if is_new)
    whole = math.fsum(shares)
    if new <= share_max * whole:
        return list(shares)
    left = whole - new
    gain = min(GAIN_MAX, (1.0 - share_max) * whole / left) if left > 0 else 0.0
    lessened = share_max * whole / new
    return [
        share * (lessened if is_new else gain)
        for share, is_new in zip(shares, are_new, strict=True)
    ]


def _capped(shares: Sequence[float], rules: MergeRules) -> list[float]:
    """No push adds more than a third of the whole where four count, or half where three do.

    What it would have added more is shared out among the others, in proportion.
    """
    counted = sum(share > 0 for share in shares)
    if counted < standing.LEARNERS_COMPARED_MIN:
        return list(shares)
    whole = math.fsum(shares)
    are_many = counted > standing.LEARNERS_COMPARED_MIN
    most = whole * (rules.share_max if are_many else rules.share_of_three_max)
    capped = list(shares)
    # Who is raised over the bound is capped in turn: at most two can be where it is a third.
    for _ in range(standing.LEARNERS_COMPARED_MIN):
        over = [share >= most for share in capped]
        rest = math.fsum(share for share, is_over in zip(capped, over, strict=True) if not is_over)
        if max(capped) <= most or not rest > 0:
            break
        raised = (whole - most * sum(over)) / rest
        capped = [
            most if is_over else share * raised for share, is_over in zip(capped, over, strict=True)
        ]
    return [min(share, most) for share in capped]


def _copy(source: summing.Source, span: TensorSpan, out: F32, workers: Workers) -> None:
    is_streamed = buffers.is_streamed(out)

    def work(part: tuple[int, int]) -> None:
        source.copy(span, part[0], out[slice(*part)], is_streamed)

    workers.map(work, pieces(span.padded))


def _mean(parts: Sequence[_Part], span: TensorSpan, index: int, out: F32, workers: Workers) -> None:
    _sum([(part.source, part.share * part.scales[index]) for part in parts], span, out, workers)


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
        _mean(parts, span, index, out, workers)
        return
    radius = math.fsum(part.share * part.scales[index] * part.span_norms[index] for part in parts)
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
