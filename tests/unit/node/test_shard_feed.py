"""What a learner does about shards: whom it asks, what it throws away, what its trainer gets."""

from __future__ import annotations

import random

import pytest

from node.download.shard_feed import AT_ONCE, Ask, Cancel, Evict, Release, ShardFeed
from protocol.log.records import Span
from protocol.messages import Cursor
from tests.support.builders import digest_of
from tests.support.published import SEQUENCES, table_of

HOST, ADA, BOB = digest_of("host"), digest_of("ada"), digest_of("bob")
SHARD = 10
"""Blocks."""


def feed(*, named=(HOST,), learners=(), room=None, found=(), blocks=100):
    table = table_of(blocks=blocks, shard_blocks=SHARD, heldout=3 * SHARD * SEQUENCES)
    made = ShardFeed(table, SEQUENCES, random.Random(1), None if room is None else room * size())
    made.found(found)
    made.peers(named, learners)
    return made


def size():
    """Bytes of a full shard."""
    return SHARD * SEQUENCES * 2 * 9


def asked(orders):
    return [one.number for one in orders if isinstance(one, Ask)]


def released(orders):
    return [one.span for one in orders if isinstance(one, Release)]


def evicted(orders):
    return [one.number for one in orders if isinstance(one, Evict)]


def served(made, now_s=0.0):
    """Whoever is asked gives; what the trainer got by then."""
    got = []
    while orders := made.orders(now_s):
        got += released(orders)
        for ask in [one for one in orders if isinstance(one, Ask)]:
            made.came(ask, now_s)
    return got


def test_text_reaches_the_trainer_in_order_once_its_shard_is_here():
    made = feed()
    made.feed([Span(4, 12, 1), Span(37, 39, 0)])
    first, second, third = (made.table.at(at) for at in (4, 10, 37))
    orders = made.orders(0.0)
    assert asked(orders) == [first, second, third]
    assert released(orders) == []
    made.came(Ask(second, HOST), 1.0)
    assert released(made.orders(1.0)) == []  # What was leased before it is not here.
    assert made.awaited == first
    made.came(Ask(first, HOST), 2.0)
    assert released(made.orders(2.0)) == [Span(4, 10, 1), Span(10, 12, 0)]
    assert made.queued() == (Span(37, 39, 0),)
    made.came(Ask(third, HOST), 3.0)
    assert released(made.orders(3.0)) == [Span(37, 39, 0)]
    assert made.awaited is None
    assert made.deadline_s(3.0) is None


def test_nothing_is_asked_before_it_is_known_what_is_here():
    made = ShardFeed(table_of(blocks=100, shard_blocks=SHARD), SEQUENCES, random.Random(1))
    made.peers([HOST], [])
    made.feed([Span(0, 4, 0)])
    assert made.orders(0.0) == []
    made.found([made.table.at(0)])
    assert released(made.orders(0.0)) == [Span(0, 4, 0)]


def test_a_trainer_does_not_wait_for_a_slow_learner_where_the_host_gives_too():
    made = feed(learners=(ADA,))
    made.feed([Span(0, 14, 0)])
    first, second = made.orders(0.0)
    assert HOST not in {first.peer, second.peer}
    assert made.orders(1.9) == []
    again = Ask(first.number, HOST)
    assert made.orders(2.1) == [again], "and not the one that nobody waits for"
    assert made.orders(4.0) == []
    made.came(again, 4.2)
    assert made.orders(4.2) == [Cancel(first), Release(Span(0, 10, 0))]
    made.came(second, 9.0)
    assert released(made.orders(9.0)) == [Span(10, 14, 0)]
    made.feed([Span(20, 24, 0)])
    (third,) = made.orders(9.1)
    assert third.peer == HOST, "the learner took long"


def test_where_everything_takes_long_nothing_is_asked_twice_before_it_is_late():
    made = feed(learners=(ADA,))
    made.feed([Span(0, 4, 0)])
    (ask,) = made.orders(0.0)
    made.came(ask, 60.0)
    served(made, 60.0)
    made.feed([Span(14, 16, 0)])
    assert len(asked(made.orders(60.0))) == 1
    assert asked(made.orders(179.0)) == []
    assert len(asked(made.orders(181.0))) == 1


def test_what_two_were_asked_for_may_fail_at_one_of_them():
    made = feed(learners=(ADA,))
    made.feed([Span(0, 4, 0)])
    (first,) = made.orders(0.0)
    (second,) = made.orders(2.5)
    made.failed(first, "gone", 3.0)
    assert made.orders(3.1) == []
    made.came(second, 3.5)
    assert made.orders(3.5) == [Release(Span(0, 4, 0))]


def test_few_shards_are_on_their_way_at_once():
    made = feed()
    made.feed([Span(0, 100, 0)])
    assert len(asked(made.orders(0.0))) == AT_ONCE
    assert made.orders(0.0) == []


def test_two_learners_are_asked_before_the_host_and_the_others_after_it():
    learners = [digest_of("learner", at) for at in range(4)]
    made = feed(learners=learners)
    made.feed([Span(0, 4, 0)])
    order = []
    for turn in range(5):
        (ask,) = made.orders(float(turn) / 10)
        order.append(ask.peer)
        made.failed(ask, "lacks", turn / 10)
    assert order == [*learners[:2], HOST, *learners[2:]]
    assert made.orders(0.45) == []  # Everybody was asked just now.
    assert made.deadline_s(0.45) is not None
    assert asked(made.orders(9.0)) == [made.table.at(0)]


@pytest.mark.parametrize(("why", "rests_s"), [("busy", 0.2), ("gone", 4.0), ("wrong", 299.0)])
def test_who_fails_us_is_passed_over_for_a_while(why, rests_s):
    made = feed(named=(), learners=(ADA,))
    made.feed([Span(0, 4, 0)])
    (ask,) = made.orders(0.0)
    made.failed(ask, why, 0.0)
    assert made.orders(rests_s) == []
    assert made.orders(rests_s + 2.0) == [ask]


def test_a_host_that_leaves_while_it_is_asked_does_no_harm():
    made = feed(named=(), learners=(ADA,))
    made.feed([Span(0, 4, 0)])
    (ask,) = made.orders(0.0)
    made.peers((), (BOB,))
    made.failed(ask, "gone", 1.0)
    assert made.orders(1.0) == [Ask(ask.number, BOB)]


def test_what_was_of_use_longest_ago_is_thrown_away_and_never_what_is_leased():
    made = feed(room=3)
    made.feed([Span(0, 40, 0)])
    assert served(made) == [Span(0, 10, 0), Span(10, 20, 0), Span(20, 30, 0)]
    assert made.is_full
    assert made.held_bytes == 3 * size()
    numbers = [made.table.at(at) for at in (0, 10, 20, 30)]
    made.read(Cursor(10, 1))  # The first shard is read.
    orders = made.orders(1.0)
    assert evicted(orders) == numbers[:1]
    assert asked(orders) == numbers[3:]
    made.came(Ask(numbers[3], HOST), 1.0)
    assert released(made.orders(1.0)) == [Span(30, 40, 0)]
    assert made.held_bytes == 3 * size()


def test_where_the_room_shrinks_what_is_not_leased_goes_at_once():
    made = feed(room=6, found=(0, 1, 2, 3, 4))
    made.feed([Span(0, 10, 0)])
    served(made)
    made.room_bytes = 2 * size()
    orders = made.orders(1.0)
    kept = made.table.at(0)
    assert len(evicted(orders)) >= 3
    assert kept not in evicted(orders)
    assert made.held_bytes == 2 * size()
    made.room_bytes = 0
    assert kept not in evicted(made.orders(2.0))  # The trainer reads it.
    assert made.held_bytes == size()


def test_the_same_shards_are_not_fetched_twice_where_there_is_room():
    made = feed()
    for _ in range(3):
        made.feed([Span(0, 40, 0)])
        served(made)
        made.read(Cursor(39, SEQUENCES))
    assert made.asked_bytes == 4 * size()
    assert made.released_bytes == 3 * 40 * SEQUENCES * 18


def test_what_a_measurement_reads_is_fetched_and_stays_until_it_ends():
    made = feed(room=2)
    heldout = list(made.table.of_heldout(2 * SHARD * SEQUENCES))
    made.need(heldout)
    served(made)
    assert made.is_here(heldout)
    made.feed([Span(0, 4, 0)])
    assert served(made) == []
    assert made.is_full
    made.let_go(heldout)
    assert served(made) == [Span(0, 4, 0)]


def test_a_new_trainer_begins_with_nothing_and_keeps_what_is_on_the_disk():
    made = feed()
    made.feed([Span(0, 4, 0), Span(30, 34, 0)])
    served(made)
    made.begin()
    assert made.queued() == ()
    made.feed([Span(2, 4, 1)])
    assert made.orders(1.0) == [Release(Span(2, 4, 1))]


def test_a_shard_that_is_gone_from_the_disk_is_asked_for_again():
    made = feed()
    made.feed([Span(0, 4, 0)])
    assert served(made) == [Span(0, 4, 0)]
    made.begin()
    made.lost([made.table.at(0), made.table.at(50)])
    assert made.held == 0
    made.feed([Span(0, 4, 0)])
    assert asked(made.orders(1.0)) == [made.table.at(0)]


def test_a_long_lease_of_short_shards_is_looked_at_in_pieces():
    made = feed(blocks=3000)
    made.feed([Span(0, 3000, 0)])
    got = served(made)
    assert [span.start for span in got] == list(range(0, 3000, SHARD))
    assert made.held == 300
