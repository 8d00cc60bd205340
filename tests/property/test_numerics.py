import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocol.errors import MalformedPayload
from protocol.fragments import build_layout
from protocol.log.permutation import block_at, permuted
from protocol.numerics.codecs import CHUNK, check, decode, encode, payload_bytes
from protocol.numerics.merge import Contribution, merge_fragment, norm
from protocol.numerics.outer import encode_with_feedback, outer_step
from protocol.project import TensorSpec
from tests.support import oracle
from tests.support.choices import first

CODECS = ("f32", "bf16", "int8", "int4", "int2", "int1")
modest = settings(max_examples=60, deadline=None)

# Ordinary numbers, zeros of both signs, subnormals, and magnitudes at the edges of the scales.
ELEMENTS = st.one_of(
    st.floats(-1e3, 1e3, width=32),
    st.floats(-(2.0**95), 2.0**95, width=32),
    st.floats(-(2.0**-90), 2.0**-90, width=32),
)


def arrays(blocks=2):
    return hnp.arrays(np.float32, blocks * 128, elements=ELEMENTS, fill=st.just(0.0))


def dense(seed, numel, spread):
    """Gaussian values whose blocks differ in magnitude by powers of two up to 2^spread."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((numel // 128, 128))
    values *= 2.0 ** generator.integers(-spread, spread + 1, (numel // 128, 1))
    return values.reshape(-1).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@given(values=arrays())
@modest
def test_what_was_decoded_survives_any_further_trip_unchanged(codec, values):
    once = decode(codec, encode(codec, values), values.size)
    again = decode(codec, encode(codec, once), values.size)
    assert again.tobytes() == once.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@given(values=arrays())
@modest
def test_decoded_arrays_hold_no_subnormal_and_no_negative_zero(codec, values):
    back = decode(codec, encode(codec, values), values.size)
    assert (np.abs(back[back != 0]) >= 2.0**-126).all()
    assert not np.signbit(back[back == 0]).any()


@pytest.mark.parametrize(
    ("codec", "share", "floor"),
    [
        ("f32", 0.0, 2.0**-126),
        ("bf16", 2.0**-8, 2.0**-126),
        ("int8", 0.505 / 127, 127 * 2.0**-100),
        ("int4", 0.129, 8 * 2.0**-100),
    ],
)
@given(values=arrays())
@modest
def test_the_error_of_an_element_is_bounded_by_the_largest_of_its_block(
    codec, share, floor, values
):
    back = decode(codec, encode(codec, values), values.size)
    error = np.abs(back.astype(np.float64) - values).reshape(-1, 128)
    largest = np.abs(values).reshape(-1, 128).max(axis=1).astype(np.float64)
    # Subnormals, and blocks whose scale would be under the smallest, are dropped whole.
    assert (error.max(axis=1) <= np.maximum(largest * share, floor)).all()


@pytest.mark.parametrize("codec", ["int2", "int1"])
@given(values=arrays())
@modest
def test_a_coarse_block_is_never_further_from_the_original_than_zero_would_be(codec, values):
    wide = values.astype(np.float64).reshape(-1, 128)
    back = decode(codec, encode(codec, values), values.size).reshape(-1, 128)
    error = np.linalg.norm(back - wide, axis=1)
    # Nor is it for a rounded scale; blocks under the smallest scale are dropped whole.
    assert (error <= np.linalg.norm(wide, axis=1) * (1 + 1e-6)).all()


@pytest.mark.slow
@pytest.mark.parametrize("codec", first(1, ["int1", "int2"]))
@given(seed=st.integers(0, 2**32), used=st.integers(1, 127))
@modest
def test_coarse_feedback_stays_bounded_and_out_of_the_padding(codec, seed, used):
    values = dense(seed, 128, 0)
    values[used:] = 0.0
    residual, said = np.zeros_like(values), np.zeros(128)
    for _ in range(64):
        payload, residual = encode_with_feedback(codec, values, residual)
        said += decode(codec, payload, values.size)
    assert not residual[used:].any()
    assert not said[used:].any()
    norm_of = np.linalg.norm
    assert norm_of(said / 64 - values) <= 0.5 * norm_of(values)


@given(seed=st.integers(0, 2**32), spread=st.integers(0, 60))
@modest
def test_int4_and_int8_keep_their_relative_error_at_any_magnitude(seed, spread):
    values = dense(seed, 4096, spread)
    norms = np.linalg.norm(values.reshape(-1, 128).astype(np.float64), axis=1)
    for codec, bound in (("int8", 0.01), ("int4", 0.12)):
        error = decode(codec, encode(codec, values), 4096) - values.astype(np.float64)
        assert np.median(np.linalg.norm(error.reshape(-1, 128), axis=1) / norms) < bound


@pytest.mark.parametrize("codec", CODECS)
@given(content=st.data())
@modest
def test_any_bytes_are_malformed_or_decode_to_finite_normal_numbers(codec, content):
    size = payload_bytes(codec, 128)
    # Random scales are rarely legal, so half of the payloads get a good tail.
    payload = bytearray(content.draw(st.binary(min_size=size, max_size=size)))
    if content.draw(st.booleans()):
        payload[-2:] = b"\x80\x3f"
    try:
        values = decode(codec, payload, 128)
    except MalformedPayload:
        with pytest.raises(MalformedPayload):
            check(codec, payload, 128)
        return
    check(codec, payload, 128)
    assert np.isfinite(values).all()
    assert (np.abs(values[values != 0]) >= 2.0**-126).all()


@given(values=arrays(4), cut=st.integers(0, 4))
@modest
def test_the_norm_of_a_whole_follows_from_its_parts(values, cut):
    parts = np.hypot(norm(values[: cut * 128]), norm(values[cut * 128 :]))
    assert norm(values) == pytest.approx(parts, rel=1e-14)
    assert norm(-values) == norm(values)


SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=4)
# Whole numbers: weights equal to twelve digits but not all sit on the edge of cancelling.
WEIGHTS = st.lists(st.integers(0, 10**6).map(float), min_size=1, max_size=5)


def scenario(sizes, weights, seed, codec):
    specs = [TensorSpec(f"t{i}", (n,), ("rda", "mean")[i % 2]) for i, n in enumerate(sizes)]
    fragment = build_layout(specs, "tensor", 1).fragments[0]
    contributions = [
        Contribution(
            (b"host", i, 0), encode(codec, dense(seed + i, fragment.numel, 3)), codec, weight
        )
        for i, weight in enumerate(weights)
    ]
    return fragment, contributions


@given(SIZES, WEIGHTS, st.integers(0, 2**20), st.sampled_from(CODECS), st.floats(1.0, 4.0))
@modest
def test_the_merge_agrees_with_the_naive_formulas(sizes, weights, seed, codec, clip):
    fragment, contributions = scenario(sizes, weights, seed, codec)
    result = merge_fragment(contributions, fragment, clip)
    pushes = [decode(codec, c.payload, fragment.numel) for c in contributions]
    for push in pushes:
        for span in fragment.spans:
            push[span.offset + span.numel : span.offset + span.padded] = 0
    spans = [(span.offset, span.numel, span.rule) for span in fragment.spans]
    expected = oracle.merge(pushes, weights, spans, clip)
    scale = max((np.abs(push).max() for push in pushes), default=0.0)
    np.testing.assert_allclose(result.values, expected, rtol=3e-5, atol=1e-6 * scale)


@given(SIZES, WEIGHTS, st.integers(0, 2**20), st.randoms(use_true_random=False))
@modest
def test_no_order_of_arrival_changes_a_bit(sizes, weights, seed, shuffler):
    fragment, contributions = scenario(sizes, weights, seed, "int4")
    shuffled = list(contributions)
    shuffler.shuffle(shuffled)
    one = merge_fragment(contributions, fragment, 1.5)
    other = merge_fragment(shuffled, fragment, 1.5)
    assert one.values.tobytes() == other.values.tobytes()
    assert sorted(one.norms) == sorted(other.norms)


@given(SIZES, WEIGHTS, st.integers(0, 2**20), st.integers(-20, 20))
@modest
def test_only_the_ratio_of_weights_counts(sizes, weights, seed, exponent):
    # Powers of two, so that the shares are equal to the last bit.
    fragment, contributions = scenario(sizes, weights, seed, "int4")
    scaled = [
        Contribution(c.key, c.payload, c.codec, c.weight * 2.0**exponent) for c in contributions
    ]
    one, other = merge_fragment(contributions, fragment, 2.0), merge_fragment(scaled, fragment, 2.0)
    assert one.values.tobytes() == other.values.tobytes()


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=5), st.integers(0, 2**20))
@modest
def test_the_length_of_a_radial_tensor_is_the_weighted_mean_of_lengths(weights, seed):
    fragment, contributions = scenario([256], weights, seed, "f32")
    result = merge_fragment(contributions, fragment, 1e6)
    expected = np.average(result.norms, weights=weights)
    assert norm(result.values) == pytest.approx(expected, rel=1e-6)


@given(
    theta=arrays(1),
    momentum=arrays(1),
    g=arrays(1),
    rate=st.floats(0.0, 2.0),
    mu=st.floats(0.0, 0.99),
)
@modest
def test_the_outer_step_equals_the_one_in_python_floats(theta, momentum, g, rate, mu):
    ours = outer_step(theta, momentum, g, learning_rate=rate, momentum_coefficient=mu)
    exact = oracle.outer_step_exact(theta, momentum, g, rate, mu)
    assert ours[0].tobytes() == exact[0].tobytes()
    assert ours[1].tobytes() == exact[1].tobytes()


@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 2**32), start=st.integers(0, 2**32))
@modest
def test_feedback_loses_nothing_but_rounding(codec, seed, start):
    values, residual = dense(seed, 256, 2), dense(start, 256, 0) / np.float32(16)
    payload, after = encode_with_feedback(codec, values, residual)
    decoded = decode(codec, payload, 256)
    np.testing.assert_allclose(
        decoded.astype(np.float64) + after, values.astype(np.float64) + residual, atol=2e-6
    )


@given(st.integers(1, 300), st.binary(min_size=32, max_size=32))
@modest
def test_any_key_permutes_any_range(length, key):
    assert sorted(permuted(i, length, key) for i in range(length)) == list(range(length))


@given(st.integers(1, 60), st.integers(0, 2**63 - 1), st.integers(0, 2**40))
@modest
def test_any_pass_visits_every_block_once(blocks, seed, epoch):
    order = [block_at(epoch * blocks + i, blocks, seed) for i in range(blocks)]
    assert sorted(order) == list(range(blocks))


@given(extra=st.integers(1, 3), seed=st.integers(0, 2**20))
@settings(max_examples=8, deadline=None)
def test_arrays_over_several_chunks_step_like_their_parts(extra, seed):
    numel = CHUNK + extra * 128
    arrays_ = [dense(seed + i, numel, 1) for i in range(3)]
    whole = outer_step(*arrays_, learning_rate=0.7, momentum_coefficient=0.9)
    tail = [a[CHUNK - 128 :] for a in arrays_]
    part = outer_step(*tail, learning_rate=0.7, momentum_coefficient=0.9)
    assert whole[0][CHUNK - 128 :].tobytes() == part[0].tobytes()
    assert whole[1][CHUNK - 128 :].tobytes() == part[1].tobytes()
