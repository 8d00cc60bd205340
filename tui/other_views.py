"""The views behind the first: imported, made and filled once somebody looks at them.

What a terminal shows first should be there before anybody wonders, and most see little else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rich.text import Text
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from tui.frames.scene import Scene
from tui.screens.dialogs import Page
from tui.views import contribution, events, facts, fragments, peers, syncer, this_node
from tui.views.roster import Roster
from tui.views.sheet import Renderer, Sheet

PAGE_WIDTH: Final = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the viewer wants to see of a view."""

    filter: str = ""
    is_faults: bool = False
    is_every_event: bool = False
    """Also those that come many times a second, with the daemons' own words for them."""
    is_roomy: bool = False
    """There is room for a pane beside the table."""


class View(Protocol):
    """One view."""

    @property
    def widget(self) -> Widget:
        """All of it."""

    @property
    def focus(self) -> Widget:
        """Which part of it has the keys."""

    def draw(self, now: Scene, wanted: Wanted) -> None:
        """Shows the scene."""

    def on_cursor(self, now: Scene) -> None:
        """The cursor of its table is on another row."""

    def page(self, key: str, scene: Callable[[], Scene]) -> Page | None:
        """All that is known of the row with this key."""


class PageView:
    """A page of text."""

    def __init__(self, name: str, renderer: Renderer) -> None:
        self.widget = self.focus = Sheet(renderer, id=name)

    def draw(self, now: Scene, wanted: Wanted) -> None:
        self.widget.show(now)

    def on_cursor(self, now: Scene) -> None:
        """It has no table."""

    def page(self, key: str, scene: Callable[[], Scene]) -> Page | None:
        return None


class PeersView:
    """The table of learners, and one of them in full beside it."""

    def __init__(self) -> None:
        self.focus: Roster[peers.PeerLine] = Roster(
            peers.COLUMNS, peers.key_of, id="learners", sort="name"
        )
        self._pane = Sheet(self._lines, id="peer-pane")
        self.widget = Horizontal(self.focus, self._pane, id="peers")

    def _lines(self, now: Scene, width: int, height: int) -> list[Text]:
        return peers.pane(self.focus.rows, self.focus.cursor_key, width, height, now.paint)

    def draw(self, now: Scene, wanted: Wanted) -> None:
        every = peers.peer_lines(now)
        shown = peers.pick(every, wanted.filter, is_faults=wanted.is_faults)
        note = now.stale(now.leader) or _left_out(len(shown), len(every), wanted)
        note = note or peers.unnamed_note(now.leader) or peers.left_note(shown)
        self.focus.show(shown, now.paint, note=note, empty=peers.empty_note(now))
        if wanted.is_roomy:
            self._pane.show(now)

    def on_cursor(self, now: Scene) -> None:
        self._pane.show(now)

    def page(self, key: str, scene: Callable[[], Scene]) -> Page:
        def lines() -> list[Text]:
            now = scene()
            line = next((one for one in peers.peer_lines(now) if one.peer.key == key), None)
            if line is None:
                return [Text("The syncer no longer knows this learner.")]
            return peers.details(line, PAGE_WIDTH, now.paint)

        return Page("Learner", lines)


class EventsView:
    """What happened."""

    def __init__(self) -> None:
        self._columns = events.FEW
        self.widget = self.focus = Roster(
            self._columns, events.key_of, id="events", is_growing=True
        )

    def draw(self, now: Scene, wanted: Wanted) -> None:
        columns = events.COLUMNS if wanted.is_every_event else events.FEW
        if columns is not self._columns:
            self._columns = columns
            self.widget.show_columns(columns)
        told = now.history.events
        every = events.lines(
            told if wanted.is_every_event else facts.news(now), facts.names_of(now)
        )
        found = events.pick(every, wanted.filter, is_faults=wanted.is_faults)
        note = _left_out(len(found), len(every), wanted)
        note = note or events.note(len(every), len(told), is_every=wanted.is_every_event)
        self.widget.show(found, now.paint, note=note)

    def on_cursor(self, now: Scene) -> None:
        """Nothing stands beside it."""

    def page(self, key: str, scene: Callable[[], Scene]) -> Page | None:
        line = next((one for one in self.widget.rows if events.key_of(one) == key), None)
        if line is None:
            return None
        return Page("Event", lambda: events.details(line, PAGE_WIDTH, scene().paint))


class ContributionView:
    """The learners of this machine, and the table of all contributors."""

    def __init__(self) -> None:
        self._own = Sheet(contribution.summary, id="own-share")
        self.focus: Roster[Any] = Roster(
            contribution.COLUMNS, contribution.key_of, id="leaders", sort="place"
        )
        self.widget = Vertical(self._own, self.focus, id="contribution")

    def draw(self, now: Scene, wanted: Wanted) -> None:
        self._own.show(now)
        every = contribution.places(now)
        shown = [
            one
            for one in every
            if peers.pick([one.line], wanted.filter, is_faults=wanted.is_faults)
        ]
        note = _left_out(len(shown), len(every), wanted)
        self.focus.show(shown, now.paint, note=note, empty=peers.empty_note(now))

    def on_cursor(self, now: Scene) -> None:
        """Nothing stands beside it."""

    def page(self, key: str, scene: Callable[[], Scene]) -> Page:
        return Page("Contributor", lambda: contribution.details(scene(), key, PAGE_WIDTH))


def _left_out(shown: int, found: int, wanted: Wanted) -> str:
    return peers.note(shown, found, wanted.filter, is_faults=wanted.is_faults)


_TABLES: dict[str, Callable[[], View]] = {
    "peers": PeersView,
    "events": EventsView,
    "contribution": ContributionView,
}
_PAGES: dict[str, Renderer] = {
    "fragments": fragments.render,
    "node": this_node.render,
    "syncer": syncer.render,
}


def made(name: str) -> View:
    """The view of this name."""
    return PageView(name, _PAGES[name]) if name in _PAGES else _TABLES[name]()
