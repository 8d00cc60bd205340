"""What a hostile learner hands in instead of what it learned."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from protocol.numerics.codecs import F32
from simulator.attack.sight import Sight

Forge = Callable[[Sight, np.random.Generator], F32]
"""From what the attacker sees to the displacement that it hands in, flat f32 of the same length."""

SPIKE_ELEMENTS = 64

CLIP_MARGIN = 0.95
"""Of the clip: medians move between two merges."""

BLENDED = 3
"""Merged displacements that `blended` mixes."""

AGREED = 0x5B0A1
"""Seed of the direction that a side agreed on before; no run has so high a seed."""


def honest(sight: Sight, chance: np.random.Generator) -> F32:
    """What it learned."""
    return sight.honest


def flipped(factor: float) -> Forge:
    """Backwards, and `factor` times as far. Knows only itself."""

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        return sight.honest * np.float32(-factor)

    return forge


def inner_product(factor: float) -> Forge:
    """The mean of its side backwards, `factor` times as far.

    Inner product manipulation: for a small factor the push is short, so that rules which look at
    lengths keep it. Knows its side's honest displacements. Source: Fall of Empires, arXiv
    1903.03936.
    """

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        return _mean(sight.side) * np.float32(-factor)

    return forge


def noise(factor: float) -> Forge:
    """Nowhere, and `factor` times as far. Knows only itself."""

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        drawn = chance.standard_normal(sight.honest.size, dtype=np.float32)
        return _with_length(drawn, factor * _length(sight.honest))

    return forge


def constant(value: float) -> Forge:
    """The same number everywhere. Knows nothing."""

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        return np.full_like(sight.honest, value)

    return forge


def spike(factor: float) -> Forge:
    """Honest, but for a few elements in one place that are `factor` times the whole length."""

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        forged = sight.honest.copy()
        start = int(chance.integers(0, max(1, forged.size - SPIKE_ELEMENTS)))
        length = factor * _length(sight.honest)
        forged[start : start + SPIKE_ELEMENTS] = length / math.sqrt(SPIKE_ELEMENTS)
        return forged

    return forge


def one_tensor(sight: Sight, chance: np.random.Generator) -> F32:
    """Honest, but for the smallest tensor: backwards, and as long as the clip of a push allows.

    Knows that pushes are clipped as a whole, and at which multiple of their median length.
    """
    span = min(sight.fragment.spans, key=lambda one: one.padded)
    place = slice(span.offset, span.offset + span.padded)
    forged = sight.honest.copy()
    forged[place] = 0.0
    limit = CLIP_MARGIN * sight.clip_to_median * _length(sight.honest)
    room = math.sqrt(max(0.0, limit**2 - _length(forged) ** 2))
    forged[place] = _with_length(-sight.honest[place], room)
    return forged


def little_enough(deviations: float) -> Forge:
    """The mean of what it knows, less so many standard deviations, element by element.

    ALIE: every element is within what chance could make of an honest push. Knows its side's honest
    displacements; alone, its own and the last merged ones. Source: A Little Is Enough, arXiv
    1902.06156. The paper's bound on the deviations is at most 0.4 for a quarter of 32; it assumes a
    defence that looks at each element, which none does here, so the number is ours.
    """

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        known = np.stack(sight.known)
        spread = known.std(axis=0, dtype=np.float64)
        values: F32 = (_mean(sight.known) - deviations * spread).astype(np.float32)
        return values

    return forge


def min_max(sight: Sight, chance: np.random.Generator) -> F32:
    """The mean of what it knows, moved backwards until it is as far from one of them as they are
    from each other.

    Knows its side's honest displacements; alone, its own and the last merged ones. Source: the
    min-max attack with inverse unit vector of Manipulating the Byzantine (NDSS 2021).
    """
    mean = _mean(sight.known).astype(np.float64)
    length = float(np.linalg.norm(mean))
    if not length:
        return sight.honest
    apart = [mean - one for one in sight.known]
    widest = max(
        float(np.linalg.norm(one.astype(np.float64) - other))
        for one in sight.known
        for other in sight.known
    )
    # |apart - g back|^2 = widest^2, solved for g, for each of them.
    back = mean / length
    reach = []
    for one in apart:
        along = float(one @ back)
        reach.append(along + math.sqrt(max(0.0, along**2 + widest**2 - float(one @ one))))
    return (mean - min(reach) * back).astype(np.float32)


def same(sight: Sight, chance: np.random.Generator) -> F32:
    """A random direction, the same for the whole side and in every push.

    Pushes that agree with each other look like a consensus, and momentum adds up what repeats.
    Knows the length of the last merged displacement. Sources of both ideas: Mitigating Sybils,
    arXiv 1808.04866; Byzantines Can Also Learn From History, arXiv 2208.09894.
    """
    drawn = _direction(sight)
    return _with_length(drawn, _length(sight.merged[-1] if sight.merged else sight.honest))


def alike(share: float) -> Forge:
    """As `same`, with noise of its own: cosines between the side's pushes are `share` squared."""

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        common = same(sight, chance)
        drawn = chance.standard_normal(common.size, dtype=np.float32)
        own = _with_length(drawn, math.sqrt(1.0 - share**2) * _length(common))
        return np.float32(share) * common + own

    return forge


def copied(sight: Sight, chance: np.random.Generator) -> F32:
    """The last merged displacement once more: credit without work.

    Knows what all learners are sent. Source: Free-riders in Federated Learning, arXiv 1911.12560.
    """
    return sight.merged[-1] if sight.merged else sight.honest


def stale(sight: Sight, chance: np.random.Generator) -> F32:
    """The merged displacement before the last one. Knows that the last one is looked for. Ours."""
    return sight.merged[-2] if len(sight.merged) > 1 else copied(sight, chance)


def blended(sight: Sight, chance: np.random.Generator) -> F32:
    """The last three merged displacements in proportions drawn anew, as long as the last one.

    Knows that single ones are looked for. Ours.
    """
    if not sight.merged:
        return sight.honest
    last = sight.merged[-BLENDED:]
    parts = chance.dirichlet(np.ones(len(last)))
    mixed = sum(np.float32(part) * one for part, one in zip(parts, last, strict=True))
    return _with_length(np.asarray(mixed, np.float32), _length(last[-1]))


def blurred(share: float) -> Forge:
    """The last merged displacement with noise: its cosine to that is `share`, its length the same.

    Knows the rule against echoes and stays below its bound. Ours.
    """

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        clear = copied(sight, chance)
        drawn = chance.standard_normal(clear.size, dtype=np.float32)
        noise = _with_length(drawn, math.sqrt(1.0 - share**2) * _length(clear))
        return np.float32(share) * clear + noise

    return forge


def at_the_edge(share: float) -> Forge:
    """As far off as trust allows, and as long as clipping allows, always to the same wrong place.

    Its cosine to whatever honest pushes point to is `share` of an honest one's; the rest points in
    a random direction that stays. Knows the rules of trust and their numbers. Ours.
    """

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        length = _length(sight.honest)
        drawn = _direction(sight).astype(np.float64)
        if length:
            ahead = sight.honest.astype(np.float64) / length
            drawn -= (drawn @ ahead) * ahead
        limit = CLIP_MARGIN * sight.clip_to_median
        aside = _with_length(drawn.astype(np.float32), math.sqrt(1.0 - share**2) * limit * length)
        return sight.honest * np.float32(share * limit) + aside

    return forge


def turning(forge: Forge, after: int) -> Forge:
    """Honest for so many pushes, and then not."""

    def forge_later(sight: Sight, chance: np.random.Generator) -> F32:
        return sight.honest if sight.pushes < after else forge(sight, chance)

    return forge_later


def drifting(pushes: int) -> Forge:
    """Turns a little with each push, until it points backwards after so many."""

    def forge(sight: Sight, chance: np.random.Generator) -> F32:
        length = _length(sight.honest)
        angle = math.pi * min(1.0, sight.pushes / pushes)
        aside = _with_length(_direction(sight), math.sin(angle) * length)
        return sight.honest * np.float32(math.cos(angle)) + aside

    return forge


def _direction(sight: Sight) -> F32:
    """A random direction, the same for everybody who asks about this fragment."""
    agreed = np.random.default_rng([AGREED, sight.fragment.index])
    return agreed.standard_normal(sight.honest.size, dtype=np.float32)


def _mean(arrays: tuple[F32, ...]) -> F32:
    mean: F32 = np.stack(arrays).mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def _length(values: F32) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def _with_length(values: F32, length: float) -> F32:
    """As long as that, or zero where there is no direction."""
    own = _length(values)
    return values * np.float32(length / own if own else 0.0)
