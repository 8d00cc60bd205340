"""The help page: made from the bindings themselves, so that it cannot lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.keys import format_key

from tui.text import layout
from tui.text.paint import Paint

KEY_CELLS = 24

COMMANDS = {
    "overview … contribution": "go to a view",
    "pause [15m|2h|…]": "pause the learner, without a time until resumed",
    "resume": "let the learner go on",
    "finish": "push what there is, then leave",
    "stop": "stop the daemon in focus",
    "filter WORDS": "as with /",
    "focus WORDS": "look at the daemon with these words in its name",
    "sort COLUMN": "order the table",
    "theme NAME": "change the colours",
    "link": "the command that others join with",
    "help, quit": "as with ? and q",
}

Group = tuple[str, Iterable[BindingType]]


def page(groups: Sequence[Group], paint: Paint, *, has_recording: bool) -> list[Text]:
    """All keys by group, then the commands."""
    made: list[Text] = []
    for title, bindings in groups:
        made += [Text(title, style=f"bold {paint.accent}")]
        for one in bindings:
            if isinstance(one, Binding) and one.description:
                made.append(_row(_keys(one), one.tooltip or one.description, paint))
        made.append(Text())
    made.append(Text("Commands, after :", style=f"bold {paint.accent}"))
    made += [_row(name, words, paint) for name, words in COMMANDS.items()]
    if not has_recording:
        made += [Text(), Text("Keys of a recording work with --replay FILE.", style=paint.quiet)]
    return made


def _keys(binding: Binding) -> str:
    if binding.key_display:
        return binding.key_display
    return ", ".join(format_key(key) for key in binding.key.split(","))


def _row(left: str, right: str, paint: Paint) -> Text:
    row = Text()
    row.append(layout.fit_plain(left, KEY_CELLS), style=paint.strong)
    row.append(" " + right)
    return row
