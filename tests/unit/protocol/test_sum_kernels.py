"""Kernels do the same where a CPU cannot look values up."""

import math

import numpy as np
import pytest

from protocol.fragments import BLOCK
from protocol.numerics import codecs
from protocol.numerics.compiled import kernels, sum_kernels, vectors
from protocol.numerics.picked import Picked
from protocol.numerics.summing import Source, add_together
from tests.support.values import spread

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


def test_a_product_is_that_of_the_twin(with_lookup, monkeypatch):
    values, others = spread(SIZE, 3), spread(SIZE, 4)
    monkeypatch.setattr(sum_kernels, "products", again(sum_kernels.products))
    found = Picked.of_values(values).product(others)
    monkeypatch.setattr(kernels, "IS_COMPILED", False)
    assert Picked.of_values(values).product(others) == found
    exact = values.astype(np.float64) * others
    assert found == pytest.approx(math.fsum(exact.tolist()), rel=1e-9)
