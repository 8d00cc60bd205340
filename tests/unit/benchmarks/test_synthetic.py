"""What synthetic learners say of the text that they would have read must be true."""

from __future__ import annotations

from benchmarks.synthetic import Clockwork
from protocol.log.records import Span
from protocol.messages import Cursor


def clockwork(*spans: Span, batch: int = 3) -> Clockwork:
    made = Clockwork(batch, sequence_tokens=10, block_sequences=4)
    made.spans.extend(spans)
    return made


def test_the_cursor_is_at_the_next_sequence_that_was_not_read():
    clock = clockwork(Span(5, 7, 1))
    seen = []
    while clock.step(0.1):
        seen.append(clock.cursor)
    assert seen == [Cursor(6, 0), Cursor(6, 3)]
    assert (clock.local_step, clock.tokens) == (2, 60)


def test_a_step_reads_on_in_the_next_span():
    clock = clockwork(Span(1, 2, 2), Span(9, 10, 0))
    assert clock.step(0.1)
    assert clock.cursor == Cursor(9, 1)
    assert clock.step(0.1)
    assert (list(clock.spans), clock.cursor) == ([], Cursor(10, 0))


def test_nothing_is_read_without_enough_text():
    clock = clockwork(Span(1, 2, 2))
    assert not clock.step(0.1)
    assert (clock.cursor, clock.local_step) == (Cursor(1, 2), 0)
