"""Garbage is seldom looked for while code is loaded, by the clock while a daemon lives, and as
before afterwards."""

from __future__ import annotations

import gc
import heapq
import itertools
import weakref

import pytest

from host.runtime import garbage

MANY = 10_000
"""Objects; some hundred others may come and go meanwhile."""


@pytest.fixture(autouse=True)
def _looked_for_afterwards():
    yield
    gc.enable()


@pytest.fixture
def loaded():
    """Objects as of code that was just loaded; all of before are set aside already."""
    gc.freeze()
    return [[] for _ in range(MANY)]


def test_while_code_is_loaded_garbage_is_seldom_sought_and_then_not_in_it(loaded):
    former, aside = gc.get_threshold(), gc.get_freeze_count()
    with garbage.seldom_sought():
        assert gc.get_threshold() == (garbage.SELDOM, *former[1:])
        assert gc.get_freeze_count() <= aside
    assert gc.get_threshold() == former
    assert gc.get_freeze_count() >= aside + MANY // 2


def test_a_start_that_fails_leaves_things_as_they_were(loaded):
    former, aside = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(ValueError, match="no model"), garbage.seldom_sought():
        raise ValueError("no model")
    assert gc.get_threshold() == former
    assert gc.get_freeze_count() <= aside


class Timers:
    """The part of an event loop that a clock needs, in virtual time."""

    def __init__(self):
        self.now_s, self.due, self.order = 0.0, [], itertools.count()

    def call_later(self, delay_s, call):
        timer = Timer()
        heapq.heappush(self.due, (self.now_s + delay_s, next(self.order), call, timer))
        return timer

    def pass_s(self, seconds):
        until_s = self.now_s + seconds
        while self.due and self.due[0][0] <= until_s:
            self.now_s, _, call, timer = heapq.heappop(self.due)
            if not timer.is_cancelled:
                call()
        self.now_s = until_s


class Timer:
    is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


class Circle:
    def __init__(self):
        self.payload, self.itself = bytes(1000), self


def test_a_daemon_looks_for_garbage_by_the_clock(loaded):
    gc.disable()  # Nothing but the clock.
    former, loop, aside = gc.get_threshold(), Timers(), gc.get_freeze_count()
    with garbage.sought_by_the_clock(loop):
        assert gc.get_threshold() == (garbage.SELDOM, *former[1:])
        assert gc.get_freeze_count() >= aside + MANY // 2
        for _ in range(3):
            gone = weakref.ref(Circle())
            loop.pass_s(0.9 * garbage.YOUNG_EVERY_S)
            assert gone() is not None
            loop.pass_s(0.2 * garbage.YOUNG_EVERY_S)
            assert gone() is None
            loop.pass_s(0.9 * garbage.YOUNG_EVERY_S)
    assert gc.get_threshold() == former
    gone = weakref.ref(Circle())
    loop.pass_s(2 * garbage.YOUNG_EVERY_S)
    assert gone() is not None
