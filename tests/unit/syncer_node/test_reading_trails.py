"""What a push was trained on, as far as leases and cursors say."""

from __future__ import annotations

import random

from protocol.log.records import Span
from protocol.log.state import SwarmState
from protocol.messages import Cursor
from syncer_node.machine.trust.reading_trails import SPANS_MAX, ReadingTrails
from tests.support.builders import push_header

SESSION = (bytes(32), 1)


def trails(*spans: Span, fragments: int = 2) -> ReadingTrails:
    """Of a session with these leases, four sequences a block."""
    made = ReadingTrails(SwarmState(4), 4, fragments)
    made.state.leases.held[SESSION] = list(spans)
    made.on_leased(SESSION, spans)
    return made


def push(made: ReadingTrails, fragment: int, position: int, sequence: int, most: int = 99) -> range:
    header = push_header(fragment=fragment, cursor=Cursor(position, sequence))
    return made.on_push(SESSION, header, most)


def places(made: ReadingTrails, read: range) -> list[tuple[int, int]]:
    chosen = made.sample(SESSION, read, len(read), random.Random(1))
    return [(one.position, one.sequence) for one in chosen]


def test_a_push_was_trained_on_what_was_read_since_the_one_before_of_its_fragment():
    made = trails(Span(10, 12, 1), Span(40, 42, 0))
    assert places(made, push(made, 0, 10, 3)) == [(10, 1), (10, 2)]
    assert places(made, push(made, 1, 11, 1)) == [(10, 1), (10, 2), (10, 3), (11, 0)]
    assert places(made, push(made, 0, 40, 1)) == [(10, 3), *((11, at) for at in range(4)), (40, 0)]
    assert places(made, push(made, 0, 41, 4, most=2)) == [(41, 2), (41, 3)]


def test_the_end_of_a_block_is_the_beginning_of_the_next():
    made = trails(Span(10, 12, 0), Span(40, 41, 0))
    assert len(push(made, 0, 10, 4)) == 4
    assert places(made, push(made, 0, 11, 1)) == [(11, 0)]
    assert len(push(made, 0, 11, 4)) == 3
    assert places(made, push(made, 0, 40, 1)) == [(40, 0)]


def test_a_cursor_outside_its_leases_says_nothing():
    made = trails(Span(10, 12, 2))
    assert not push(made, 0, 50, 0)
    assert not push(made, 0, 10, 1), "before the first sequence that was leased"
    assert len(push(made, 0, 10, 4)) == 2


def test_a_trainer_that_reads_again_has_handed_in_what_it_reads_from_there():
    made = trails(Span(10, 14, 0))
    push(made, 0, 12, 2)
    assert not push(made, 0, 11, 0)
    assert places(made, push(made, 0, 11, 2)) == [(11, 0), (11, 1)]


def test_only_what_a_push_may_still_need_is_kept():
    made = trails(*(Span(10 * at, 10 * at + 1, 0) for at in range(4)))
    push(made, 0, 20, 4)
    assert len(made.trails[SESSION].spans) == 4, "the other fragment may need it all"
    push(made, 1, 10, 2)
    made.on_leased(SESSION, ())
    assert made.trails[SESSION].spans[0] == Span(10, 11, 0)
    assert places(made, push(made, 1, 20, 1)) == [(10, 2), (10, 3), (20, 0)]
    for at in range(2 * SPANS_MAX):
        made.on_leased(SESSION, (Span(100 + 2 * at, 101 + 2 * at, 0),))
    assert len(made.trails[SESSION].spans) == SPANS_MAX
    made.on_returned(SESSION)
    assert not made.trails


def test_a_new_leader_begins_with_what_is_held():
    made = ReadingTrails(SwarmState(4), 4, 2)
    made.state.leases.held[SESSION] = [Span(10, 12, 3)]
    assert places(made, push(made, 0, 11, 1)) == [(10, 3), (11, 0)]


def test_the_blocks_of_what_was_read():
    made = trails(Span(10, 13, 3), Span(40, 41, 0))
    read = push(made, 0, 40, 2)
    assert made.positions(SESSION, read) == {10, 11, 12, 40}
