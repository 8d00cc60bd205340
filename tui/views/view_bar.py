"""The bar of views, and what they are called."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.widget import Widget

from tui.messages import ViewWanted
from tui.text.paint import Paint

VIEWS = {
    "overview": "Overview",
    "peers": "Peers",
    "fragments": "Fragments",
    "node": "This node",
    "syncer": "Syncer",
    "events": "Events",
    "contribution": "Contribution",
}
"""Name for the command line, title; their digits are their places."""

SHORT = {"node": "Node"}
ROOMY = 84


class ViewBar(Widget):
    """The views by digit; the one that is shown stands in brackets."""

    def __init__(self) -> None:
        super().__init__(id="views")
        self._view = "overview"
        self._paint = Paint()
        self._spans: list[tuple[int, int, str]] = []

    def show(self, view: str, paint: Paint) -> None:
        """Marks this view."""
        if (view, paint) != (self._view, self._paint):
            self._view, self._paint = view, paint
            self.refresh()

    def render(self) -> Text:
        """One line, at most 78 cells in a terminal of 80."""
        text = Text(no_wrap=True)
        self._spans = []
        for number, (name, title) in enumerate(VIEWS.items(), 1):
            is_chosen = name == self._view
            start = len(text)
            text.append("[" if is_chosen else " ")
            text.append(str(number), style=self._paint.accent)
            short = SHORT.get(name, title) if self.size.width < ROOMY else title
            text.append(f" {short}", style="bold reverse" if is_chosen else "")
            text.append("]" if is_chosen else " ")
            self._spans.append((start, len(text), name))
        return text

    def on_click(self, event: events.Click) -> None:
        """Asks for the view under the mouse."""
        for start, end, name in self._spans:
            if start <= event.x < end:
                self.post_message(ViewWanted(name))
