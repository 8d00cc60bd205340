"""Where pushes point: what is compared, and who is one with whom."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import directions
from protocol.numerics.codecs import encode
from protocol.numerics.directions import SAMPLE_BLOCKS, Sample
from protocol.numerics.summing import Source
from protocol.numerics.workers import ALONE
from tests.support.values import drawn


def fragment(*numels):
    """One of tensors of these lengths, padded to whole blocks."""
    spans, offset = [], 0
    for at, numel in enumerate(numels):
        spans.append(TensorSpan(f"t{at}", (numel,), numel, "rda", offset))
        offset += -(-numel // BLOCK) * BLOCK
    return Fragment(0, tuple(spans), offset)


def source(values, codec="f32", at=0):
    flat = np.asarray(values, np.float32)
    return Source(codec, encode(codec, flat), flat.size, (b"host", 1, at))


def values_of(picked):
    return picked.every(1)[0]


CODECS = ["f32", "bf16", "int8", "int4", "int2", "int1"]
LARGE = fragment(300 * BLOCK - 5, 4 * SAMPLE_BLOCKS * BLOCK)


@pytest.mark.parametrize("codec", CODECS)
def test_a_sample_is_of_the_payload_s_values(codec):
    pushed = source(drawn(LARGE.numel), codec)
    whole = np.concatenate([pushed.decoded(span, 0, span.padded) for span in LARGE.spans])
    sample = Sample(LARGE, 7)
    assert sample.elements == SAMPLE_BLOCKS * BLOCK
    np.testing.assert_array_equal(values_of(sample.of(pushed)), sample.of_values(whole))


def test_a_small_fragment_is_compared_whole():
    small = fragment(700, 3 * BLOCK)
    values = drawn(small.numel)
    found = Sample(small, 7).of_values(values)
    values[700 : 6 * BLOCK] = 0
    np.testing.assert_array_equal(found, values)


def test_samples_differ_by_their_seed_and_cover_everything_evenly():
    numbers = np.repeat(np.arange(LARGE.numel // BLOCK, dtype=np.float32), BLOCK)
    first, second = (Sample(LARGE, seed).of_values(numbers)[::BLOCK] for seed in (1, 2))
    assert (np.sort(first) == first).all()
    assert (first != second).mean() > 0.5
    assert np.diff(first).max() < 2 * len(numbers) / BLOCK / SAMPLE_BLOCKS + 1


def test_what_the_padding_holds_is_not_compared():
    padded = fragment(BLOCK + 1)
    values = np.zeros(2 * BLOCK, np.float32)
    values[BLOCK + 1 :] = 9.0
    for codec in CODECS:
        assert not values_of(Sample(padded, 0).of(source(values, codec)))[BLOCK + 1 :].any()


def crowds(*vectors):
    sources = [source(vector, "int4", at) for at, vector in enumerate(vectors)]
    return directions.crowds(sources, Sample(fragment(len(vectors[0])), 0), ALONE)


def test_copies_in_a_minority_count_as_one_whatever_their_length():
    honest = [drawn(64 * BLOCK, seed) for seed in range(5)]
    same = drawn(64 * BLOCK, 9)
    assert crowds(*honest, same, 3 * same) == [1, 1, 1, 1, 1, 2, 2]


def test_nearly_the_same_is_the_same():
    honest = [drawn(64 * BLOCK, seed) for seed in range(5)]
    same, noise = drawn(64 * BLOCK, 9), drawn(64 * BLOCK, 10)
    assert crowds(*honest, same, same + 0.1 * noise)[5:] == [2, 2]
    assert crowds(*honest, same, same + noise)[5:] == [1, 1]


def test_who_points_the_other_way_is_not_alike():
    honest = [drawn(64 * BLOCK, seed) for seed in range(3)]
    assert crowds(*honest, -honest[0]) == [1, 1, 1, 1]


def test_where_most_are_alike_that_is_how_the_fragment_moves():
    same = drawn(64 * BLOCK, 9)
    assert crowds(same, same, same, drawn(64 * BLOCK, 1)) == [1, 1, 1, 1]


def together(count, noise):
    """As many pushes, mostly the same; and each with some noise of its own."""
    common = drawn(64 * BLOCK, 77)
    return [common + noise * drawn(64 * BLOCK, 100 + at) for at in range(count)]


def test_where_all_are_much_alike_that_is_no_crowd():
    """As after the first local steps of a run: some pairs are above what is usually too alike."""
    honest = [*together(5, 0.25), *together(9, 0.6)[5:]]
    against = [-3 * one for one in together(14, 0.3)[9:]]
    assert crowds(*honest, *against)[:9] == [1] * 9


def test_copies_are_one_where_all_are_much_alike_too():
    same = drawn(64 * BLOCK, 9)
    assert crowds(*together(6, 0.4), same, same)[6:] == [2, 2]


def test_nothing_is_alike_to_nothing():
    assert crowds(*[np.zeros(BLOCK, np.float32)] * 4) == [1, 1, 1, 1]


def counted(size, step):
    """Numbers that no library draws."""
    return ((np.arange(size) * step % 2039 - 1019) / 64).astype(np.float32)


@pytest.mark.parametrize(
    ("codec", "others", "momentum"),
    [
        (
            "int4",
            ["0x1.845b2c04c85f1p-2", "0x1.5e5775a8db026p-2", "0x1.07aa5c41b6d98p-2"],
            ["0x1.686c855c84b7fp-1", "0x1.d5d8c2480f185p-2", "0x1.42822ea2ccc6dp-2"],
        ),
        (
            "bf16",
            ["0x1.7e31c31190f79p-2", "0x1.5597c408cb569p-2", "0x1.0671f389e0bb8p-2"],
            ["0x1.69a64a62cdf50p-1", "0x1.c9ca0b5c75648p-2", "0x1.4285ac9cf70a5p-2"],
        ),
    ],
)
def test_cosines_have_the_bits_that_logs_have(codec, others, momentum):
    whole = counted(LARGE.numel, 7919)
    pushed = [
        source(whole + at * counted(LARGE.numel, 31 + 2 * at), codec, at) for at in range(1, 4)
    ]
    voices = [0.5, 0.25, 0.25]
    toward = directions.toward_others(pushed, voices, Sample(LARGE, 5), ALONE)
    found = [one.cosine for one in toward]
    assert [one.hex() for one in found] == others
    found = directions.cosines_to(whole, pushed, Sample(LARGE, 5), ALONE)
    assert [one.hex() for one in found] == momentum
