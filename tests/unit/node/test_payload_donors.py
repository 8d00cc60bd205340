"""Whom learners ask for a merged payload: a few the syncer, the others each other, and not for
long."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from node.download.payload_donors import (
    GENERATION_S,
    PATIENCE_FACTOR,
    PATIENCE_S_MAX,
    PATIENCE_S_MIN,
    POLL_S,
    REST_S,
    SILENT_S,
    PayloadDonors,
    PayloadHunt,
    donors,
    order,
)
from protocol.limits import SYNCER_COPIES

PAYLOAD = bytes(range(32))
KEYS = [number.to_bytes(32, "big") for number in range(1000)]


def test_where_there_are_few_all_ask_the_syncer():
    few = KEYS[:SYNCER_COPIES]
    assert all(donors(PAYLOAD, few, key) == () for key in few)


@given(st.integers(SYNCER_COPIES + 1, 300), st.binary(min_size=32, max_size=32))
def test_a_few_ask_the_syncer_and_everybody_else_one_who_gets_it_before(count, payload):
    keys = KEYS[:count]
    ranks = {key: rank for rank, key in enumerate(order(payload, keys))}
    asked = {key: donors(payload, keys, key) for key in keys}
    assert [key for key in ranks if not asked[key]] == list(ranks)[:SYNCER_COPIES]
    for key, found in asked.items():
        assert key not in found
        assert all(ranks[one] < ranks[key] for one in found)


def test_whoever_has_it_gives_it_to_one_in_each_generation():
    asked = {key: donors(PAYLOAD, KEYS, key) for key in KEYS}
    firsts = Counter(found[0] for found in asked.values() if found)
    assert max(firsts.values()) == 6, "1000 learners are 16 * 2^5.97"
    ranks = order(PAYLOAD, KEYS)
    depth = {key: 0 for key in ranks[:SYNCER_COPIES]}
    for key in ranks[SYNCER_COPIES:]:
        depth[key] = depth[asked[key][0]] + 1
    assert max(depth.values()) <= 6


def test_who_is_no_part_of_the_log_yet_has_a_place_all_the_same():
    newcomer = bytes([7]) * 32
    found = donors(PAYLOAD, KEYS, newcomer)
    assert found == donors(PAYLOAD, [*KEYS, newcomer], newcomer)


def finalized(value):
    """As in splitmix64, with numbers of any length."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@given(st.binary(min_size=32, max_size=32), st.sets(st.binary(min_size=32, max_size=32)))
def test_the_order_is_that_of_the_protocol(payload, keys):
    def number(value):
        hasher = blake3(value, derive_key_context="shoal 1 payload donors")
        return int.from_bytes(hasher.digest()[:8], "little")

    assert order(payload, keys) == sorted(
        keys, key=lambda one: finalized(number(one) ^ number(payload))
    )


def test_no_key_has_a_better_place_than_others():
    rng = random.Random(1)
    keys = frozenset(KEYS[:64])
    firsts = Counter(order(rng.randbytes(32), keys)[0] for _ in range(6400))
    assert len(firsts) == 64
    assert sum((many - 100) ** 2 / 100 for many in firsts.values()) < 115, (
        "chi squared, 1 in 10,000"
    )


def test_other_payloads_come_in_another_order():
    assert order(PAYLOAD, KEYS) != order(bytes(32), KEYS)


@pytest.fixture
def hunt():
    return PayloadHunt.of(KEYS[:3], 15.0, 100.0)


def test_donors_that_have_nothing_are_asked_in_turn_and_again(hunt):
    for key in KEYS[:3]:
        assert hunt.asks(100.0) == [key]
        hunt.failed(key, 100.0, is_waiting=True)
    assert hunt.asks(100.0) == []
    assert hunt.deadline_s(100.0) == 100.0 + POLL_S
    assert hunt.asks(100.0 + POLL_S) == KEYS[:1]


def test_one_that_is_silent_is_not_waited_for_alone(hunt):
    assert hunt.asks(100.0) == KEYS[:1]
    assert hunt.asks(101.0) == []
    assert hunt.deadline_s(101.0) == 100.0 + SILENT_S
    assert hunt.asks(100.0 + SILENT_S) == KEYS[1:2]


def test_one_that_sends_is_waited_for(hunt):
    assert hunt.asks(100.0) == KEYS[:1]
    hunt.heard(KEYS[0], 102.0, 0.5)
    assert hunt.asks(100.0 + SILENT_S) == []
    assert hunt.asks(102.0 + SILENT_S) == KEYS[1:2]


def test_one_that_would_need_longer_than_is_usual_is_not_waited_for_alone():
    hunt = PayloadHunt.of(KEYS[:3], 60.0, 100.0, usual_s=4.0)
    assert hunt.asks(100.0) == KEYS[:1]
    for at_s in (101, 102, 103):
        hunt.heard(KEYS[0], at_s, 0.05 * (at_s - 100))
        assert not hunt.asks(at_s)
    assert hunt.deadline_s(103.0) == pytest.approx(100.0 + 4.0 * 0.15 / 0.85 + SILENT_S)
    hunt.heard(KEYS[0], 104.0, 0.2)
    assert hunt.asks(104.0) == KEYS[1:2]
    hunt.heard(KEYS[1], 105.0, 0.9)
    assert hunt.asks(106.0) == [], "the second one is soon done"


def test_where_nobody_is_left_the_syncer_is_asked_at_once(hunt):
    for key in KEYS[:3]:
        assert not hunt.is_over(100.0)
        assert hunt.asks(100.0) == [key]
        hunt.failed(key, 100.0, is_waiting=False)
    assert hunt.is_over(100.0)


def test_however_donors_behave_the_syncer_is_asked_in_the_end(hunt):
    now_s = 100.0
    while not hunt.is_over(now_s):
        for key in hunt.asks(now_s):
            hunt.heard(key, now_s, 0.0)
            hunt.failed(key, now_s, is_waiting=True)
        assert hunt.deadline_s(now_s) >= now_s
        now_s = hunt.deadline_s(now_s)
    assert now_s == 115.0


def test_who_gets_it_late_waits_longer_before_it_asks_the_syncer():
    known = PayloadDonors(KEYS[0])
    first, second, last = (SYNCER_COPIES << later for later in (0, 1, 9))
    assert known.patience_s(first) == known.patience_s(second) == PATIENCE_S_MIN
    assert known.patience_s(last) == 10 * GENERATION_S > PATIENCE_S_MIN
    assert known.patience_s(SYNCER_COPIES << 40) == PATIENCE_S_MAX


def test_who_was_not_there_or_said_nothing_rests_and_the_syncer_is_asked_at_once():
    known, asking = PayloadDonors(KEYS[0]), KEYS[: SYNCER_COPIES + 1]
    payload = next(
        one for one in (bytes([at]) * 32 for at in range(256)) if donors(one, asking, KEYS[0])
    )
    hunt = known.hunt(payload, asking, 0.0)
    (gone,) = hunt.asks(0.0)
    hunt.failed(gone, 0.0, is_waiting=False)
    (mute,) = hunt.asks(0.0)
    (sending,) = hunt.asks(SILENT_S)
    hunt.heard(sending, SILENT_S + 1.0, 0.1)
    (full,) = hunt.asks(2 * SILENT_S + 1.0)
    hunt.failed(full, 2 * SILENT_S + 1.0, is_waiting=True)
    hunt.end(2 * SILENT_S + 1.0)
    assert hunt.is_over(2 * SILENT_S + 1.0)
    assert not known.resting, "nobody has answered yet: it may be this learner's own line"
    known.answered(hunt, 2 * SILENT_S + 1.0)
    assert set(known.resting) == {gone, mute}
    again = known.hunt(payload, asking, 10.0)
    assert {*again.asks(10.0), *again.asks(10.0 + SILENT_S)} == {sending, full}
    known.resting |= {sending: 20.0, full: 20.0}
    assert known.hunt(payload, asking, 19.0) is None
    assert known.hunt(payload, asking, 20.0) is not None
    assert known.hunt(payload, asking, 2 * SILENT_S + 1.0 + REST_S).asks(1000.0) == [gone]


@given(st.lists(st.floats(0.0, 1000.0), max_size=20), st.integers(0, 1 << 20))
def test_patience_has_bounds(took_s, rank):
    known = PayloadDonors(KEYS[0])
    for one in took_s:
        known.held(PayloadHunt.of(KEYS[1:2], 4.0, 0.0), one)
    assert PATIENCE_S_MIN <= known.patience_s(rank) <= PATIENCE_S_MAX


def test_a_few_donors_make_nobody_wait_longer():
    known = PayloadDonors(KEYS[0])
    for took_s in (10.0, 10.0, 10.0, 15.0, 15.0):
        known.held(PayloadHunt.of(KEYS[1:2], 4.0, 0.0), took_s)
    assert known.patience_s(SYNCER_COPIES) == 10.0 * PATIENCE_FACTOR
