"""Leases of published data: each learner stays in a shard, and every position is leased once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from protocol.log.leases import LeaseBook
from protocol.log.permutation import TextOrder
from protocol.log.records import Span
from protocol.messages import Cursor
from syncer_node.machine import shard_runs

BLOCK, AT_S = 4, 1.7e9


def session(at):
    return bytes([at]) * 32, 1


def lease(book, order, who, blocks):
    spans = shard_runs.pick(book, who, blocks, order)
    book.lease(who, spans, AT_S, BLOCK)
    return spans


def positions(spans):
    return [at for span in spans for at in range(span.start, span.stop)]


def test_two_learners_read_two_shards_though_their_leases_take_turns():
    book, order = LeaseBook(), TextOrder(100, 1, 10)
    ada, bob = session(1), session(2)
    assert lease(book, order, ada, 4) == (Span(0, 4, 0),)
    assert lease(book, order, bob, 4) == (Span(10, 14, 0),)
    assert lease(book, order, ada, 4) == (Span(4, 8, 0),)
    # Behind the end of its shard one goes on with the next that nobody reads.
    assert lease(book, order, ada, 4) == (Span(8, 10, 0), Span(20, 22, 0))
    assert lease(book, order, bob, 8) == (Span(14, 20, 0), Span(30, 32, 0))


def test_what_a_lost_learner_left_is_read_by_who_comes_next():
    book, order = LeaseBook(), TextOrder(100, 1, 10)
    ada, bob, cleo = session(1), session(2), session(3)
    lease(book, order, ada, 6)
    lease(book, order, bob, 2)
    book.advance(ada, Cursor(2, 3), BLOCK)
    book.give_back(ada)
    assert lease(book, order, cleo, 9) == (Span(2, 6, 3), Span(6, 10, 0), Span(20, 21, 0))


def test_where_there_are_more_learners_than_shards_they_share_and_no_pass_is_begun_early():
    book, order = LeaseBook(), TextOrder(20, 1, 10)
    leased = [lease(book, order, session(at), 3) for at in range(5)]
    assert max(positions(sum(leased, ()))) < 20
    assert len(set(positions(sum(leased, ())))) == 15


@pytest.mark.parametrize("seed", range(4))
def test_every_position_is_leased_once_whoever_comes_and_goes(seed):
    rng, book, order = random.Random(seed), LeaseBook(), TextOrder(97, seed, 10)
    read, done = Counter(), []
    for turn in range(400):
        who = session(rng.randrange(6))
        for at in positions(lease(book, order, who, rng.randint(1, 12))):
            read[at] += 1
        if rng.random() < 0.2:
            gone = rng.choice(list(book.held))
            for at in positions(book.held.get(gone, ())):
                read[at] -= 1  # Nothing of it was handed in, so it is leased again.
            book.give_back(gone)
        done.append(turn)
    free = positions(book.returned)
    assert all(read[at] == 1 for at in range(book.next_position) if at not in free)
    assert all(read[at] == 0 for at in free)


def test_bytes_read_stay_below_twice_the_bytes_trained():
    """Learners whose speeds differ by 16, in leases much shorter than a shard."""
    rng, book, order = random.Random(5), LeaseBook(), TextOrder(50_000, 3, 100)
    trained, touched = Counter(), defaultdict(set)
    for _ in range(6000):
        who = session(rng.choices(range(12), weights=[16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 1, 1])[0])
        for at in positions(lease(book, order, who, 8)):
            trained[who] += 1
            touched[who].add(order.run(at))
    ratio = sum(100 * len(one) for one in touched.values()) / sum(trained.values())
    assert ratio < 1.1
    assert len(book.returned) < 40
