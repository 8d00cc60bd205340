"""How long a push and its tensors may be, and norms by tensor in a byte each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fragments import build_layout
from protocol.merge_rules import LENGTH_MAX, RULES, MergeRules
from protocol.numerics import lengths
from protocol.numerics.codecs import encode
from protocol.numerics.lengths import Length, limit_for_work, medians, tensor_scales
from protocol.numerics.merge import Contribution, Reference, merge_fragment
from protocol.project import TensorSpec
from protocol.standing import Standing

GOOD = Standing(0.8, 20, 20)
USUAL = medians([Length(2.0, 4, (1.0, 0.0)), Length(4.0, 16, (3.0, 0.0)), Length(9.0, 9)], 2)


def test_norms_are_compared_by_the_root_of_the_steps():
    assert USUAL.per_root == 1.0
    assert limit_for_work(USUAL, 16, RULES) == 4.0 * LENGTH_MAX
    assert limit_for_work(USUAL, 100, RULES) == 10.0 * LENGTH_MAX


def test_tensors_of_a_fast_learner_may_be_longer_by_the_root_of_its_work():
    assert USUAL.steps == 9
    found = [lengths.work_factor(USUAL, steps, 3.0) for steps in (1, 9, 36, 10**6)]
    assert found == [1.0, 1.0, 2.0, 3.0]
    assert lengths.work_factor(medians([], 0), 36, 3.0) == 1.0
    assert lengths.work_factor(USUAL, 36, 1.0) == 1.0


def test_nothing_is_too_long_where_that_cannot_be_said():
    two = medians([Length(2.0, 4), Length(4.0, 16)], 0)
    assert limit_for_work(two, 4, RULES) == math.inf
    old = medians([Length(2.0)] * 3, 0)
    assert limit_for_work(old, 4, RULES) == math.inf
    assert limit_for_work(USUAL, 0, RULES) == math.inf
    without = MergeRules(length_max=math.inf)
    assert limit_for_work(USUAL, 4, without) == math.inf
    zeros = medians([Length(0.0, 4)] * 3, 0)
    assert limit_for_work(zeros, 4, RULES) == math.inf, "the charter's clip sees to that"


def test_a_tensor_is_scaled_down_to_its_own_limit_and_never_up():
    known = medians([Length(1.0, 1, (1.0, 0.0, 4.0))] * 3, 3)
    assert tensor_scales((6.0, 9.0, 4.0), 0.8, known, 3.0) == (0.5, 0.8, 0.8)
    few = medians([Length(1.0, 1, (1.0, 0.0, 4.0))] * 2, 3)
    assert tensor_scales((6.0, 9.0, 4.0), 0.8, few, 3.0) == (0.8,) * 3


@given(st.lists(st.floats(0.0, 1e30), max_size=40), st.floats(1e-30, 1e30))
def test_a_byte_tells_the_norm_of_a_tensor_to_a_tenth(norms, more):
    whole = math.sqrt(math.fsum(norm * norm for norm in norms)) + more
    codes = lengths.encode(norms, whole)
    assert len(codes) == (len(norms) if len(norms) > 1 else 0)
    for norm, found in zip(norms, lengths.decode(codes, whole), strict=False):
        if norm == 0.0:
            assert found == 0.0
        elif norm > whole * 2.0**-31:
            assert norm <= found * (1 + 1e-12)
            assert found <= 1.1 * norm
        else:
            assert found <= whole * 2.0**-31


def test_a_push_of_nothing_has_no_norms_by_tensor():
    assert lengths.decode(lengths.encode((0.0, 0.0), 0.0), 0.0) == (0.0, 0.0)


# In a merge.


SIZES = (12_800, 128)
"""The second tensor is a hundredth of all."""


def fragment():
    specs = [TensorSpec(f"t{at}", (size,), "rda") for at, size in enumerate(SIZES)]
    return build_layout(specs, "tensor", 1).fragments[0]


def part(values, number, steps=20):
    values = np.asarray(values, np.float32)
    payload = encode("f32", values)
    return Contribution((bytes(32), 1, number), payload, "f32", 1.0, GOOD, steps)


def honest(count, *, seed=1):
    """Pushes of which a tenth is common, with elements of equal size in both tensors."""
    chance = np.random.default_rng(seed)
    common = chance.standard_normal(sum(SIZES))
    return [0.5 * common + chance.standard_normal(sum(SIZES)) for _ in range(count)]


def step_of_the_small_tensor(pushes, rules=RULES, known=()):
    place = fragment()
    reference = Reference(
        np.ones(place.numel, np.float32), 0.0, known, is_established=True, rules=rules
    )
    made = merge_fragment(
        [part(values, at) for at, values in enumerate(pushes)], place, 3.0, reference
    )
    small = place.spans[1]
    return float(np.linalg.norm(made.values[small.offset : small.offset + small.numel])), made


def all_in_the_small_tensor(values):
    """Three times as long as honest, which clipping allows, and all of it in one tensor."""
    forged = np.zeros_like(values)
    small = fragment().spans[1]
    place = slice(small.offset, small.offset + small.numel)
    forged[place] = -values[place] / np.linalg.norm(values[place])
    return forged * 2.9 * np.linalg.norm(values)


def test_one_of_eight_pushes_scales_the_step_of_a_small_tensor_by_little():
    """It was 4.6 times, for clips were of whole pushes and the length is taken tensor by tensor."""
    pushes = honest(8)
    usual, _ = step_of_the_small_tensor(pushes)
    forged = [*pushes[:7], all_in_the_small_tensor(pushes[7])]
    without = MergeRules(length_max=math.inf, tensor_length_max=math.inf)
    assert step_of_the_small_tensor(forged, without)[0] / usual == pytest.approx(4.5, abs=0.4)
    found, made = step_of_the_small_tensor(forged)
    assert found / usual == pytest.approx(1.25, abs=0.05)
    assert made.tensors_clipped == (0,) * 7 + (1,)


def test_honest_pushes_lose_nothing():
    _, made = step_of_the_small_tensor(honest(8))
    assert made.scales == (1.0,) * 8
    assert made.tensors_clipped == (0,) * 8


def test_a_push_alone_is_compared_with_the_tensors_that_the_log_knows():
    pushes = honest(4)
    _, made = step_of_the_small_tensor(pushes[:3])
    known = tuple(
        Length(norm, 20, lengths.decode(codes, norm))
        for norm, codes in zip(made.norms, made.tensors, strict=True)
    )
    usual, _ = step_of_the_small_tensor(pushes[3:], known=known)
    forged = [all_in_the_small_tensor(pushes[3])]
    found, made = step_of_the_small_tensor(forged, known=known)
    assert made.tensors_clipped == (1,)
    assert found < 3.5 * usual


@pytest.mark.parametrize("times", [0.1, 1.0, 10.0])
def test_a_learner_of_another_speed_loses_nothing_by_it(times):
    """Between a walk at random and a straight line, whatever the model makes of its steps."""
    pushes = honest(4)
    place, reference = fragment(), None
    for power in (0.5, 1.0):
        one = pushes[3] * times**power
        parts = [part(values, at) for at, values in enumerate(pushes[:3])]
        parts.append(part(one, 3, steps=round(20 * times)))
        reference = Reference(np.ones(place.numel, np.float32), 0.0, (), is_established=True)
        by_charter = min(1.0, 3.0 / times**power)
        made = merge_fragment(parts, place, 3.0, reference)
        assert made.scales[3] == pytest.approx(by_charter, rel=0.03)


def test_a_long_push_of_as_many_steps_is_scaled_down():
    pushes = honest(4)
    _, made = step_of_the_small_tensor([*pushes[:3], 2.8 * pushes[3]])
    assert made.scales[3] == pytest.approx(LENGTH_MAX / 2.8, rel=0.05)


def test_while_learners_are_new_pushes_may_grow():
    """The learning rate warms up, and the newest known norms are those of shorter pushes."""
    pushes, place = honest(4), fragment()
    known = tuple(Length(0.4 * float(np.linalg.norm(one)), 20) for one in pushes)
    for is_established in (False, True):
        reference = Reference(
            np.ones(place.numel, np.float32), 0.0, known, is_established=is_established
        )
        made = merge_fragment([part(pushes[0], 0)], place, 3.0, reference)
        assert (made.scales[0] < 1.0) == is_established


def test_while_learners_are_new_pushes_of_one_merge_are_compared_with_each_other():
    pushes, place = honest(4), fragment()
    known = tuple(Length(0.4 * float(np.linalg.norm(one)), 20) for one in pushes)
    reference = Reference(np.ones(place.numel, np.float32), 0.0, known)
    parts = [part(values, at) for at, values in enumerate([*pushes[:3], 2.8 * pushes[3]])]
    made = merge_fragment(parts, place, 9.0, reference)
    assert made.scales[:3] == (1.0,) * 3
    assert made.scales[3] == pytest.approx(LENGTH_MAX / 2.8, rel=0.05)


def test_where_all_count_lengths_are_bounded_by_the_charter_alone():
    place, pushes = fragment(), honest(4)
    parts = [part(values, at) for at, values in enumerate([*pushes[:3], 2.8 * pushes[3]])]
    made = merge_fragment(parts, place, 3.0)
    assert made.scales == (1.0,) * 4
    assert made.tensors == ()
