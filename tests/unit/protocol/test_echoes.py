"""How much of a push was merged lately, against the same in plain linear algebra."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.merge_rules import RULES
from protocol.novelty import ECHO_MAX, Novelty
from protocol.numerics import directions, echoes
from protocol.numerics.codecs import encode
from protocol.numerics.directions import Sample
from protocol.numerics.echoes import Lately
from protocol.numerics.merge import Contribution, Reference, merge_fragment
from protocol.numerics.summing import Source
from protocol.numerics.workers import ALONE
from protocol.standing import Standing

SIZE = 64 * BLOCK
FRAGMENT = Fragment(0, (TensorSpan("t", (SIZE,), SIZE, "rda", 0),), SIZE)


def drawn(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, SIZE)).astype(np.float32)


def sources(vectors, codec="f32"):
    return [
        Source(codec, encode(codec, values), SIZE, (b"host", 1, at))
        for at, values in enumerate(vectors)
    ]


def rest_of(vectors, merged):
    """Each at unit length, less its projection on the span of what was merged."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    basis = np.linalg.qr(np.stack(merged).astype(np.float64).T)[0]
    return units - units @ basis @ basis.T, units @ basis


def compared(pushed, merged, voices=None):
    sample, voices = Sample(FRAGMENT, 0), voices or [1.0] * len(pushed)
    found = sources(pushed)
    along = echoes.echoes(found, Lately.of(list(merged)), sample, ALONE)
    toward = directions.toward_others(found, voices, sample, ALONE)
    return [echoes.share(one) for one in along], echoes.novelties(along, voices, toward)


@pytest.mark.parametrize("voices", [[1.0] * 4, [1.0, 0.5, 0.0, 0.25]])
def test_shares_and_cosines_are_those_of_a_projection(voices):
    merged, common = drawn(4, 1), drawn(1, 2)
    mix = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 2, 1], [0, 1, 0, -1]], np.float32)
    pushed = mix @ merged + common + drawn(4, 3)
    shares, novelties = compared(pushed, merged, voices)
    rest, inside = rest_of(pushed.astype(np.float64), merged)
    np.testing.assert_allclose(shares, np.linalg.norm(inside, axis=1), atol=1e-5)
    weighted = rest * np.array(voices)[:, None]
    for at, novelty in enumerate(novelties):
        others = weighted.sum(axis=0) - weighted[at]
        lengths = np.linalg.norm(rest[at]) * np.linalg.norm(others)
        assert novelty == pytest.approx(rest[at] @ others / lengths, abs=1e-5)


def test_a_copy_is_all_echo_and_nothing_new():
    merged, honest = drawn(3, 1), drawn(3, 2) + drawn(1, 3)
    for copied in (merged[0], -3 * merged[2], merged[0] + 2 * merged[1]):
        shares, novelties = compared([*honest, copied], merged)
        assert shares[3] == pytest.approx(1.0)
        assert novelties[3] == 0.0
        assert max(shares[:3]) < 0.5 < min(novelties[:3]) + 0.25


def test_noise_beside_a_copy_agrees_with_nothing():
    merged, honest = drawn(2, 1), drawn(3, 2) + drawn(1, 3)
    _, novelties = compared([*honest, merged[1] + drawn(1, 9)[0]], merged)
    assert abs(novelties[3]) < 0.05


def test_what_adds_nothing_to_the_span_is_left_out():
    merged = drawn(2, 1)
    assert len(Lately.of([*merged, merged[0] + merged[1], 0 * merged[0]]).rows) == 2
    assert Lately.of([]).rows == ()


def test_nothing_is_said_of_a_zero_push_or_where_nothing_of_the_others_is_left():
    merged, honest = drawn(2, 1), drawn(3, 2)
    shares, novelties = compared([*honest, 0 * honest[0]], merged)
    assert (shares[3], novelties[3]) == (0.0, None)
    _, novelties = compared([honest[0], merged[0], merged[0], merged[1]], merged)
    assert novelties[0] is None


def told(vectors, *, codec="int4", late=(), novelty=None):
    known = novelty if novelty is not None else Novelty(0.3, 9)
    return [
        Contribution(
            (b"host", 1, at),
            encode(codec, values),
            codec,
            1.0,
            Standing(0.5, 9),
            8,
            known,
            at in late,
        )
        for at, values in enumerate(np.asarray(vectors, np.float32))
    ]


def against(merged, **changes):
    lately = tuple(("int4", encode("int4", values)) for values in merged)
    said = {"typical": 0.5, "known": (), "lately": lately, "typical_novelty": 0.3}
    return Reference(merged[-1], **{**said, **changes})


def test_in_a_merge_a_copy_does_not_count_and_the_others_do():
    merged, honest = drawn(4, 1), drawn(3, 2) + drawn(1, 3)
    made = merge_fragment(told([*honest, merged[1]]), FRAGMENT, 3.0, against(merged))
    assert made.trusts == (1.0, 1.0, 1.0, 0.0)
    assert made.echoes[3] > ECHO_MAX
    assert made.novelties[3] == pytest.approx(0.0, abs=0.05)
    alone = merge_fragment(told(honest), FRAGMENT, 3.0, against(merged))
    np.testing.assert_allclose(made.values, alone.values, rtol=1e-5, atol=1e-6)


def test_a_copy_alone_moves_nothing():
    merged = drawn(4, 1)
    made = merge_fragment(told([merged[3]]), FRAGMENT, 3.0, against(merged))
    assert (made.trusts, made.novelties) == ((0.0,), (None,))
    assert not made.values.any()


def test_a_copy_with_noise_that_points_where_all_point_does_not_count_either():
    merged, common = drawn(4, 1), drawn(1, 3)
    merged = merged + 2 * common
    honest = merged[3] + drawn(3, 2) + 2 * drawn(1, 4)
    blurred = merged[3] + np.linalg.norm(merged[3]) / 90 * drawn(1, 9)[0]
    reference = against(merged)
    newcomer = Novelty()
    made = merge_fragment(told([*honest, blurred], novelty=newcomer), FRAGMENT, 3.0, reference)
    assert made.trusts == (1.0, 1.0, 1.0, 0.0)
    assert made.cosines[3] > 0.3
    assert made.echoes[3] < ECHO_MAX


def test_of_a_late_push_only_the_echo_is_looked_at():
    merged, honest = drawn(4, 1), drawn(3, 2) + drawn(1, 3)
    blurred = merged[3] + drawn(1, 9)[0] + honest[0]
    made = merge_fragment(told([*honest, blurred], late=(3,)), FRAGMENT, 3.0, against(merged))
    assert made.novelties[3] is None
    assert made.echoes[3] > 0
    assert made.trusts[3] == 1.0


@pytest.mark.parametrize(("base", "is_told"), [(0, False), (1, True)])
def test_most_of_which_lags_from_the_beginning_says_nothing_of_what_is_new(base, is_told):
    """They point elsewhere than what began from the first merge, be it as honest as they are."""
    merged, others, ahead = drawn(1, 1), drawn(3, 2) + drawn(1, 3), drawn(1, 5)[0]
    parts = [
        dataclasses.replace(one, base_version=base if one.is_late else 1)
        for one in told([*others, ahead], late=(0, 1, 2))
    ]
    made = merge_fragment(parts, FRAGMENT, 3.0, against(merged))
    assert (made.novelties[3] is not None) == is_told
    assert (made.trusts[3] == 1.0) != is_told


def test_order_and_other_seeds_of_a_small_fragment_change_no_bit():
    merged, honest = drawn(4, 1), drawn(4, 2) + drawn(1, 3)
    parts = told(honest)
    first = merge_fragment(parts, FRAGMENT, 3.0, against(merged, seed=1))
    second = merge_fragment(parts[::-1], FRAGMENT, 3.0, against(merged, seed=2))
    assert first.echoes == second.echoes[::-1]
    assert first.novelties == second.novelties[::-1]


def test_where_nothing_was_merged_there_are_no_echoes():
    merged, honest = drawn(1, 1), drawn(3, 2) + drawn(1, 3)
    made = merge_fragment(told(honest), FRAGMENT, 3.0, against(merged, lately=()))
    assert (made.echoes, made.novelties) == ((), ())
    assert RULES.merges_compared > 0
