"""Virtual time never stands still: whoever asks to be woken at a time is woken when it has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.machine import Started, WakeAt
from simulator.virtual.world import Host, World

WAKES_MAX = 5


class Sleeper:
    """Wants to be woken at a time of its own clock, and again until that has come."""

    def __init__(self, at_s):
        self.at_s = at_s
        self.wakes = 0
        self.woken_s = None

    def handle(self, event, now_s):
        self.wakes += not isinstance(event, Started)
        assert self.wakes <= WAKES_MAX, "it is woken again and again before its time"
        if now_s >= self.at_s:
            self.woken_s = now_s
            return []
        return [WakeAt(self.at_s)]


class Place(Host):
    def build(self):
        return self.sleeper

    def run_job(self, start, answer):
        raise AssertionError("no jobs here")

    def act(self, action):
        raise AssertionError("no actions here")


@given(
    at_s=st.floats(0.001, 1e6),
    rate=st.floats(0.9, 1.1),
    ahead_s=st.floats(0, 1e5),
)
def test_whoever_asks_is_woken_once_the_time_has_come(at_s, rate, ahead_s):
    world = World(1)
    host = Place(world, b"k", "sleeper")
    host.clock_rate, host.clock_ahead_s = rate, ahead_s
    host.sleeper = Sleeper(ahead_s + at_s)
    host.boot()
    world.run(2e6)
    assert host.sleeper.woken_s is not None
    assert host.sleeper.woken_s - host.sleeper.at_s < 1e-6
