"""Blocks that are picked from payloads: codes say what their values say, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.fragments import BLOCK
from protocol.numerics import codecs
from protocol.numerics.compiled import kernels
from protocol.numerics.picked import MANY, Picked, pick, pick_values
from protocol.numerics.summing import Source
from tests.support.values import drawn, spread

BLOCKS = 3 * MANY
CHOSEN = np.arange(1, BLOCKS, 2)
PADDING = np.array([0, 63, 64, 127, 5 * BLOCK + 70, 5 * BLOCK + 6, 5 * BLOCK + 6 + 64])
NOWHERE = np.empty(0, np.int64)


def picked_from(codec, values, padding):
    source = Source(codec, codecs.encode(codec, values), values.size, (b"host", 1, 0))
    decoded = codecs.decode(codec, codecs.encode(codec, values), values.size)
    return pick(source, CHOSEN, padding), pick_values(decoded, CHOSEN, padding)


@pytest.mark.parametrize("codec", ["f32", "bf16", "int8", "int4", "int2", "int1"])
@pytest.mark.parametrize("padding", [NOWHERE, PADDING])
def test_codes_say_what_their_values_say(codec, padding):
    picked, values = picked_from(codec, drawn(BLOCKS * BLOCK), padding)
    others, twin = drawn(values.size, 1), Picked.of_values(values)
    assert not values[padding].any()
    np.testing.assert_array_equal(picked.every(1)[0], values)
    np.testing.assert_array_equal(picked.every(5)[0], values.reshape(-1, BLOCK)[::5].reshape(-1))
    assert picked.every(5)[1] == twin.every(5)[1]
    assert (picked.square, picked.length) == (twin.square, twin.length)
    assert picked.product(others) == twin.product(others)
    totals = others.copy(), others.copy()
    picked.add_to(totals[0], 0.3)
    twin.add_to(totals[1], 0.3)
    np.testing.assert_array_equal(*totals)


@pytest.mark.parametrize("make", [drawn, spread])
@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_all_is_as_the_twin_says(codec, make, monkeypatch):
    values, others = make(BLOCKS * BLOCK), make(CHOSEN.size * BLOCK, 2)

    def all_of_it():
        picked, _ = picked_from(codec, values, PADDING)
        total = others.copy()
        picked.add_to(total, -1.7)
        return picked.square, picked.product(others), picked.every(3)[1], total.tobytes()

    compiled = all_of_it()
    monkeypatch.setattr(kernels, "IS_COMPILED", False)
    assert all_of_it() == compiled


@pytest.mark.parametrize("wide", [0, 3, 40])
@pytest.mark.parametrize("blocks", [MANY - 1, MANY, 4 * MANY + 5])
def test_a_product_is_exact_and_rounded_once(blocks, wide):
    """However far apart the sums of blocks are, which have one element each here."""
    generator = np.random.default_rng(blocks)
    sums = generator.standard_normal(blocks) * 2.0 ** generator.integers(-wide, wide + 1, blocks)
    sums = sums.astype(np.float32)
    values, others = np.zeros((2, blocks * BLOCK), np.float32)
    values[::BLOCK], others[::BLOCK] = sums, generator.standard_normal(blocks)
    exact = sums.astype(np.float64) * others[::BLOCK]
    assert Picked.of_values(values).product(others) == math.fsum(exact.tolist())
