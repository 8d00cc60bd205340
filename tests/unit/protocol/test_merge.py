import itertools
import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from protocol.errors import InternalError, MalformedPayload
from protocol.fragments import build_layout
from protocol.numerics.codecs import CHUNK, decode, encode
from protocol.numerics.lengths import Length
from protocol.numerics.merge import (
    Contribution,
    Reference,
    merge_fragment,
    norm,
    push_weight,
    token_weight,
)
from protocol.numerics.repeats import Former
from protocol.project import TensorSpec
from protocol.standing import ESTABLISHED_MIN, Standing
from tests.support import oracle
from tests.support.oracle import wave

NO_CLIP = 1e6
LARGEST = float(np.finfo(np.float32).max)


def one_fragment(*tensors):
    """A single fragment of tensors given as (numel, rule)."""
    specs = [TensorSpec(f"t{i}", (numel,), rule) for i, (numel, rule) in enumerate(tensors)]
    return build_layout(specs, "tensor", 1).fragments[0]


def spans_of(fragment):
    return [(span.offset, span.numel, span.rule) for span in fragment.spans]


def push(values, weight=1.0, *, sequence=0, codec="f32"):
    values = np.asarray(values, dtype=np.float32)
    return Contribution((b"host", 1, sequence), encode(codec, values), codec, weight)


def pushes(vectors, weights=None, codec="f32"):
    weights = weights or [1.0] * len(vectors)
    return [
        push(vector, weight, sequence=i, codec=codec)
        for i, (vector, weight) in enumerate(zip(vectors, weights, strict=True))
    ]


def padded(fragment, *numbers):
    """Values of a fragment that start with `numbers`."""
    out = np.zeros(fragment.numel, dtype=np.float32)
    out[: len(numbers)] = numbers
    return out


def lengths_of(*norms):
    return tuple(Length(one) for one in norms)


def random_pushes(fragment, count, seed=0):
    generator = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        values = np.zeros(fragment.numel, dtype=np.float32)
        for span in fragment.spans:
            here = slice(span.offset, span.offset + span.numel)
            values[here] = generator.standard_normal(span.numel) * generator.uniform(0.1, 10)
        out.append(values)
    return out


RDA = one_fragment((128, "rda"))
MEAN = one_fragment((128, "mean"))
MIXED = one_fragment((300, "rda"), (77, "mean"), (1, "rda"), (1000, "rda"), (129, "mean"))


@pytest.mark.parametrize(
    ("tokens", "steps", "weight"),
    [(8, 2, 32.0), (100, 1, 10_000.0), (0, 5, 0.0), (5, 0, 0.0), (0, 0, 0.0), (3, 2, 4.5)],
)
def test_a_push_weighs_its_tokens_times_tokens_per_step(tokens, steps, weight):
    assert token_weight(tokens, steps) == weight


def test_a_push_may_also_weigh_its_tokens_or_as_much_as_any():
    assert [push_weight("tokens", 512, steps) for steps in (0, 1, 2)] == [0.0, 512.0, 512.0]
    assert [push_weight("equal", tokens, 4) for tokens in (0, 1, 512)] == [0.0, 1.0, 1.0]
    assert push_weight("quality", 512, 4) == token_weight(512, 4)


def test_the_weight_of_a_very_long_run_is_still_finite():
    assert token_weight(2**62, 1) == 2.0**124


def test_the_norm_is_the_correctly_rounded_one_within_an_ulp():
    values = wave(4096)
    exact = sum(Fraction(float(v)) ** 2 for v in values)
    assert norm(values) == pytest.approx(math.sqrt(exact), rel=2e-16)


def test_the_norm_has_the_same_bits_on_every_machine():
    assert norm(wave(5 * 128)).hex() == "0x1.d2b4d460c1d08p+3"
    assert norm(wave(2 * CHUNK + 128)).hex() == "0x1.27acb6b33bc32p+8"


def test_the_norm_of_blocks_does_not_depend_on_their_order():
    blocks = wave(64 * 128).reshape(64, 128)
    assert norm(blocks[::-1].reshape(-1)) == norm(blocks.reshape(-1))


def test_norms_beyond_the_range_of_float32_are_finite():
    values = np.full(128, LARGEST, dtype=np.float32)
    assert norm(values) == pytest.approx(LARGEST * math.sqrt(128))
    assert norm(np.full(128, 2.0**-126, dtype=np.float32)) == 2.0**-126 * math.sqrt(128)


def test_orthogonal_pushes_keep_their_length():
    result = merge_fragment(pushes([padded(RDA, 3, 0), padded(RDA, 0, 3)]), RDA, NO_CLIP)
    assert result.values[:2] == pytest.approx([3 / math.sqrt(2)] * 2)
    assert norm(result.values) == pytest.approx(3.0)


def test_a_mean_tensor_is_the_plain_weighted_mean():
    contributions = pushes([padded(MEAN, 3, 0), padded(MEAN, 0, 4)], [1.0, 3.0])
    assert merge_fragment(contributions, MEAN, NO_CLIP).values[:3].tolist() == [0.75, 3.0, 0.0]


def test_weights_pull_both_the_length_and_the_direction():
    contributions = pushes([padded(RDA, 1, 0), padded(RDA, 0, 5)], [3.0, 1.0])
    merged = merge_fragment(contributions, RDA, NO_CLIP).values
    # Length (3 * 1 + 1 * 5) / 4 = 2, direction (3, 1) / sqrt(10).
    assert merged[:2] == pytest.approx([6 / math.sqrt(10), 2 / math.sqrt(10)])


@pytest.mark.parametrize("codec", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_merge_agrees_with_the_formulas(codec, count):
    vectors = random_pushes(MIXED, count, seed=count)
    weights = [float(1 + (5 * i) % 7) for i in range(count)]
    contributions = pushes(vectors, weights, codec)
    decoded = [decode(codec, c.payload, MIXED.numel) for c in contributions]
    result = merge_fragment(contributions, MIXED, 1.2)
    expected = oracle.merge(decoded, weights, spans_of(MIXED), 1.2)
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-6)
    assert result.scales == pytest.approx(oracle.clip_scales(decoded, weights, 1.2))
    assert result.norms == pytest.approx([float(np.linalg.norm(d)) for d in decoded])


def test_tensors_longer_than_a_chunk_agree_with_the_formulas():
    fragment = one_fragment((CHUNK + 1000, "rda"), (CHUNK + 5, "mean"))
    vectors = random_pushes(fragment, 3)
    result = merge_fragment(pushes(vectors, [1.0, 2.0, 3.0]), fragment, NO_CLIP)
    expected = oracle.merge(vectors, [1.0, 2.0, 3.0], spans_of(fragment), NO_CLIP)
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-6)


def test_each_tensor_is_merged_on_its_own():
    fragment = one_fragment((128, "rda"), (128, "rda"))
    first, second = np.zeros(256, np.float32), np.zeros(256, np.float32)
    first[0], second[1], first[128], second[128] = 1.0, 1.0, 10.0, 20.0
    merged = merge_fragment(pushes([first, second]), fragment, NO_CLIP).values
    assert norm(merged[:128]) == pytest.approx(1.0)
    assert merged[128] == pytest.approx(15.0)


def test_the_order_of_arrival_changes_no_bit():
    contributions = pushes(random_pushes(MIXED, 4), [1.0, 2.5, 0.1, 7.0], "int4")
    reference = merge_fragment(contributions, MIXED, 1.1)
    for order in itertools.permutations(range(4)):
        result = merge_fragment([contributions[i] for i in order], MIXED, 1.1)
        assert result.values.tobytes() == reference.values.tobytes()
        assert result.norms == tuple(reference.norms[i] for i in order)
        assert result.scales == tuple(reference.scales[i] for i in order)


def test_pushes_are_summed_in_the_order_of_their_ids():
    # In float64 only (large - large) + 1 keeps the 1; any other order loses it.
    large = 2.0**80
    contributions = pushes([padded(MEAN, n) for n in (large, -large, 1)], [1.0, 1.0, 2.0])
    for order in itertools.permutations(contributions):
        assert merge_fragment(order, MEAN, NO_CLIP).values[0] == 0.5


def test_no_contributions_merge_to_zeros():
    result = merge_fragment([], MIXED, 2.0)
    assert result.values.tobytes() == bytes(4 * MIXED.numel)
    assert (result.norms, result.scales) == ((), ())


def test_contributions_without_weight_merge_to_zeros_and_report_their_norms():
    result = merge_fragment(pushes([padded(RDA, 3, 4)] * 3, [0.0] * 3), RDA, 1.0)
    assert not result.values.any()
    assert result.norms == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("codec", ["f32", "bf16", "int8", "int4"])
def test_the_only_push_with_weight_comes_out_bit_for_bit(codec):
    only, other = random_pushes(MIXED, 2)
    contributions = pushes([other, only], [0.0, 0.3], codec)
    result = merge_fragment(contributions, MIXED, 1.0)
    alone = decode(codec, contributions[1].payload, MIXED.numel)
    assert result.values.tobytes() == alone.tobytes()
    assert result.scales == (1.0, 1.0)


def test_a_zero_push_shortens_the_result_and_does_not_turn_it():
    contributions = pushes([padded(RDA, 3, 4), padded(RDA)], [1.0, 1.0])
    assert merge_fragment(contributions, RDA, NO_CLIP).values[:2] == pytest.approx([1.5, 2.0])


def test_zero_pushes_alone_merge_to_zeros():
    assert not merge_fragment(pushes([padded(RDA)] * 3), RDA, 1.0).values.any()


def test_directions_that_cancel_fall_back_to_the_weighted_mean():
    contributions = pushes([padded(RDA, 1, -2), padded(RDA, -3, 6)], [1.0, 1.0])
    assert merge_fragment(contributions, RDA, NO_CLIP).values[:2].tolist() == [-1.0, 2.0]


def test_cancelling_is_judged_against_the_weight_that_points_anywhere():
    vectors = [padded(RDA, 2, 0), padded(RDA, 0, 2), padded(RDA)]
    merged = merge_fragment(pushes(vectors, [1e-14, 1e-14, 1.0]), RDA, NO_CLIP).values
    # The length is the weighted mean norm, 4e-14; without the rule it would be the plain mean's.
    assert norm(merged) == pytest.approx(4e-14, rel=1e-6, abs=0)


def test_a_direction_whose_weight_is_next_to_nothing_falls_back_too():
    """Its share, and what of it is noise, are both rounded to 0."""
    fragment = one_fragment((128, "rda"))
    vectors = [padded(fragment), np.ones(128, dtype=np.float32)]
    merged = merge_fragment(pushes(vectors, [1.0, 5e-324]), fragment, NO_CLIP)
    assert not merged.values.any()


def test_nearly_opposite_directions_still_have_a_direction():
    merged = merge_fragment(
        pushes([padded(RDA, 1, 1e-4), padded(RDA, -1, 1e-4)]), RDA, NO_CLIP
    ).values
    assert merged[:2] == pytest.approx([0.0, 1.0], abs=1e-3)


def test_of_three_pushes_the_one_beyond_the_limit_is_scaled_down_to_it():
    vectors = [padded(MEAN, 1), padded(MEAN, 2), padded(MEAN, 16)]
    result = merge_fragment(pushes(vectors), MEAN, 2.0)
    assert result.norms == (1.0, 2.0, 16.0)
    assert result.scales == (1.0, 1.0, 0.25)
    assert result.values[0] == pytest.approx((1 + 2 + 4) / 3)


def test_the_median_of_four_is_halfway_between_the_middle_two():
    vectors = [padded(RDA, n) for n in (1, 2, 4, 12)]
    assert merge_fragment(pushes(vectors), RDA, 2.0).scales == (1.0, 1.0, 1.0, 0.5)


def test_two_pushes_with_weight_are_never_clipped():
    vectors = [padded(RDA, 1), padded(RDA, 1000), padded(RDA, 1)]
    assert merge_fragment(pushes(vectors, [1.0, 1.0, 0.0]), RDA, 1.0).scales == (1.0, 1.0, 1.0)


def test_a_push_without_weight_does_not_move_the_median():
    vectors = [padded(RDA, n) for n in (1, 2, 4, 1000)]
    assert merge_fragment(pushes(vectors, [1.0, 1.0, 1.0, 0.0]), RDA, 1.0).scales == (1, 1, 0.5, 1)


def test_where_most_pushes_are_zero_the_limit_is_zero():
    result = merge_fragment(pushes([padded(RDA), padded(RDA), padded(RDA, 5)]), RDA, 10.0)
    assert result.scales == (1.0, 1.0, 0.0)
    assert not result.values.any()


def test_what_a_payload_hides_in_the_padding_counts_nowhere():
    fragment = one_fragment((100, "rda"), (100, "mean"))
    clean = random_pushes(fragment, 3)
    dirty = [vector.copy() for vector in clean]
    for vector in dirty:
        vector[100:128] = 1e6
        vector[228:] = -1e6
    for count in (1, 3):
        honest = merge_fragment(pushes(clean[:count]), fragment, 1.0)
        hiding = merge_fragment(pushes(dirty[:count]), fragment, 1.0)
        assert hiding.values.tobytes() == honest.values.tobytes()
        assert (hiding.norms, hiding.scales) == (honest.norms, honest.scales)


def test_elements_that_would_leave_float32_become_the_largest_float32():
    even = np.full(128, LARGEST, dtype=np.float32)
    spike = padded(RDA, LARGEST)
    merged = merge_fragment(pushes([even, spike], [1.0, 100.0]), RDA, NO_CLIP).values
    assert merged[0] == np.float32(LARGEST)
    assert np.isfinite(merged).all()


def test_the_mean_of_the_largest_numbers_is_the_largest_number():
    vectors = [np.full(128, LARGEST, dtype=np.float32)] * 7
    merged = merge_fragment(pushes(vectors, [0.1 * i for i in range(1, 8)]), MEAN, NO_CLIP).values
    assert set(merged.tolist()) == {LARGEST}


def test_subnormal_results_become_zero():
    merged = merge_fragment(pushes([padded(MEAN, 2.0**-126), padded(MEAN)]), MEAN, NO_CLIP).values
    assert not merged.any()


def test_one_push_cannot_be_merged_twice():
    with pytest.raises(InternalError, match="twice"):
        merge_fragment([push(padded(RDA, 1)), push(padded(RDA, 2))], RDA, 1.0)


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_a_weight_that_is_negative_or_not_finite_is_our_bug(weight):
    with pytest.raises(InternalError):
        merge_fragment([push(padded(RDA, 1), weight)], RDA, 1.0)


def test_a_payload_of_another_fragment_is_malformed():
    with pytest.raises(MalformedPayload):
        merge_fragment([push(padded(RDA, 1))], MIXED, 1.0)


def test_memory_does_not_grow_with_the_number_of_pushes():
    fragment = one_fragment((2 * CHUNK, "rda"), (CHUNK, "mean"))
    values = random_pushes(fragment, 1)[0]
    peaks = []
    for count in (2, 16):
        contributions = pushes([values] * count, codec="int4")
        tracemalloc.start()
        merge_fragment(contributions, fragment, 2.0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


# Trust.


def around(fragment, count, seed=3):
    """Displacements that mostly agree, and the direction in which they agree."""
    agreed, *others = random_pushes(fragment, count + 1, seed)
    agreed /= np.linalg.norm(agreed)
    return agreed, [agreed + 0.5 * one / np.linalg.norm(one) for one in others]


def known(vectors, directions, codec="f32"):
    """Contributions of learners that were judged often."""
    return [
        Contribution((b"host", 1, at), encode(codec, values), codec, 1.0, Standing(direction, 9))
        for at, (values, direction) in enumerate(
            zip(np.asarray(vectors, dtype=np.float32), directions, strict=True)
        )
    ]


@pytest.mark.parametrize("codec", ["f32", "int4"])
@pytest.mark.parametrize("rule", ["rda", "mean"])
def test_who_pointed_backwards_before_does_not_count(rule, codec):
    fragment = one_fragment((700, rule))
    momentum, honest = around(fragment, 3)
    found = known([*honest, -10 * honest[0]], [0.8, 0.8, 0.8, -0.8], codec)
    merged = merge_fragment(found, fragment, 3.0, Reference(momentum, 0.8, ()))
    assert merged.trusts == (1.0, 1.0, 1.0, 0.0)
    assert merged.cosines[3] < -0.5 < 0.5 < min(merged.cosines[:3])
    alone = merge_fragment(found[:3], fragment, 3.0, Reference(momentum, 0.8, ()))
    np.testing.assert_array_equal(merged.values, alone.values)


def test_who_repeats_itself_does_not_count_though_it_points_where_others_do():
    fragment = one_fragment((700, "rda"))
    momentum, honest = around(fragment, 4)
    found = known(honest, [0.8] * 4)
    found[3] = replace(found[3], standing=Standing(0.8, 9, repeats=0.9, compared=9))
    merged = merge_fragment(found, fragment, 3.0, Reference(momentum, 0.8, (), repeats=0.1))
    assert merged.trusts == (1.0, 1.0, 1.0, 0.0)
    assert merged.shares[3] == 0.0
    assert len(merged.own_parts) == 4
    unknown = merge_fragment(found, fragment, 3.0, Reference(momentum, 0.8, ()))
    assert unknown.trusts == (1.0,) * 4


def test_how_far_a_push_repeats_itself_says_nothing_of_its_own_merge():
    fragment = one_fragment((700, "rda"))
    momentum, honest = around(fragment, 4)
    found = known(honest, [0.8] * 4)
    usual = Reference(momentum, 0.8, (), repeats=0.1)
    first = merge_fragment(found, fragment, 3.0, usual)
    learners = {one.key[0] for one in found}
    assert len(learners) == 1
    former = Former(0, dict.fromkeys(learners, first.own_parts[3]))
    again = merge_fragment(found, fragment, 3.0, replace(usual, former=former))
    assert first.repeats == (0.0,) * 4
    assert again.repeats[3] > 0.3
    assert (again.trusts, again.shares) == (first.trusts, first.shares)
    np.testing.assert_array_equal(again.values, first.values)


def test_of_few_steps_a_push_may_point_less_far():
    fragment = one_fragment((7000, "rda"))
    momentum, honest = around(fragment, 4)
    noise = random_pushes(fragment, 1, 77)[0]
    short = 0.1 * momentum + noise / np.linalg.norm(noise)
    found = known([*honest[:3], short], [0.8, 0.8, 0.8, 0.1])
    told = [replace(one, steps=8) for one in found[:3]] + [replace(found[3], steps=1)]
    told[3] = replace(told[3], standing=Standing(0.1 / 8**0.5, 9, expected=1 / 8))
    alike = merge_fragment(found, fragment, 3.0, Reference(momentum, 0.8, ()))
    aware = merge_fragment(told, fragment, 3.0, Reference(momentum, 0.8, ()))
    assert aware.expected == (1.0, 1.0, 1.0, 8**-0.5)
    assert alike.trusts[3] == 0.0
    assert aware.trusts[3] > 0.5


def test_a_newcomer_that_points_backwards_does_not_count_in_its_first_merge():
    fragment = one_fragment((700, "rda"))
    momentum, honest = around(fragment, 3)
    liar = push(-honest[0], sequence=9)
    found = [*known(honest, [0.8] * 3), liar]
    merged = merge_fragment(found, fragment, 3.0, Reference(momentum, 0.8, ()))
    assert merged.trusts[3] == 0.0
    alone = merge_fragment(found[:3], fragment, 3.0, Reference(momentum, 0.8, ()))
    # Three of four are left: less than half as much again makes up for the fourth.
    np.testing.assert_allclose(merged.values, alone.values, rtol=1e-6)


def test_weight_that_is_lost_to_a_new_judgement_is_not_all_handed_to_the_rest():
    fragment = one_fragment((700, "mean"))
    momentum, (one,) = around(fragment, 1)
    found = [push(one, sequence=0), push(-one, sequence=1)]
    merged = merge_fragment(found, fragment, 1e6, Reference(momentum, 0.8, ()))
    assert merged.trusts == (1.0, 0.0)
    np.testing.assert_allclose(merged.values, one * 1.5 / 2, rtol=1e-6)


def test_a_push_alone_that_does_not_count_moves_nothing():
    fragment = one_fragment((700, "rda"), (300, "mean"))
    momentum, honest = around(fragment, 1)
    merged = merge_fragment(
        known([-honest[0]], [-0.5]), fragment, 3.0, Reference(momentum, 0.5, ())
    )
    assert not merged.values.any()


def test_a_push_alone_is_clipped_against_what_others_handed_in_before():
    fragment = one_fragment((700, "rda"))
    momentum, (one,) = around(fragment, 1)
    length = norm(one.astype(np.float32))
    others = Reference(momentum, 0.0, lengths_of(length, length, 50.0 * length))
    long = known([10 * one], [0.8])
    merged = merge_fragment(long, fragment, 3.0, others)
    # The median of 1, 1, 10 and 50 lengths is 5.5; three times that is more than 10.
    assert merged.scales == (1.0,)
    assert merge_fragment([push(10 * one)], fragment, 3.0, others).scales[0] == pytest.approx(0.55)
    quiet = Reference(momentum, 0.0, lengths_of(length, length, length))
    assert merge_fragment(long, fragment, 3.0, quiet).scales[0] == pytest.approx(0.3)
    two = Reference(momentum, 0.0, lengths_of(length))
    assert merge_fragment(long, fragment, 3.0, two).scales == (1.0,)


def test_without_a_momentum_nothing_is_judged():
    fragment = one_fragment((700, "rda"))
    _, honest = around(fragment, 3)
    still = Reference(padded(fragment), 0.0, ())
    merged = merge_fragment(known(honest[:2], [0.5] * 2), fragment, 1e6, still)
    assert merged.cosines == (0.0,) * 2
    plain = merge_fragment(known(honest[:2], [0.5] * 2), fragment, 1e6)
    np.testing.assert_array_equal(merged.values, plain.values)


def test_a_cosine_is_that_of_the_decoded_values():
    fragment = one_fragment((700, "rda"), (130, "mean"))
    first, second = random_pushes(fragment, 2)
    found = merge_fragment([push(first)], fragment, 1e6, Reference(second, 0.0, ()))
    wide, other = first.astype(np.float64), second.astype(np.float64)
    expected = wide @ other / np.linalg.norm(wide) / np.linalg.norm(other)
    assert found.cosines[0] == pytest.approx(expected, rel=1e-12)


def test_among_three_a_cosine_is_to_the_unit_vectors_of_the_others():
    fragment = one_fragment((700, "rda"), (130, "mean"))
    vectors = [one.astype(np.float64) for one in random_pushes(fragment, 3)]
    found = merge_fragment(
        pushes(vectors, weights=[1.0, 9.0, 100.0]), fragment, 1e6, Reference(vectors[0], 0.0, ())
    )
    units = [one / np.linalg.norm(one) for one in vectors]
    for at, unit in enumerate(units):
        others = sum(units) - unit
        expected = unit @ others / np.linalg.norm(others)
        assert found.cosines[at] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_who_repeats_the_same_number_everywhere_is_not_followed():
    """Its pushes made most of the momentum, and agree with nobody else's."""
    fragment = one_fragment((700, "rda"))
    _, honest = around(fragment, 3)
    same = np.full(fragment.numel, 1.0, np.float32)
    found = known([*honest, same], [0.5, 0.5, 0.5, 0.0])
    merged = merge_fragment(found, fragment, 3.0, Reference(same, 0.5, ()))
    assert merged.trusts == (1.0, 1.0, 1.0, 0.0)


# Shares.


def shared(weights, good, *, established=True, vectors=None):
    """Shares of pushes that mostly agree, of learners with so many good ones."""
    fragment = one_fragment((700, "rda"))
    momentum, honest = around(fragment, len(weights))
    found = [
        Contribution(
            (b"host", 1, at), encode("f32", values), "f32", weight, Standing(0.8, 20, often)
        )
        for at, (values, weight, often) in enumerate(
            zip(np.asarray(vectors or honest, np.float32), weights, good, strict=True)
        )
    ]
    reference = Reference(momentum, 0.8, (), is_established=established)
    return merge_fragment(found, fragment, 1e6, reference).shares


LONG = ESTABLISHED_MIN


def test_no_push_is_more_than_a_third_of_four():
    assert shared([97, 1, 1, 1], [LONG] * 4) == pytest.approx((3 / 9, 2 / 9, 2 / 9, 2 / 9))
    assert shared([10, 10, 1, 1], [LONG] * 4) == pytest.approx((1 / 3, 1 / 3, 1 / 6, 1 / 6))
    assert shared([60, 25, 10, 5], [LONG] * 4) == pytest.approx((1 / 3, 1 / 3, 2 / 9, 1 / 9))


def test_no_push_is_more_than_half_of_three():
    assert shared([98, 1, 1], [LONG] * 3) == pytest.approx((0.5, 0.25, 0.25))


def test_of_two_pushes_each_weighs_what_it_weighs():
    assert shared([9, 1], [LONG] * 2) == pytest.approx((0.9, 0.1))


def test_new_learners_together_add_little_beside_established_ones():
    found = shared([1, 1, 1, 1, 1], [LONG, LONG, LONG, LONG - 1, 0])
    assert found == pytest.approx((0.3, 0.3, 0.3, 0.05, 0.05))
    assert shared([1, 1, 1, 1], [LONG, 0, 0, 0], established=False) == pytest.approx((0.25,) * 4)


def test_a_new_learner_alone_moves_little_where_established_ones_are_here():
    assert shared([1], [0]) == pytest.approx((0.1,))
    assert shared([1, 9], [LONG, 0]) == pytest.approx((0.15, 0.1))


def test_pushes_that_are_alike_share_one_weight():
    fragment = one_fragment((700, "rda"))
    _, honest = around(fragment, 5)
    found = shared([1] * 7, [LONG] * 7, vectors=[*honest, honest[0], honest[0]])
    assert found[0] == found[5] == found[6] == pytest.approx(1 / 15)
    assert found[1] == pytest.approx(1 / 5)


def test_new_learners_do_not_say_where_to_go():
    """Three of them agree, and are compared with the three that are established."""
    fragment = one_fragment((700, "rda"))
    momentum, honest = around(fragment, 3)
    liars = [push(-one, sequence=20 + at) for at, one in enumerate(honest)]
    settled = [
        Contribution((b"host", 1, at), encode("f32", one), "f32", 1.0, Standing(0.8, LONG, LONG))
        for at, one in enumerate(np.asarray(honest, np.float32))
    ]
    reference = Reference(momentum, 0.8, (), is_established=True)
    merged = merge_fragment([*settled, *liars], fragment, 3.0, reference)
    assert merged.trusts == (1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
