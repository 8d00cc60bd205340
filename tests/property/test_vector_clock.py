from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.messages import AskMoments, MomentsReady
from protocol.snapshots.vector_clock import VectorClock

SMALL = st.integers(0, 3)
clocks = st.builds(VectorClock, SMALL, st.tuples(SMALL, SMALL, SMALL))
any_clocks = st.builds(VectorClock, SMALL, st.lists(SMALL, max_size=3).map(tuple))


@given(any_clocks)
def test_every_clock_has_observed_itself(clock):
    assert clock.has_observed(clock)


@given(any_clocks, any_clocks)
def test_two_clocks_that_have_observed_each_other_are_the_same(one, two):
    assert (one.has_observed(two) and two.has_observed(one)) == (one == two)


@given(any_clocks, any_clocks, any_clocks)
def test_what_an_observed_clock_has_observed_is_observed(one, two, three):
    if one.has_observed(two) and two.has_observed(three):
        assert one.has_observed(three)


@given(clocks, clocks)
def test_observing_means_that_nothing_in_the_other_is_newer(one, two):
    pairs = [(one.log_index, two.log_index), *zip(one.versions, two.versions, strict=True)]
    assert one.has_observed(two) == all(mine >= its for mine, its in pairs)


@given(clocks, st.integers(0, 3), st.integers(1, 3))
def test_a_clock_that_moves_on_keeps_what_it_has_observed(clock, place, by):
    versions = list(clock.versions)
    later = VectorClock(clock.log_index + by, clock.versions)
    if place < len(versions):
        versions[place] += by
        later = VectorClock(clock.log_index, tuple(versions))
    assert later.has_observed(clock)
    assert not clock.has_observed(later)


@given(clocks)
def test_clocks_of_models_cut_otherwise_never_match(clock):
    other = VectorClock(0, clock.versions[:-1])
    assert not clock.has_observed(other)
    assert not other.has_observed(clock)


@given(any_clocks, st.lists(st.binary(min_size=32, max_size=32), max_size=4))
def test_a_clock_arrives_as_it_was_sent(clock, blobs):
    ask = AskMoments(bytes(32), bytes(32), clock)
    ready = MomentsReady(clock, tuple(blobs))
    for message in (ask, ready):
        assert wire.decode_message(wire.encode(message)) == message
