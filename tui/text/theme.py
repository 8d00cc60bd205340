"""Colours, and the filter of a screen of plain characters.

Colour only adds: whatever it says is also said by a letter or a word.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from tui.text.paint import Paint
from tui.text.plain import plain


def paint_of(theme: Theme) -> Paint:
    """The styles that go with a theme."""
    if theme.name == "no-colour":
        return Paint("default", "bold", "bold reverse", "default", "bold", "bold", "default")
    return Paint(
        good=theme.success or "green",
        warn=theme.warning or "yellow",
        bad=f"bold {theme.error or 'red'}",
        quiet=str(theme.variables.get("shoal-quiet", "dim")),
        accent=theme.accent or "cyan",
        chart=theme.primary,
        ink=theme.background or "default",
    )


THEMES = (
    Theme(
        name="deep-water",
        primary="#4fb3d9",
        secondary="#7d9cc0",
        accent="#c4a7f0",
        success="#63d4a0",
        warning="#e5c07b",
        error="#ff7b72",
        foreground="#d6dee6",
        background="#0e151c",
        surface="#131c25",
        panel="#1c2833",
        dark=True,
        variables={"shoal-quiet": "#8296a8", "block-cursor-background": "#2b4a5e"},
    ),
    Theme(
        name="daylight",
        primary="#0a6791",
        secondary="#50657a",
        accent="#6a3fa0",
        success="#006b55",
        warning="#8a5a00",
        error="#b3261e",
        foreground="#1b232b",
        background="#fbfbf8",
        surface="#f1f2ee",
        panel="#e2e5e0",
        dark=False,
        variables={"shoal-quiet": "#5a6773", "block-cursor-background": "#b9d9e6"},
    ),
    Theme(
        name="high-contrast",
        primary="#00e5ff",
        secondary="#ffffff",
        accent="#ffff00",
        success="#00ff5f",
        warning="#ffff00",
        error="#ff5f5f",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#1a1a1a",
        dark=True,
        variables={"shoal-quiet": "#d0d0d0", "block-cursor-background": "#0000d0"},
    ),
    Theme(
        name="no-colour",
        primary="#ffffff",
        secondary="#ffffff",
        accent="#ffffff",
        success="#ffffff",
        warning="#ffffff",
        error="#ffffff",
        foreground="#e0e0e0",
        background="#000000",
        surface="#000000",
        panel="#262626",
        dark=True,
        variables={"shoal-quiet": "#e0e0e0", "block-cursor-background": "#4a4a4a"},
    ),
)
THEME = THEMES[0].name


class AsciiFilter(LineFilter):
    """Lets nothing but ASCII reach the terminal, whichever widget drew it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments, each as wide as before."""
        return [
            segment if segment.text.isascii() else Segment(plain(segment.text), *segment[1:])
            for segment in segments
        ]
