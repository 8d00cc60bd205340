"""The command line after `:` — parsing only; the app does what it says."""

from __future__ import annotations

import re
from typing import NamedTuple

from protocol.errors import UserError
from tui.views.view_bar import VIEWS

ACTIONS = ("pause", "resume", "finish", "stop", "filter", "focus", "sort", "theme", "link")
ALIASES = {"q": "quit", "h": "help", "?": "help", "quit": "quit", "help": "help"}
PAUSE_S_MAX = 366 * 86_400.0

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)?")
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class Command(NamedTuple):
    """A verb and what follows it."""

    verb: str
    """A name of a view, one of ACTIONS, quit or help."""
    rest: str


def parse(text: str) -> Command:
    """The command meant; beginnings of words suffice where they are clear. Raises UserError."""
    word, _, rest = text.strip().removeprefix(":").strip().partition(" ")
    word = word.casefold()
    if word in ALIASES:
        return Command(ALIASES[word], rest.strip())
    names = (*VIEWS, *ACTIONS)
    if word.isdigit() and 1 <= int(word) <= len(VIEWS):
        return Command(list(VIEWS)[int(word) - 1], "")
    meant = [name for name in names if name == word] or [
        name for name in names if word and name.startswith(word)
    ]
    if len(meant) == 1:
        return Command(meant[0], rest.strip())
    if meant:
        raise UserError(f"{word!r} could be {', '.join(meant)}.")
    raise UserError(f"There is no command {word!r}. Press ? for a list.")


def seconds(text: str) -> float | None:
    """15m, 2h, 90s, 1.5 h as seconds; None for an empty text. Raises UserError."""
    if not text.strip():
        return None
    found = _DURATION.fullmatch(text.strip().casefold())
    if found is None:
        raise UserError(f"{text!r} is not a duration. Write 15m, 2h or 1d, or nothing.")
    length_s = float(found[1]) * _UNITS[found[2] or "m"]
    if not 0 < length_s <= PAUSE_S_MAX:
        raise UserError("A pause lasts between a second and a year; without a time it never ends.")
    return length_s


def suggestions(themes: list[str]) -> list[str]:
    """What the command line proposes."""
    return [
        *VIEWS,
        *ACTIONS,
        "pause 15m",
        "pause 1h",
        "pause 2h",
        *(f"theme {name}" for name in themes),
        "quit",
        "help",
    ]
