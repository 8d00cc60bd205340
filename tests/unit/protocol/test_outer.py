import numpy as np
import pytest
from blake3 import blake3

from protocol.errors import InternalError
from protocol.numerics.codecs import CHUNK, NonFinite, decode, encode
from protocol.numerics.outer import digest, encode_with_feedback, outer_step
from tests.support import oracle
from tests.support.oracle import wave

CODECS = ("f32", "bf16", "int8", "int4", "int2", "int1")


def full(value, numel=128):
    return np.full(numel, value, dtype=np.float32)


def bits(array):
    return array.tobytes()


def test_the_first_outer_step_moves_by_one_plus_mu_times_eta():
    theta, momentum = outer_step(
        full(10.0), full(0.0), full(1.0), learning_rate=0.5, momentum_coefficient=0.5
    )
    assert set(theta.tolist()) == {9.25}
    assert set(momentum.tolist()) == {1.0}


def test_one_learner_without_momentum_at_rate_one_lands_on_its_weights():
    anchor, learner = full(2.0), wave(128)
    theta, _ = outer_step(
        anchor, full(0.0), anchor - learner, learning_rate=1.0, momentum_coefficient=0.0
    )
    np.testing.assert_allclose(theta, learner, atol=2.0**-22)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("rate", "mu"), [(0.7, 0.9), (0.4, 0.5), (1.0, 0.0), (0.1, 0.99)])
def test_every_product_and_sum_is_rounded_on_its_own(rate, mu, nesterov):
    theta, momentum, g = wave(512, 1), wave(512, 9), wave(512, 77)
    for _ in range(3):
        expected = oracle.outer_step_exact(theta, momentum, g, rate, mu, nesterov)
        theta, momentum = outer_step(
            theta, momentum, g, learning_rate=rate, momentum_coefficient=mu, nesterov=nesterov
        )
        assert bits(theta) == bits(expected[0])
        assert bits(momentum) == bits(expected[1])


def test_plain_momentum_moves_by_the_momentum_and_without_any_both_are_one():
    theta, momentum = outer_step(
        full(10.0),
        full(2.0),
        full(1.0),
        learning_rate=0.5,
        momentum_coefficient=0.5,
        nesterov=False,
    )
    assert set(theta.tolist()) == {9.0}
    assert set(momentum.tolist()) == {2.0}
    both = [
        outer_step(
            wave(256, 1),
            full(0, 256),
            wave(256, 2),
            learning_rate=0.7,
            momentum_coefficient=0.0,
            nesterov=nesterov,
        )
        for nesterov in (True, False)
    ]
    assert bits(both[0][0]) == bits(both[1][0])


def test_the_outer_step_is_the_one_of_torch():
    torch = pytest.importorskip("torch")
    for nesterov in (True, False):
        theta, momentum = wave(256, 1), full(0, 256)
        weights = torch.nn.Parameter(torch.from_numpy(theta.copy()))
        sgd = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=nesterov)
        for seed in (2, 3, 4):
            weights.grad = torch.from_numpy(wave(256, seed))
            sgd.step()
            theta, momentum = outer_step(
                theta,
                momentum,
                wave(256, seed),
                learning_rate=0.7,
                momentum_coefficient=0.9,
                nesterov=nesterov,
            )
        np.testing.assert_allclose(theta, weights.detach().numpy(), atol=1e-5)


def test_a_fused_multiply_add_would_give_another_result():
    mu = np.float32(0.9)
    momentum, g = wave(512, 9), wave(512, 77)
    fused = (momentum.astype(np.float64) * np.float64(mu) + g).astype(np.float32)
    _, ours = outer_step(full(0, 512), momentum, g, learning_rate=1.0, momentum_coefficient=0.9)
    assert 0 < np.count_nonzero(ours != fused) < 512


def test_the_outer_step_approximates_the_formula():
    theta, momentum, g = wave(4096, 1), wave(4096, 2), wave(4096, 3)
    ours = outer_step(theta, momentum, g, learning_rate=0.7, momentum_coefficient=0.9)
    ideal = oracle.outer_step(theta, momentum, g, 0.7, 0.9)
    for mine, exact in zip(ours, ideal, strict=True):
        np.testing.assert_allclose(mine, exact, atol=1e-6)


def test_the_outer_step_has_the_same_bits_on_every_machine():
    numel = CHUNK + 256
    theta, momentum = outer_step(
        wave(numel, 1),
        wave(numel, 2),
        wave(numel, 3),
        learning_rate=0.7,
        momentum_coefficient=0.9,
    )
    assert digest(theta).hex()[:16] == "e4d748fe8d375879"
    assert digest(momentum).hex()[:16] == "6336ed9ea93d65d2"


def test_subnormals_and_negative_zeros_vanish_at_every_operation():
    tiny = full(2.0**-126)
    theta, momentum = outer_step(
        full(-0.0), tiny, full(0.0), learning_rate=1.0, momentum_coefficient=0.5
    )
    # mu * B is subnormal: it is +0 before it can be added to anything.
    assert bits(momentum) == bits(theta) == bytes(512)
    theta, _ = outer_step(full(0.0), full(0.0), tiny, learning_rate=0.5, momentum_coefficient=0.0)
    assert bits(theta) == bytes(512)


def test_the_outer_step_leaves_its_inputs_alone():
    arrays = [wave(256, i) for i in range(3)]
    before = [bits(a) for a in arrays]
    outer_step(*arrays, learning_rate=0.7, momentum_coefficient=0.9)
    assert [bits(a) for a in arrays] == before


@pytest.mark.parametrize(
    ("theta", "momentum", "g"),
    [(3e38, 0.0, -3e38), (0.0, 3e38, 3e38), (np.nan, 0.0, 0.0), (0.0, 0.0, np.inf)],
)
def test_a_step_out_of_the_range_of_float32_is_refused(theta, momentum, g):
    with pytest.raises(NonFinite):
        outer_step(
            full(theta), full(momentum), full(g), learning_rate=1.0, momentum_coefficient=0.9
        )


def test_arrays_that_do_not_match_are_our_bug():
    with pytest.raises(InternalError):
        outer_step(
            full(0.0), full(0.0, 256), full(0.0), learning_rate=1.0, momentum_coefficient=0.0
        )
    with pytest.raises(InternalError):
        encode_with_feedback("int4", full(0.0), full(0.0, 256))


@pytest.mark.parametrize("codec", CODECS)
def test_feedback_encodes_the_sum_and_keeps_what_was_lost(codec):
    values, residual = wave(256, 5), wave(256, 6) / np.float32(8)
    payload, after = encode_with_feedback(codec, values, residual)
    assert payload == encode(codec, values + residual)
    assert bits(after) == bits(values + residual - decode(codec, payload, 256))


@pytest.mark.parametrize("codec", CODECS)
def test_a_displacement_is_taken_on_the_way(codec):
    anchor, local, residual = wave(256, 5), wave(256, 7), wave(256, 6) / np.float32(8)
    found = encode_with_feedback(codec, anchor, residual, minus=local)
    payload, after = encode_with_feedback(codec, anchor - local, residual)
    assert (found[0], bits(found[1])) == (payload, bits(after))


def test_without_loss_there_is_no_residual():
    _, after = encode_with_feedback("f32", wave(256, 5), full(0.0, 256))
    assert bits(after) == bytes(1024)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_with_feedback_the_sum_of_what_arrives_follows_the_sum_of_what_was_meant(codec):
    values, residual = wave(1024, 5), full(0.0, 1024)
    arrived, rounds = np.zeros(1024), 50
    for _ in range(rounds):
        payload, residual = encode_with_feedback(codec, values, residual)
        arrived += decode(codec, payload, 1024)
    with_feedback = np.linalg.norm(arrived - rounds * values.astype(np.float64))
    once = decode(codec, encode(codec, values), 1024).astype(np.float64)
    without = rounds * np.linalg.norm(once - values)
    assert with_feedback < without / 10


def test_feedback_that_overflows_is_refused():
    with pytest.raises(NonFinite):
        encode_with_feedback("f32", full(3e38), full(3e38))


def test_feedback_leaves_its_inputs_alone():
    values, residual = wave(256, 5), wave(256, 6)
    before = bits(values), bits(residual)
    encode_with_feedback("int4", values, residual)
    assert (bits(values), bits(residual)) == before


def test_a_digest_is_the_plain_blake3_of_the_content():
    values = wave(256)
    assert digest(b"shoal") == blake3(b"shoal").digest()
    assert digest(memoryview(b"shoal")) == digest(bytearray(b"shoal")) == digest(b"shoal")
    assert digest(values) == digest(encode("f32", values))
    assert len(digest(b"")) == 32
