"""Text is leased as fast as learners may read it, with a reserve, and who asks for more waits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Cursor, LeaseRequest, Pull
from syncer_node.machine.leasing import VOID_S_MIN
from syncer_node.machine.text_supply import (
    BLOCKS_HELD_MAX,
    CYCLES_MIN,
    HELD_S,
    MEASURE_S_MIN,
    OWN_FACTOR,
    RESERVE_S,
    SEEN_FACTOR,
    SPEEDS_MIN,
    SWARM_FACTOR,
    TextSupply,
)
from tests.support.builders import ONE, STRANGER, THREE, TWO, SyncerBench

H, STEP, BLOCK = 8, 2, 4


def blocks_of(supply, key, wanted, now_s, held=0):
    return supply.blocks(key, wanted, now_s, held=held, seen={})


def reading(supply, key, speed, *, since_s=0.0, times=SPEEDS_MIN + 1, incarnation=1):
    """Merged pushes prove this speed in sequences per second; when the last of them came."""
    at_s = since_s
    for number in range(times):
        at_s = since_s + number * MEASURE_S_MIN
        supply.proved(key, incarnation, round(number * MEASURE_S_MIN * speed), at_s)
    return at_s


@pytest.fixture
def supply():
    return TextSupply(H, STEP, BLOCK)


def test_nobody_waits_while_too_few_speeds_are_known(supply):
    reading(supply, b"a", 4.0)
    assert supply.rate(b"new", {}) is None
    assert supply.rate(b"a", {}) is None
    assert blocks_of(supply, b"new", 4096, 0.0) == (4096, 0.0)


def test_a_rate_is_that_of_the_learner_itself_once_it_is_known(supply):
    for key, speed in ((b"a", 4.0), (b"b", 4.0), (b"c", 20.0)):
        reading(supply, key, speed)
    assert supply.rate(b"c", {}) == OWN_FACTOR * 20.0
    assert supply.rate(b"new", {}) == SWARM_FACTOR * 4.0


def test_who_is_slow_may_become_as_fast_as_the_others(supply):
    for key, speed in ((b"a", 4.0), (b"b", 4.0), (b"slow", 0.4)):
        reading(supply, key, speed)
    assert supply.rate(b"slow", {}) == 4.0


def test_a_pause_is_one_slow_measurement_and_not_the_median(supply):
    at_s = reading(supply, b"a", 4.0)
    read = supply.supplies[b"a"].read
    supply.proved(b"a", 1, read + 8, at_s + 3600.0)
    assert supply.supplies[b"a"].speed == pytest.approx(4.0)


def test_a_new_session_of_a_key_is_measured_on_its_own_line(supply):
    at_s = reading(supply, b"a", 4.0)
    supply.proved(b"a", 2, 10**6, at_s + MEASURE_S_MIN)
    assert max(supply.supplies[b"a"].speeds) == pytest.approx(4.0)


def test_while_too_few_have_proven_their_speed_what_is_seen_of_others_serves(supply):
    seen = {b"a": STEP, b"b": STEP, b"liar": 50.0 * STEP}
    assert supply.rate(b"liar", seen) == SEEN_FACTOR * STEP
    assert supply.rate(b"a", seen) == SEEN_FACTOR * STEP
    assert supply.rate(b"a", {b"a": 1.0, b"b": 1.0, b"still": 0.0}) is None


def test_text_that_was_taken_before_the_rate_was_known_counts(supply):
    seen, most = {b"b": STEP, b"c": STEP}, SEEN_FACTOR * STEP * RESERVE_S
    assert supply.blocks(b"a", 4096, 0.0, held=0, seen={}) == (4096, 0.0)
    assert supply.blocks(b"a", 4096, 1.0, held=round(most) + 80, seen=seen)[0] == 0
    assert supply.blocks(b"new", 4096, 1.0, held=80, seen=seen)[0] * BLOCK == most - 80


def known(supply):
    for key in (b"a", b"b", b"c"):
        at_s = reading(supply, key, 4.0)
    return at_s


def test_a_key_gets_its_reserve_and_then_its_rate(supply):
    at_s = known(supply)
    most = OWN_FACTOR * 4.0 * RESERVE_S
    blocks, _ = blocks_of(supply, b"a", 10**6, at_s)
    assert blocks * BLOCK == most
    supply.take(b"a", blocks * BLOCK)
    none, after_s = blocks_of(supply, b"a", 10**6, at_s)
    assert none == 0
    some, _ = blocks_of(supply, b"a", 10**6, at_s + after_s + 0.1)
    assert some * BLOCK == pytest.approx(OWN_FACTOR * 4.0 * after_s, abs=BLOCK)


def test_who_becomes_ten_times_faster_goes_on_until_it_has_proven_so(supply):
    at_s, speed = known(supply), 40.0
    read, held, begun_s = supply.supplies[b"a"].read, 0, at_s
    while at_s < begun_s + 600.0:
        at_s += 1.0
        if held < 120 * 4.0:  # What lies ahead, at its former speed.
            blocks, _ = blocks_of(supply, b"a", 480, at_s)
            supply.take(b"a", blocks * BLOCK)
            held += blocks * BLOCK
        assert held >= speed, f"no text {at_s - begun_s} s later"
        held, read = held - round(speed), read + round(speed)
        supply.proved(b"a", 1, read, at_s)


def test_who_stood_still_proves_a_higher_speed_and_no_lower_one(supply):
    at_s = known(supply)
    one = supply.supplies[b"a"]
    assert one.speed == 4.0
    for number in range(1, 12):
        read = one.read + round(MEASURE_S_MIN)
        assert supply.proved(b"a", 1, read, at_s + number * MEASURE_S_MIN, stood=True)
    assert one.speed == 4.0
    at_s = one.read_s
    for number in range(1, 12):
        read = one.read + round(8.0 * MEASURE_S_MIN)
        assert supply.proved(b"a", 1, read, at_s + number * MEASURE_S_MIN, stood=True)
    assert one.speed == 8.0


def test_text_that_went_back_can_be_had_again(supply):
    at_s = known(supply)
    blocks, _ = blocks_of(supply, b"a", 10**6, at_s)
    supply.take(b"a", blocks * BLOCK)
    supply.give_back(b"a", 100 * BLOCK)
    assert blocks_of(supply, b"a", 10**6, at_s)[0] == 100


def test_a_bucket_holds_some_cycles_and_a_block_however_slow_its_learner(supply):
    for key in (b"a", b"b", b"c"):
        reading(supply, key, 1 / MEASURE_S_MIN)
    supply.step_sequences, supply.block_sequences = 125, 64
    assert blocks_of(supply, b"a", 1, 1000.0)[0] == 1
    assert blocks_of(supply, b"a", 10**6, 1000.0)[0] * 64 >= 3 * 1000


def test_a_key_that_left_is_kept_until_its_bucket_is_full(supply):
    at_s = known(supply)
    blocks, _ = blocks_of(supply, b"a", 10, at_s)
    supply.take(b"a", blocks * BLOCK)
    supply.forget({b"b"}, at_s + 1.0)
    assert set(supply.supplies) == {b"a", b"b"}
    supply.proved(b"d", 1, 1, at_s)
    supply.forget({b"b"}, at_s + RESERVE_S + 1.0)
    assert set(supply.supplies) == {b"b"}


def test_a_request_beyond_the_rate_waits_and_is_granted():
    bench = SyncerBench().start(ONE, TWO, THREE)
    supply = bench.seat.leasing.supply
    for learner in (TWO, THREE, STRANGER):
        reading(supply, learner.key, 0.4)
    blocks, _ = blocks_of(supply, ONE.key, 10**6, bench.now_s)
    supply.take(ONE.key, blocks * BLOCK)
    bench.say(ONE.key, LeaseRequest(64))
    session, leases = (ONE.key, 1), bench.machine.state.leases
    assert session not in leases.since_s
    assert bench.seat.leasing.deadline_s() > bench.now_s
    bench.say(TWO.key, LeaseRequest(8))
    assert (TWO.key, 1) in leases.since_s
    bench.wait(bench.seat.leasing.deadline_s() - bench.now_s + 0.1)
    assert 0 < leases.unread(session) < 64


def test_text_for_five_minutes_may_be_held_by_whom_is_fast(supply):
    assert supply.held_max(b"a") == BLOCKS_HELD_MAX
    reading(supply, b"a", 100.0 * BLOCK)
    assert supply.held_max(b"a") == pytest.approx(HELD_S * 100.0)
    supply.local_steps, supply.step_sequences = 100, 1000 * BLOCK
    assert supply.held_max(b"a") == CYCLES_MIN * 100 * 1000


def full(bench):
    """The learner holds as many blocks as it may."""
    leases, session = bench.machine.state.leases, (ONE.key, 1)
    while leases.unread(session) < BLOCKS_HELD_MAX:
        bench.say(ONE.key, LeaseRequest(1024))
    return leases


def test_who_holds_all_the_text_it_may_gets_more_as_soon_as_it_is_merged():
    bench = SyncerBench().start(ONE)
    leases = full(bench)
    held, read = leases.held[ONE.key, 1], leases.unread((ONE.key, 1))
    bench.say(ONE.key, LeaseRequest(64))
    bench.wait(1.0)
    assert leases.unread((ONE.key, 1)) == read
    bench.beat(ONE, local_step=20)
    pull = bench.last(ONE.key, Pull)
    bench.push(ONE, pull, cursor=Cursor(held[0].stop, 0))
    assert bench.machine.state.global_step == 1
    assert 0 < leases.unread((ONE.key, 1)) <= 64


def test_text_that_was_read_for_nothing_is_taken_back_and_other_text_leased():
    bench = SyncerBench().start(ONE)
    leases = full(bench)
    held = leases.unread((ONE.key, 1))
    bench.say(ONE.key, LeaseRequest(64))
    bench.wait(2.0)
    assert leases.unread((ONE.key, 1)) == held
    bench.say(ONE.key, LeaseRequest(64, is_spent=True))
    assert leases.unread((ONE.key, 1)) == 64
    full(bench)
    bench.say(ONE.key, LeaseRequest(64, is_spent=True))
    bench.wait(VOID_S_MIN / 2)
    bench.beat(ONE, state="starved", steps=(0,) * 4)
    bench.wait(VOID_S_MIN / 2 - 1.0)
    assert leases.unread((ONE.key, 1)) >= BLOCKS_HELD_MAX
    bench.wait(2.0)
    assert leases.unread((ONE.key, 1)) == 64


@given(
    speeds=st.dictionaries(
        st.binary(min_size=1, max_size=1), st.sampled_from([1.0, 2.0, 3.0, 4.0])
    ),
    key=st.binary(min_size=1, max_size=1),
)
def test_a_rate_is_found_from_the_others_alone(speeds, key):
    supply = TextSupply(H, STEP, BLOCK)
    for other, speed in speeds.items():
        reading(supply, other, speed)
    others = sorted(speed for other, speed in speeds.items() if other != key)
    assert supply.knows_others(key) == (len(others) >= 2)
    if len(others) < 2:
        assert supply.rate(key, {}) is None
        return
    fast = others[math.floor(0.9 * (len(others) - 1))]
    own = speeds.get(key)
    wanted = SWARM_FACTOR * fast if own is None else max(OWN_FACTOR * own, fast)
    assert supply.rate(key, {}) == pytest.approx(wanted)
