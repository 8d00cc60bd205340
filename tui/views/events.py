"""View 6: what the daemons told, newest first."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from tui.filters import matches
from tui.frames.frame import Told
from tui.text import fmt, layout
from tui.text.paint import Paint
from tui.views.roster import Column


def key_of(event: Told) -> str:
    """Tells events apart, across daemons and their restarts."""
    return f"{event.daemon}/{event.number}/{event.at_s}"


def text_of(event: Told) -> str:
    """What a filter looks at."""
    return f"{event.kind} {event.text} {event.daemon} {event.level}"


def pick(events: Iterable[Told], wanted: str, *, is_faults: bool) -> list[Told]:
    """Those that pass the filter, newest first."""
    found = [
        event
        for event in events
        if (not is_faults or event.is_fault) and (not wanted or matches(wanted, text_of(event)))
    ]
    return found[::-1]


def _style(event: Told, paint: Paint) -> str:
    if event.is_fault:
        return paint.bad
    return "" if event.level != "debug" else paint.quiet


def _mark(event: Told) -> str:
    return "FAULT" if event.is_fault else event.level


COLUMNS: tuple[Column[Told], ...] = (
    Column(
        key="time", title="time", width=8, importance=100,
        say=lambda one: fmt.clock(one.at_s), rank=lambda one: one.at_s, is_falling=True,
    ),
    Column(
        key="mark", title="", width=7, importance=90, style=_style,
        say=_mark, rank=lambda one: (not one.is_fault, one.level),
    ),
    Column(
        key="daemon", title="from", width=16, importance=10,
        say=lambda one: fmt.clean(one.daemon, 40), rank=lambda one: one.daemon,
    ),
    Column(
        key="kind", title="what", width=18, importance=20,
        say=lambda one: fmt.clean(one.kind, 40), rank=lambda one: one.kind,
    ),
    Column(
        key="text", title="", width=52, importance=95, is_flexible=True, style=_style,
        say=lambda one: fmt.clean(one.text, 400),
    ),
)  # fmt: skip


def details(event: Told, width: int, paint: Paint) -> list[Text]:
    """One event in full."""
    return layout.pairs(
        [
            ("time", fmt.clock(event.at_s)),
            ("from", fmt.clean(event.daemon, 80)),
            ("what", fmt.clean(event.kind, 80)),
            ("level", Text(_mark(event), style=paint.bad if event.is_fault else "")),
            ("text", fmt.clean(event.text, 2000)),
        ],
        width,
        paint,
    )
