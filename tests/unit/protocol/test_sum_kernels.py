"""Kernels do the same where a CPU cannot look values up."""

import math

import numpy as np
import pytest

from protocol.fragments import BLOCK, TensorSpan
from protocol.numerics import codecs
from protocol.numerics.compiled import kernels, sum_kernels, vectors
from protocol.numerics.summing import Source, add_together, products, total

numba = pytest.importorskip("numba")
SIZE = 80 * BLOCK


@pytest.fixture(params=[False, True])
def with_lookup(request, monkeypatch):
    """What is compiled in this test does without, or as this machine can."""
    if not request.param:
        monkeypatch.setattr(vectors, "_has_lookup", lambda: False)


def again(kernel):
    """The kernel, compiled now and kept nowhere."""
    return numba.njit(nogil=True, error_model="numpy")(kernel.py_func)


def drawn_values(seed):
    values = np.random.default_rng(seed).standard_normal(SIZE, dtype=np.float32)
    values[:BLOCK] *= np.float32(1e-34)
    return values


def drawn(seed):
    return codecs.encode("int4", drawn_values(seed))


def test_decoding_is_that_of_the_twin(with_lookup, monkeypatch):
    payload = drawn(1)
    codes, bits = codecs.code_planes("int4", payload, SIZE)
    by_block, found = np.empty(SIZE // BLOCK, np.float32), np.empty(SIZE, np.float32)
    assert kernels.scales(bits, by_block)
    again(kernels.decode)(codes, by_block, found)
    monkeypatch.setattr(kernels, "IS_COMPILED", False)
    assert found.tobytes() == codecs.decode("int4", payload, SIZE).tobytes()


def test_adding_is_that_of_the_twin(with_lookup, monkeypatch):
    parts = [(Source("int4", drawn(seed), SIZE, (b"", 0, seed)), 0.3 - seed) for seed in range(5)]
    found, expected = np.ones((2, SIZE), np.float32)
    limbs = np.zeros(sum_kernels.LIMBS, np.int64)
    monkeypatch.setattr(sum_kernels, "add", again(sum_kernels.add))
    add_together("int4", parts, 0, found, False, False, limbs)
    monkeypatch.setattr(kernels, "IS_COMPILED", False)
    add_together("int4", parts, 0, expected, False, False, limbs)
    assert found.tobytes() == expected.tobytes()


def spread(seed, size=SIZE):
    """Numbers of many magnitudes."""
    generator = np.random.default_rng(seed)
    wide = generator.standard_normal(size) * 10.0 ** generator.integers(-20, 20, size)
    return wide.astype(np.float32)


@pytest.mark.parametrize("codec", ["int4", "int8", "f32"])
@pytest.mark.parametrize("numel", [SIZE, SIZE - 37])
def test_products_are_those_of_the_twin(with_lookup, monkeypatch, codec, numel):
    payload = codecs.encode(codec, drawn_values(3))
    source, other = Source(codec, payload, SIZE, (b"", 0, 3)), spread(4)
    span = TensorSpan("t", (numel,), numel, "rda", 0)
    for kernel in ("products", "coded_products"):
        monkeypatch.setattr(sum_kernels, kernel, again(getattr(sum_kernels, kernel)))
    for start, stop in [(0, SIZE), (3 * BLOCK, 40 * BLOCK)]:
        found = products(source, span, start, stop, other[start:stop])
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "IS_COMPILED", False)
            expected = products(source, span, start, stop, other[start:stop])
        assert found.tobytes() == expected.tobytes()
        exact = source.decoded(span, start, stop).astype(np.float64) * other[start:stop]
        assert total(found) == pytest.approx(math.fsum(exact.tolist()), rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_total_is_rounded_once(seed, monkeypatch):
    sums = spread(seed, 1000).astype(np.float64) * spread(seed + 9, 1000)
    found = total(sums)
    monkeypatch.setattr(kernels, "IS_COMPILED", False)
    assert found == total(sums) == math.fsum(sums.tolist())
    assert total(np.zeros(3)) == 0.0
