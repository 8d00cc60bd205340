"""A table for thousands of rows: only visible lines are made, cursor and sorting are kept.

Rows have keys. When new rows come the cursor stays on its key, wherever that is sorted to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.text.layout import fit_plain
from tui.text.paint import Paint

Row = TypeVar("Row")
GAP_CELLS = 1
GAP = " " * GAP_CELLS
FLEX_CELLS_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """One column, and how to say and sort a row in it."""

    key: str
    title: str
    width: int
    say: Callable[[Row], str]
    rank: Callable[[Row], Any] | None = None
    """Order within the column; None where sorting makes no sense."""
    style: Callable[[Row, Paint], str] | None = None
    is_right: bool = False
    is_flexible: bool = False
    """Takes the width that is left."""
    is_falling: bool = False
    """Sorted with the greatest first."""
    importance: int = 0
    """Columns of the least importance are left out first where there is no room."""


def fitting(columns: Sequence[Column[Row]], room: int) -> list[Column[Row]]:
    """The most important columns for which there is room."""
    chosen = list(columns)
    while len(chosen) > 1 and _taken(chosen) > room:
        chosen.remove(min(chosen, key=lambda one: one.importance))
    return chosen


def _taken(columns: Sequence[Column[Row]]) -> int:
    return sum(one.width + GAP_CELLS for one in columns) - GAP_CELLS


class Roster(ScrollView, Generic[Row], can_focus=True):
    """The table."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"roster--head", "roster--cursor", "roster--note"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Row up", show=False, id="roster.up"),
        Binding("down,j", "move(1)", "Row down", show=False, id="roster.down"),
        Binding("pageup", "turn(-1)", "Page up", show=False, id="roster.page-up"),
        Binding("pagedown", "turn(1)", "Page down", show=False, id="roster.page-down"),
        Binding("home,g", "move(-1000000)", "First row", show=False, id="roster.first"),
        Binding("end,G", "move(1000000)", "Last row", show=False, id="roster.last"),
        Binding("enter", "choose", "Details of the row", show=False, id="roster.choose"),
        Binding("s", "sort(1)", "Sort by the next column", show=False, id="roster.sort"),
        Binding("S", "sort(-1)", "Sort by the column before", show=False, id="roster.sort-back"),
        Binding("o", "reverse", "Reverse the order", show=False, id="roster.reverse"),
    ]

    @dataclass
    class Chosen(Message):
        """The viewer wants to know more about a row."""

        roster: Roster[Any]
        key: str

    @dataclass
    class Moved(Message):
        """The cursor is on another row now."""

        roster: Roster[Any]

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        key_of: Callable[[Row], str],
        *,
        id: str,
        sort: str = "",
        empty: str = "Nothing to show.",
        is_growing: bool = False,
    ) -> None:
        """is_growing: rows are added at the top, and a viewer who scrolled down must not lose
        what they read."""
        super().__init__(id=id)
        self._is_growing = is_growing
        self.paint = Paint()
        self.columns = list(columns)
        self.sort = sort
        """Key of the column that orders the rows; empty for the order in which they come."""
        self.is_reversed = False
        self.cursor_key = ""
        self.rows: list[Row] = []
        """As shown."""
        self._empty = self._empty_usually = empty
        self._key_of = key_of
        self._given: Sequence[Row] = ()
        self._note = ""
        self._drawn: list[Strip] = []
        # Asking the stylesheet takes longer than making a line: once for each frame it is.
        self._base = Style()
        self._cursor_base = Style()
        self._drawn_for: tuple[object, ...] = ()
        self._widths: list[tuple[Column[Row], int]] = []
        self._widths_for = -1

    def show(self, rows: Sequence[Row], paint: Paint, *, note: str = "", empty: str = "") -> None:
        """Shows these rows.

        note: what the table leaves out, told in its last line; empty: why there are no rows.
        """
        self._empty = empty or self._empty_usually
        self._given = rows
        self.paint = paint
        self._note = note
        self._arrange()

    def show_columns(self, columns: Sequence[Column[Row]]) -> None:
        """Shows these from now on."""
        self.columns = list(columns)
        self._widths_for = -1
        self._arrange()

    def _arrange(self) -> None:
        was_visible = self._is_visible(self.cursor)
        place = self.cursor
        top = self.scroll_offset.y
        top_key = self._key_of(self.rows[top]) if 0 < top < len(self.rows) else ""
        rows = list(self._given)
        column = next((one for one in self.columns if one.key == self.sort), None)
        if column is not None and column.rank is not None:
            rows.sort(key=self._key_of)
            rows.sort(key=column.rank, reverse=column.is_falling != self.is_reversed)
        elif self.is_reversed:
            rows.reverse()
        self.rows = rows
        if self.cursor_key and self.cursor < 0 and rows:
            self.cursor_key = self._key_of(rows[min(max(place, 0), len(rows) - 1)])
        self.virtual_size = Size(max(self.size.width, 1), len(rows) + 1 + self._feet)
        if self._is_growing and top_key:
            self._keep_at_top(top_key)
        elif was_visible:
            self._reveal()
        self._refresh_changed()

    def _refresh_changed(self) -> None:
        """Draws those visible lines anew that are not what they were."""
        self._base = self.rich_style
        self._cursor_base = self.get_component_rich_style("roster--cursor")
        made = [self._line(y) for y in range(self.size.height)]
        drawn, self._drawn = self._drawn, made
        self._drawn_for = self._circumstances()
        if len(made) != len(drawn):
            self.refresh()
            return
        for y, (now, before) in enumerate(zip(made, drawn, strict=True)):
            if now != before:
                self.refresh(Region(0, y, self.size.width, 1))

    def _keep_at_top(self, key: str) -> None:
        for number, row in enumerate(self.rows):
            if self._key_of(row) == key:
                self.scroll_to(y=number, animate=False)
                return

    @property
    def cursor(self) -> int:
        """Place of the cursor's row; -1 if there is none."""
        if not self.cursor_key:
            return -1
        for number, row in enumerate(self.rows):
            if self._key_of(row) == self.cursor_key:
                return number
        return -1

    def _is_visible(self, number: int) -> bool:
        return 0 <= number - self.scroll_offset.y < self._rows_high

    @property
    def _rows_high(self) -> int:
        return max(self.scrollable_content_region.height - 1 - self._feet, 1)

    @property
    def _feet(self) -> int:
        return 1 if self._note else 0

    def _reveal(self) -> None:
        number = self.cursor
        if number < 0 or self._is_visible(number):
            return
        top = number if number < self.scroll_offset.y else number - self._rows_high + 1
        self.scroll_to(y=top, animate=False)

    def _layout(self) -> list[tuple[Column[Row], int]]:
        """The columns for which there is room, with their widths."""
        room = self.scrollable_content_region.width
        if room == self._widths_for:
            return self._widths
        chosen = fitting(self.columns, room)
        left = min(max(room - _taken(chosen), 0), FLEX_CELLS_MAX)
        flexible = [one for one in chosen if one.is_flexible][-1:]
        self._widths = [(one, one.width + (left if one in flexible else 0)) for one in chosen]
        self._widths_for = room
        return self._widths

    def on_resize(self, event: events.Resize) -> None:
        """Other columns may fit now."""
        self._arrange()

    def render_line(self, y: int) -> Strip:
        """The head, or one visible row."""
        is_drawn = y < len(self._drawn) and self._drawn_for == self._circumstances()
        return self._drawn[y] if is_drawn else self._line(y)

    def _circumstances(self) -> tuple[object, ...]:
        """What else than the rows decides how lines look."""
        return (self.scroll_offset, self.size, self.cursor_key, self._base)

    def _line(self, y: int) -> Strip:
        width = self.size.width
        base = self._base
        if y == 0:
            return self._head().crop_extend(0, width, base)
        number = self.scroll_offset.y + y - 1
        is_foot = bool(self._note) and y == self.size.height - 1
        if number < len(self.rows) and not is_foot:
            is_cursor = bool(self.cursor_key) and self._key_of(self.rows[number]) == self.cursor_key
            return self._row(self.rows[number], is_cursor=is_cursor).adjust_cell_length(width, base)
        text = self._empty if not self.rows and y == 1 else ""
        if is_foot:
            text = self._note
        quiet = base + self.get_component_rich_style("roster--note", partial=True)
        return Strip([Segment(text, quiet)]).adjust_cell_length(width, base)

    def _head(self) -> Strip:
        style = self.get_component_rich_style("roster--head")
        pieces = []
        for column, width in self._layout():
            title = column.title
            if column.key == self.sort:
                title += "▼" if column.is_falling != self.is_reversed else "▲"
            pieces.append(fit_plain(title, width, is_right=column.is_right))
        strip = Strip([Segment(GAP.join(pieces), style)])
        return strip.adjust_cell_length(self.size.width, style)

    def _row(self, row: Row, *, is_cursor: bool) -> Strip:
        base = self._cursor_base if is_cursor else self._base
        segments, plain, cells = [], "", 0
        for column, width in self._layout():
            text = fit_plain(column.say(row), width, is_right=column.is_right)
            cells += width + GAP_CELLS
            if column.style is not None and (word := column.style(row, self.paint)):
                # Cells of one style are one segment: each costs the screen as much as a long one.
                segments += [Segment(plain, base)] if plain else []
                segments.append(Segment(text, base + Style.parse(word)))
                plain = GAP
            else:
                plain += text + GAP
        segments.append(Segment(plain, base))
        return Strip(segments, cells).adjust_cell_length(self.size.width, base)

    def on_click(self, event: events.Click) -> None:
        """A click on the head sorts, one on a row moves the cursor, a second one chooses it."""
        if event.y == 0:
            self._sort_at(event.x)
            return
        number = self.scroll_offset.y + event.y - 1
        if number < len(self.rows):
            key = self._key_of(self.rows[number])
            if key == self.cursor_key:
                self.action_choose()
            self.cursor_key = key
            self.refresh()
            self.post_message(self.Moved(self))

    def _sort_at(self, x: int) -> None:
        start = 0
        for column, width in self._layout():
            if start <= x < start + width + GAP_CELLS and column.rank is not None:
                self.sort_by(column.key)
            start += width + GAP_CELLS

    def sort_by(self, key: str) -> None:
        """Orders by this column, or the other way round if it does already."""
        self.is_reversed = not self.is_reversed if key == self.sort else False
        self.sort = key
        self._arrange()

    def action_move(self, rows: int) -> None:
        if not self.rows:
            return
        place = self.cursor
        start = place if place >= 0 else self.scroll_offset.y - (1 if rows > 0 else 0)
        target = min(max(start + rows, 0), len(self.rows) - 1)
        self.cursor_key = self._key_of(self.rows[target])
        self._reveal()
        self.refresh()
        self.post_message(self.Moved(self))

    def action_turn(self, pages: int) -> None:
        """Moves the cursor by what is visible at once."""
        self.action_move(pages * max(self._rows_high - 1, 1))

    def action_choose(self) -> None:
        """Asks for more about the row under the cursor."""
        if self.cursor >= 0:
            self.post_message(self.Chosen(self, self.cursor_key))

    def action_sort(self, direction: int) -> None:
        """Orders by the next visible column."""
        keys = [one.key for one, _ in self._layout() if one.rank is not None]
        if keys:
            place = keys.index(self.sort) + direction if self.sort in keys else 0
            self.sort = keys[place % len(keys)]
            self.is_reversed = False
            self._arrange()

    def action_reverse(self) -> None:
        self.is_reversed = not self.is_reversed
        self._arrange()
