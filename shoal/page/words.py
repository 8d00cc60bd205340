"""Text of others as a page may show it: no characters that move or hide text, nothing that tells
where somebody's machine is or what lies on it.

Escaping for HTML is the template's; these are plain texts.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import Final

ADDRESS: Final = "(address withheld)"
PATH: Final = "(path withheld)"

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of what no reader sees: controls, marks of direction, surrogates, and what
has no meaning yet."""

_ADDRESS = re.compile(
    r"\[?(?P<host>[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*|\d{1,3}(?:\.\d{1,3}){3})\]?"
    r"(?P<behind>/\d{1,3}\b|:\d{1,5}\b)?"
)
_PATH = re.compile(r"(?<![\w)/.])~?/[^\s,;'\"()]*[^\s,;'\"().:!?]")
_BLANKS = re.compile(r"\s+")


def line(text: str, chars_max: int) -> str:
    """One line of what can be seen, and not longer; with … where it was."""
    seen = _BLANKS.sub(" ", _seen(text[: 4 * chars_max])).strip()
    return seen if len(seen) <= chars_max else seen[: chars_max - 1].rstrip() + "…"


def paragraphs(text: str, chars_max: int) -> list[str]:
    """The same of a longer text, by paragraphs: what lies between empty lines."""
    broken = text.replace("\r\n", "\n").replace("\r", "\n")[:chars_max]
    found = (line(one, chars_max) for one in re.split(r"\n[ \t]*\n", broken))
    return [one for one in found if one]


def lines(text: str, chars_max: int) -> str:
    """The same with its line breaks, for text that a model wrote."""
    broken = text.replace("\r\n", "\n").replace("\r", "\n")[: chars_max + 1]
    seen = "\n".join(_seen(one.replace("\t", "    ")) for one in broken.split("\n"))
    return seen if len(seen) <= chars_max else seen[: chars_max - 1] + "…"


def public(sentence: str, chars_max: int) -> str:
    """A sentence of a daemon about itself, for strangers: without addresses and paths."""
    # Paths first: an address may be a part of one, such as /ip4/203.0.113.7/tcp/4100.
    return line(_ADDRESS.sub(_withheld, _PATH.sub(PATH, sentence)), chars_max)


def _withheld(found: re.Match[str]) -> str:
    try:
        ipaddress.ip_address(found["host"].rstrip("."))
    except ValueError:
        return found[0]  # The time of day is written with colons too.
    return ADDRESS + ("." if found[0].endswith(".") else "")


def _seen(text: str) -> str:
    return "".join(
        " " if char in "\t\n\r" else char
        for char in unicodedata.normalize("NFC", text)
        if char in "\t\n\r" or unicodedata.category(char) not in _HIDDEN
    )
