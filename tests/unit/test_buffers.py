"""Memory of large arrays is used again, and never while anybody looks at it."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.numerics import buffers
from protocol.numerics.buffers import LARGE


@pytest.fixture(autouse=True)
def nothing_spare():
    buffers.trim()
    yield
    buffers.trim()


def place(array):
    return array.__array_interface__["data"][0]


def test_the_next_array_of_that_size_gets_the_memory():
    first = buffers.empty(LARGE)
    where = place(first)
    del first
    assert place(buffers.empty(LARGE)) == where


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array[128:256],
        lambda array: array.view(np.uint8)[4:],
        lambda array: memoryview(array),
        lambda array: array.view(np.uint8).data[64:128],
        lambda array: array.reshape(-1, 128)[3],
    ],
)
def test_nobody_gets_memory_that_is_looked_at(look):
    first = buffers.empty(LARGE)
    where, looking = place(first), look(first)
    del first
    second = buffers.empty(LARGE)
    assert place(second) != where
    del looking
    assert place(buffers.empty(LARGE)) == where


def test_other_sizes_get_other_memory():
    where = place(buffers.empty(LARGE))
    assert buffers.empty(2 * LARGE).size == 2 * LARGE
    assert place(buffers.empty(LARGE)) == where


def test_what_is_kept_is_bounded_and_given_back():
    arrays = [buffers.empty(LARGE) for _ in range(5)]
    del arrays
    more = [buffers.empty(size) for size in (LARGE + 128, LARGE + 256, LARGE + 384)]
    del more
    assert buffers.trim() <= buffers.SPARE_MAX * buffers.SIZES_MAX * (LARGE + 384) * 4
    assert buffers.trim() == 0


def test_small_arrays_are_ordinary():
    small = buffers.empty(128)
    assert small.size == 128
    del small
    assert buffers.trim() == 0
