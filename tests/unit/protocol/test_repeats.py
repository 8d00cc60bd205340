"""What of a push is its learner's own, and how far it repeats itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics.codecs import encode
from protocol.numerics.repeats import KEPT, OWN_BLOCKS, Former, compared, remembered
from protocol.numerics.summing import Source
from protocol.numerics.workers import ALONE

NUMEL = 2 * OWN_BLOCKS * BLOCK
FRAGMENT = Fragment(0, (TensorSpan("t", (NUMEL,), NUMEL, "rda", 0),), NUMEL)
SEED = 7


def drawn(seed):
    return np.random.default_rng(seed).standard_normal(NUMEL).astype(np.float32)


COMMON = drawn(0)


def sources(vectors):
    return [
        Source("int4", encode("int4", np.asarray(one, np.float32)), NUMEL, (bytes([at]) * 32, 1, 1))
        for at, one in enumerate(vectors)
    ]


def both(first, second, momentum=None):
    """How far the pushes of the second merge repeat those of the first."""
    voices = [1.0] * len(first)
    before = compared(sources(first), voices, momentum, FRAGMENT, Former(SEED), ALONE)
    assert [repeat for repeat, _ in before] == [0.0] * len(first)
    parts = {bytes([at]) * 32: part for at, (_, part) in enumerate(before)}
    former = Former(SEED, parts)
    after = compared(sources(second), voices, momentum, FRAGMENT, former, ALONE)
    return [repeat for repeat, _ in after]


def honest(seed):
    """Half of its length is what all have."""
    return COMMON + math.sqrt(3.0) * drawn(seed)


def at_edge(seed, share=0.55):
    own = drawn(99)
    return share * honest(seed) / 2.0 + math.sqrt(1.0 - share**2) * own


def test_honest_pushes_repeat_little_and_one_direction_of_its_own_repeats():
    found = both(
        [honest(1), honest(2), honest(3), at_edge(4)],
        [honest(11), honest(12), honest(13), at_edge(14)],
    )
    assert max(abs(one) for one in found[:3]) < 0.2
    assert 0.65 < found[3] < 0.85


def test_what_stays_the_same_below_the_noise_adds_up():
    """A quarter of its own part, by the square of the length, never changes."""
    wrong, parts, found = drawn(99), {}, []
    for push in range(12):
        vectors = [honest(100 * push + learner) for learner in range(3)]
        vectors.append(COMMON + math.sqrt(0.75) * wrong + 1.5 * drawn(100 * push + 3))
        merge = compared(sources(vectors), [1.0] * 4, None, FRAGMENT, Former(SEED, parts), ALONE)
        found.append([repeat for repeat, _ in merge])
        parts = {
            bytes([at]) * 32: remembered(parts.get(bytes([at]) * 32), part)
            for at, (_, part) in enumerate(merge)
        }
    assert 0.15 < found[1][3] < 0.35
    assert found[-1][3] > 1.4 * found[1][3]
    # Here it counts in full, so that honest pushes lack some of it, always the same.
    assert max(found[-1][:3]) < 0.5 * found[-1][3]
    for part in parts.values():
        assert np.linalg.norm(part) <= 1.0 / (1.0 - KEPT)


def test_what_all_have_is_nobody_s_own():
    found = both([COMMON] * 3, [COMMON] * 3)
    assert found == pytest.approx([0.0] * 3, abs=1e-6)


def test_alone_a_push_is_compared_with_the_momentum():
    (found,) = both([at_edge(1)], [at_edge(2)], momentum=COMMON)
    assert 0.6 < found < 0.85
    (found,) = both([honest(1)], [honest(2)], momentum=COMMON)
    assert abs(found) < 0.1


def test_a_push_of_nothing_repeats_nothing():
    nothing = np.zeros(NUMEL, np.float32)
    assert both([nothing, COMMON, COMMON], [nothing, COMMON, COMMON])[0] == 0.0


def test_a_learner_without_a_voice_is_no_part_of_the_others():
    pushes = sources([honest(1), honest(2), honest(3), at_edge(4)])
    silenced = compared(pushes, [1.0, 1.0, 1.0, 0.0], None, FRAGMENT, Former(SEED), ALONE)
    without = compared(pushes[:3], [1.0] * 3, None, FRAGMENT, Former(SEED), ALONE)
    for (_, one), (_, other) in zip(silenced, without, strict=False):
        np.testing.assert_array_equal(one, other)


@given(st.permutations(range(4)))
def test_the_order_of_arrival_changes_no_bit(order):
    pushes = sources([honest(1), honest(2), honest(3), at_edge(4)])
    usual = compared(pushes, [1.0] * 4, None, FRAGMENT, Former(SEED), ALONE)
    mixed = compared([pushes[at] for at in order], [1.0] * 4, None, FRAGMENT, Former(SEED), ALONE)
    for place, at in enumerate(order):
        np.testing.assert_array_equal(mixed[place][1], usual[at][1])
