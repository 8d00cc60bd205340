"""Which positions of published data a learner is leased: of one shard, as long as it has some.

Leases of many learners that took turns in one shard would have all of them fetch it. So each goes
on where its newest lease ends, and whoever has no such place begins at a shard that nobody reads.
What follows from the log alone is enough to tell: a new leader goes on the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.ids import SessionKey
from protocol.log.leases import LeaseBook
from protocol.log.permutation import TextOrder
from protocol.log.records import Span

FAR = 1 << 40
"""Positions behind the first that nobody ever had, which is more than are leased at once."""

Run = tuple[int, int]
"""Positions [start, stop) of one shard."""


def pick(leases: LeaseBook, session: SessionKey, blocks: int, order: TextOrder) -> tuple[Span, ...]:
    """The spans that a new lease of so many blocks would take, in reading order."""
    free = [*leases.returned, Span(leases.next_position, leases.next_position + FAR, 0)]
    others = {
        order.run(spans[-1].stop - 1)[0]
        for other, spans in leases.held.items()
        if other != session and spans
    }
    own = leases.held.get(session)
    run = order.run(own[-1].stop - 1) if own else None
    picked: list[Span] = []
    while blocks > 0:
        if run is None or not any(_inside(free, run)):
            run = _next_run(free, others, order)
        for span in list(_inside(free, run)):
            part = Span(span.start, min(span.stop, span.start + blocks), span.skip)
            free = _without(free, part)
            picked.append(part)
            blocks -= part.stop - part.start
            if not blocks:
                break
    return tuple(picked)


def _inside(free: list[Span], run: Run) -> Iterator[Span]:
    """What is free of a run, in order."""
    for span in free:
        start, stop = max(span.start, run[0]), min(span.stop, run[1])
        if start < stop:
            yield Span(start, stop, span.skip if start == span.start else 0)


def _next_run(free: list[Span], others: set[int], order: TextOrder) -> Run:
    """The first run with something free that nobody else reads, of the earliest pass that has
    something free at all; else the first that has."""
    first = free[0].start
    pass_ends = (first // order.blocks + 1) * order.blocks
    for span in free:
        at = span.start
        while at < min(span.stop, pass_ends):
            run = order.run(at)
            if run[0] not in others:
                return run
            at = run[1]
    return order.run(first)


def _without(free: list[Span], part: Span) -> list[Span]:
    """What is left free once a part of one of the spans is taken."""
    left: list[Span] = []
    for span in free:
        if span.start <= part.start < span.stop:
            if span.start < part.start:
                left.append(Span(span.start, part.start, span.skip))
            if part.stop < span.stop:
                left.append(Span(part.stop, span.stop, 0))
        else:
            left.append(span)
    return left
