"""Small dialogs: confirm something, choose how long to pause, read something in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Label, OptionList, Static
from textual.widgets.option_list import Option

PAUSES: tuple[tuple[str, float | None], ...] = (
    ("15 minutes", 900.0),
    ("1 hour", 3600.0),
    ("2 hours", 7200.0),
    ("until resumed", None),
)


class Confirm(ModalScreen[bool]):
    """Asks whether to do something that cannot be taken back; the safe answer is in focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape,q", "answer(False)", "No", id="confirm.no"),
        Binding("left,right,tab", "other", "Other button", show=False, id="confirm.other"),
    ]

    def __init__(self, question: str, yes: str) -> None:
        super().__init__()
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(Text(self._question), classes="dialog-text")
            with Horizontal(classes="dialog-buttons"):
                yield Button(f"y  {self._yes}", id="yes", compact=True, variant="error")
                yield Button("n  cancel", id="no", compact=True)

    def on_mount(self) -> None:
        """Enter must not do harm by accident."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)

    def action_other(self) -> None:
        """Moves between the two buttons."""
        self.focus_next()


class PauseMenu(ModalScreen[tuple[float | None] | None]):
    """Asks for how long to pause: a tuple with seconds, or with None for until resumed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(place), f"take({place - 1})", words, show=False, id=f"pause.{place}")
            for place, (words, _) in enumerate(PAUSES, 1)
        ),
        Binding("escape,q", "give_up", "Do not pause", id="pause.cancel"),
    ]

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(Text(f"Pause {self._who} for how long?"), classes="dialog-text")
            yield OptionList(
                *(Option(f"{place}  {words}") for place, (words, _) in enumerate(PAUSES, 1)),
                compact=True,
            )
            yield Label(Text("Enter or a digit chooses, Esc cancels."), classes="dialog-note")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Chosen with Enter or the mouse."""
        self.action_take(event.option_index)

    def action_take(self, place: int) -> None:
        """Chosen with its digit."""
        self.dismiss((PAUSES[place][1],))

    def action_give_up(self) -> None:
        """Nothing is paused."""
        self.dismiss(None)


class Page(ModalScreen[None]):
    """Shows lines of text: a learner, an event, the help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "leave", "Close", id="page.close"),
        Binding("up,k", "scroll(-1)", "Scroll up", show=False, id="page.up"),
        Binding("down,j", "scroll(1)", "Scroll down", show=False, id="page.down"),
    ]

    def __init__(self, title: str, made: Callable[[], Sequence[Text]]) -> None:
        """made: called for every refresh, so that what is shown stays true."""
        super().__init__()
        self._title = title
        self._made = made

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog page"):
            yield Label(Text(self._title, style="bold"), classes="dialog-text")
            with VerticalScroll(classes="page-body"):
                yield Static(Text("\n").join(self._made()), id="page-text")
            yield Label(Text("Esc closes."), classes="dialog-note")

    def renew(self) -> None:
        """Draws what is true now."""
        self.query_one("#page-text", Static).update(Text("\n").join(self._made()))

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
