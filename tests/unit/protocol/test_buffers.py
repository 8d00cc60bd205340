"""Memory of large arrays is used again, and never while anybody looks at it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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


def test_memory_that_is_much_larger_is_left_alone_and_a_little_larger_will_do():
    large = buffers.empty(2 * LARGE)
    where = place(large)
    del large
    assert place(buffers.empty(LARGE)) != where
    smaller = buffers.empty(2 * LARGE - 4096)
    assert (place(smaller), smaller.size) == (where, 2 * LARGE - 4096)


@pytest.mark.parametrize("size", [LARGE, LARGE + 1, 41_943_040, 5_406_984])
def test_so_will_memory_of_one_that_was_a_little_smaller(size):
    first = buffers.empty(size - size // 100)
    where = place(first)
    del first
    assert place(buffers.empty(size)) == where


def test_the_smallest_that_will_do_is_taken():
    first, second = buffers.empty(LARGE + LARGE // 8), buffers.empty(LARGE)
    where = place(second)
    del first, second
    assert place(buffers.empty(LARGE)) == where


def test_what_is_kept_is_bounded_by_what_is_in_use_and_given_back():
    buffers.empty(LARGE)
    each = buffers.trim()
    arrays = [buffers.empty(LARGE) for _ in range(5)]
    del arrays
    assert buffers.trim() == buffers.SPARE_MIN * each
    held = [buffers.empty(LARGE) for _ in range(4 * buffers.SPARE_SHARE)]
    arrays = [buffers.empty(LARGE) for _ in range(9)]
    del arrays
    assert buffers.trim() == 4 * each
    del held
    buffers.trim()
    assert buffers.trim() == 0


def test_many_threads_get_memory_of_their_own():
    def use(number):
        for _ in range(200):
            array = buffers.empty(LARGE // 4)
            array[::4096] = number
            if not (array[::4096] == number).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))


def test_small_arrays_are_ordinary():
    small = buffers.empty(128)
    assert small.size == 128
    del small
    assert buffers.trim() == 0


def test_large_arrays_begin_at_a_border_and_only_very_large_ones_are_streamed():
    assert all(place(buffers.empty(LARGE + 128 * at)) % buffers.BORDER == 0 for at in range(5))
    very_large = buffers.empty(buffers.STREAMED_MIN // 4)
    assert buffers.is_streamed(very_large)
    assert not buffers.is_streamed(very_large[1:])
    assert not buffers.is_streamed(very_large[128:])
    shifted = np.empty(buffers.STREAMED_MIN // 4 + 32, np.float32)
    at = (-place(shifted) % buffers.BORDER) // 4
    assert not buffers.is_streamed(shifted[at + 1 :][: very_large.size])
