"""Compiled loops give the bits of their twins, whatever the values."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import codecs, outer, summing
from protocol.numerics.codecs import NonFinite
from protocol.numerics.compiled import kernels
from protocol.numerics.merge import Contribution, merge_fragment

pytestmark = pytest.mark.skipif(not kernels.IS_COMPILED, reason="numba is not installed")

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
EDGES = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-140), 2.0**-126, 3.0e38, -3.0e38, 2.0**-100, 7.5, 0.5]
)


UNHURRIED = settings(deadline=None)
"""Whoever calls a kernel first waits for its compilation."""

SMALL = st.floats(-(2.0**90), 2.0**90, width=32)


def values(blocks: int = 3, elements: st.SearchStrategy[float] = FLOATS | EDGES):
    return arrays.arrays(np.float32, blocks * BLOCK, elements=elements, fill=elements)


def outcome(call):
    """What it returns, or which error it raises."""
    try:
        return call()
    except NonFinite as error:
        return type(error)


@pytest.mark.parametrize("codec", ["int8", "int4"])
@UNHURRIED
@given(given=values(), spoiled=st.none() | st.sampled_from([math.inf, -math.inf, math.nan]))
def test_codes_and_scales_are_those_of_the_twin(codec, given, spoiled):
    if spoiled is not None:
        given[BLOCK + 3] = spoiled

    def twin():
        codes, scales = codecs.TWIN_ENCODERS[codec](given)
        return bytes(codes) + scales

    assert outcome(lambda: codecs.encode(codec, given)) == outcome(twin)


@pytest.mark.parametrize("codec", ["int8", "int4"])
@UNHURRIED
@given(
    now=values(6),
    minus=st.none() | values(6),
    residual=values(6),
    spoiled=st.none() | st.sampled_from([math.inf, -math.inf, math.nan]),
)
def test_what_is_told_and_what_is_left_are_those_of_the_twin(codec, now, minus, residual, spoiled):
    if spoiled is not None:
        residual[5 * BLOCK + 3] = spoiled

    def tell():
        payload, left = outer.encode_with_feedback(codec, now, residual, minus=minus)
        return bytes(payload), left.tobytes()

    compiled = outcome(tell)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "IS_COMPILED", False)
        assert outcome(tell) == compiled


@pytest.mark.parametrize("codec", ["int8", "int4"])
@UNHURRIED
@given(
    codes=st.binary(min_size=BLOCK, max_size=BLOCK),
    scale=st.integers(0x0D80, 0x7180) | st.just(0) | st.integers(0x8D80, 0xF180),
)
def test_a_payload_decodes_as_the_twin_says(codec, codes, scale):
    size = codecs.payload_bytes(codec, BLOCK)
    payload = (codes[: size - 2] + struct.pack("<H", scale))[:size]
    found = codecs.decode(codec, payload, BLOCK)
    planes, scales = codecs.planes(codec, payload, BLOCK, 0, BLOCK)
    twin = np.empty(BLOCK, dtype=np.float32)
    codecs.TWIN_DECODERS[codec](planes, scales, twin)
    assert found.tobytes() == twin.tobytes()


@UNHURRIED
@given(given=values(4))
def test_flushing_is_decided_on_the_bits(given):
    twin = given.view(np.uint32).copy()
    twin *= (twin & np.uint32(0x7F80_0000)) != 0
    codecs.flush(given)
    assert given.tobytes() == twin.tobytes()


@UNHURRIED
@given(
    sums=arrays.arrays(
        np.float64,
        50,
        elements=st.floats(min_value=0, max_value=1e300) | st.sampled_from([0.0, 5e-324, 1e-310]),
    )
)
def test_a_sum_is_exact_and_rounded_once(sums):
    assert summing.root(sums) == math.sqrt(math.fsum(sums.tolist()))


@UNHURRIED
@given(
    theta=values(),
    momentum=values(),
    g=values(),
    eta=st.floats(0, 2),
    mu=st.floats(0, 0.99),
    nesterov=st.booleans(),
)
def test_the_outer_step_is_that_of_the_twin(theta, momentum, g, eta, mu, nesterov):
    def step():
        result = outer.outer_step(
            theta, momentum, g, learning_rate=eta, momentum_coefficient=mu, nesterov=nesterov
        )
        return [part.tobytes() for part in result]

    compiled = outcome(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "IS_COMPILED", False)
        assert outcome(step) == compiled


SPANS = (
    TensorSpan("radial", (300,), 300, "rda", 0),
    TensorSpan("mean", (BLOCK,), BLOCK, "mean", 3 * BLOCK),
)


@UNHURRIED
@given(data=st.data(), count=st.integers(1, 5), codec=st.sampled_from(["int4", "int8", "bf16"]))
def test_a_merge_is_that_of_the_twin(data, count, codec):
    size = 4 * BLOCK
    parts = [
        Contribution(
            key=(bytes(32), 0, number),
            payload=codecs.encode(codec, data.draw(values(4, SMALL))),
            codec=codec,
            weight=data.draw(st.floats(0, 1e6)),
        )
        for number in range(count)
    ]
    fragment = Fragment(0, SPANS, size)
    compiled = merge_fragment(parts, fragment, 2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "IS_COMPILED", False)
        twin = merge_fragment(parts, fragment, 2.0)
    assert compiled.values.tobytes() == twin.values.tobytes()
    assert (compiled.norms, compiled.scales) == (twin.norms, twin.scales)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 17])
@pytest.mark.parametrize("codecs_used", [["int4"], ["int8"], ["int4", "int8", "bf16"]])
def test_many_payloads_of_many_blocks_are_added_as_the_twin_does(count, codecs_used):
    """More than are added in one pass, and more blocks than factors are made for at a time."""
    rng = np.random.default_rng(count)
    size = 150 * BLOCK
    spans = (
        TensorSpan("radial", (size - BLOCK - 28,), size - BLOCK, "rda", 0),
        TensorSpan("mean", (BLOCK - 5,), BLOCK, "mean", size - BLOCK),
    )
    parts = []
    for number in range(count):
        spread = (10.0 ** rng.uniform(-20, 20, size)).astype(np.float32)
        codec = codecs_used[number % len(codecs_used)]
        drawn = rng.standard_normal(size, dtype=np.float32) * spread
        payload = codecs.encode(codec, drawn)
        parts.append(Contribution((bytes(32), 0, number), payload, codec, 1.0 + number))
    compiled = merge_fragment(parts, Fragment(0, spans, size), 2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "IS_COMPILED", False)
        twin = merge_fragment(parts, Fragment(0, spans, size), 2.0)
    assert compiled.values.tobytes() == twin.values.tobytes()
    assert (compiled.norms, compiled.scales) == (twin.norms, twin.scales)


@pytest.mark.parametrize("codec", ["int8", "int4"])
@UNHURRIED
@given(
    scales=st.lists(
        st.integers(0x0D80, 0x7180) | st.just(0) | st.just(0x8000) | st.integers(0x8D80, 0xF180),
        min_size=4,
        max_size=4,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_norm_of_a_push_is_exact_whatever_its_scales(codec, scales, seed):
    size = 4 * BLOCK
    codes = np.random.default_rng(seed).bytes(codecs.payload_bytes(codec, size) - 8)
    payload = codes + struct.pack("<4H", *scales)
    span = TensorSpan("radial", (size,), size, "rda", 0)
    part = Contribution((bytes(32), 0, 0), payload, codec, 1.0)
    found = merge_fragment([part], Fragment(0, (span,), size), 2.0).norms[0]
    decoded = codecs.decode(codec, payload, size).astype(np.float64)
    assert found == math.sqrt(math.fsum((decoded * decoded).tolist()))


def test_what_is_read_may_be_read_only():
    """As what comes out of a tape or a file is."""
    draw = np.random.default_rng(1).standard_normal
    theta, momentum, g = (draw(BLOCK, dtype=np.float32) for _ in range(3))
    payload = codecs.encode("int4", g)
    rates = {"learning_rate": 0.5, "momentum_coefficient": 0.5}
    free = [
        *outer.outer_step(theta, momentum, g, **rates),
        outer.encode_with_feedback("int4", theta, momentum, minus=g)[1],
        outer.encode_with_feedback("int8", theta, momentum)[1],
        codecs.decode("int4", payload, BLOCK),
    ]
    for one in (theta, momentum, g):
        one.setflags(write=False)
    fixed = [
        *outer.outer_step(theta, momentum, g, **rates),
        outer.encode_with_feedback("int4", theta, momentum, minus=g)[1],
        outer.encode_with_feedback("int8", theta, momentum)[1],
        codecs.decode("int4", memoryview(payload), BLOCK),
    ]
    for one, other in zip(free, fixed, strict=True):
        assert one.tobytes() == other.tobytes()
