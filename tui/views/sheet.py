"""A page of text lines that scrolls. Lines are replaced in place: nothing is laid out anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.frames.scene import Scene

Renderer = Callable[[Scene, int, int], list[Text]]
"""Scene, width, height -> lines no wider than that."""


class Sheet(ScrollView, can_focus=True):
    """Shows what a renderer makes of a scene."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Scroll up", show=False, id="sheet.up"),
        Binding("down,j", "scroll_down", "Scroll down", show=False, id="sheet.down"),
        Binding("pageup", "page_up", "Page up", show=False, id="sheet.page-up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="sheet.page-down"),
    ]

    def __init__(self, renderer: Renderer, *, id: str) -> None:
        super().__init__(id=id)
        self._renderer = renderer
        self._scene: Scene | None = None
        self._lines: list[Text] = []
        self._base = Style()

    def show(self, scene: Scene) -> None:
        """Draws this scene from now on."""
        self._scene = scene
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """The width decides what the lines are."""
        self._draw()

    def _draw(self) -> None:
        width, height = self.scrollable_content_region.size
        if self._scene is None or width < 1:
            return
        made = self._renderer(self._scene, width, height)
        before, self._lines = self._lines, made
        # Asking the stylesheet takes longer than making a line: once for each frame it is.
        was, self._base = self._base, self.rich_style
        if self._base != was or len(made) != len(before) or self.virtual_size.width != width:
            self.virtual_size = Size(width, len(made))
            self.refresh()
            return
        top = self.scroll_offset.y
        for number in range(top, min(top + self.size.height, len(made))):
            # Terminals over SSH get only what is new.
            if made[number] != before[number]:
                self.refresh_line(number)

    def render_line(self, y: int) -> Strip:
        number = self.scroll_offset.y + y
        base = self._base
        width = self.size.width
        if number >= len(self._lines):
            return Strip.blank(width, base)
        segments = self._lines[number].render(self.app.console)
        strip = Strip(Segment.apply_style((one for one in segments if one.text != "\n"), base))
        return strip.crop_extend(0, width, base)
