"""The line at the bottom: a filter or a command."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input, Label

from tui.messages import Entered


class Prompt(Horizontal):
    """Hidden until it is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Give up the input", show=False, id="prompt.cancel")
    ]

    def __init__(self, commands: list[str]) -> None:
        super().__init__(id="prompt")
        self._commands = commands
        self._kind = "filter"

    def compose(self) -> ComposeResult:
        yield Label("/", id="prompt-label")
        yield Input(id="prompt-input", compact=True)

    def open(self, kind: str, text: str = "") -> None:
        """Asks for a filter or a command."""
        self._kind = kind
        self.query_one(Label).update("filter /" if kind == "filter" else "command :")
        field = self.query_one(Input)
        field.suggester = SuggestFromList(self._commands) if kind == "command" else None
        with field.prevent(Input.Changed):
            field.value = text
        field.cursor_position = len(text)
        self.display = True
        field.focus()

    def close(self) -> None:
        """Hides the line."""
        self.display = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """A filter works while it is typed."""
        event.stop()
        if self.display and self._kind == "filter":
            self.post_message(Entered("filter", event.value, is_final=False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accepts what was typed."""
        event.stop()
        self.close()
        self.post_message(Entered(self._kind, event.value, is_final=True))

    def action_cancel(self) -> None:
        """Takes nothing."""
        self.close()
        self.post_message(Entered(self._kind, "", is_final=True))
