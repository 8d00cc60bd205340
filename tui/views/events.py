"""View 6: what the daemons told, newest first.

First what says something to people, once, with names in the place of keys. What daemons tell each
other many times a second, and their own words for it, come with a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from tui.filters import matches
from tui.frames.frame import Told
from tui.text import fmt, layout
from tui.text.paint import Paint
from tui.views import facts
from tui.views.roster import Column


@dataclass(frozen=True, slots=True)
class Line:
    """An event, and what it says in words."""

    event: Told
    words: str


def key_of(line: Line) -> str:
    """Tells events apart, across daemons and their restarts."""
    event = line.event
    return f"{event.daemon}/{event.number}/{event.at_s}"


def _seen(line: Line) -> str:
    """What a filter looks at."""
    event = line.event
    return f"{event.kind} {event.text} {line.words} {event.daemon} {event.level}"


def lines(events: Iterable[Told], names: Mapping[str, str]) -> list[Line]:
    """The events in words."""
    return [Line(event, facts.named(event.text, names)) for event in events]


def pick(found: Sequence[Line], wanted: str, *, is_faults: bool) -> list[Line]:
    """Those that pass the filter, newest first."""
    return [
        line
        for line in reversed(found)
        if (not is_faults or line.event.is_fault) and (not wanted or matches(wanted, _seen(line)))
    ]


def note(found: int, told: int, *, is_every: bool) -> str:
    """How many smaller events are left out, and how to see them."""
    if is_every or told <= found:
        return ""
    return f"{told - found:,} smaller events are left out; e shows them"


def _style(line: Line, paint: Paint) -> str:
    if line.event.is_fault:
        return paint.bad
    return "" if line.event.level != "debug" else paint.quiet


def _mark(line: Line) -> str:
    return "FAULT" if line.event.is_fault else line.event.level


COLUMNS: tuple[Column[Line], ...] = (
    Column(
        key="time", title="time", width=8, importance=100,
        say=lambda one: fmt.clock(one.event.at_s), rank=lambda one: one.event.at_s, is_falling=True,
    ),
    Column(
        key="mark", title="", width=7, importance=90, style=_style,
        say=_mark, rank=lambda one: (not one.event.is_fault, one.event.level),
    ),
    Column(
        key="daemon", title="from", width=16, importance=10,
        say=lambda one: fmt.clean(one.event.daemon, 40), rank=lambda one: one.event.daemon,
    ),
    Column(
        key="kind", title="what", width=18, importance=20,
        say=lambda one: fmt.clean(one.event.kind, 40), rank=lambda one: one.event.kind,
    ),
    Column(
        key="text", title="", width=52, importance=95, is_flexible=True, style=_style,
        say=lambda one: fmt.clean(one.words, 400),
    ),
)  # fmt: skip


KIND = "kind"
FEW = tuple(one for one in COLUMNS if one.key != KIND)
"""Without the daemons' own word for what happened."""


def details(line: Line, width: int, paint: Paint) -> list[Text]:
    """One event in full."""
    event = line.event
    return layout.pairs(
        [
            ("time", fmt.clock(event.at_s)),
            ("from", fmt.clean(event.daemon, 80)),
            ("what", fmt.clean(event.kind, 80)),
            ("level", Text(_mark(line), style=paint.bad if event.is_fault else "")),
            ("text", fmt.clean(line.words, 2000)),
        ],
        width,
        paint,
    )
