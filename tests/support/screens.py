"""Reads what stands on the screen of an app under test, cell by cell."""

from __future__ import annotations

from textual.app import App


def screen_lines(app: App) -> list[str]:
    """The characters on screen, one string a line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    return [strip.text.ljust(width)[:width] for strip in strips[:height]]


def screen_text(app: App) -> str:
    """All lines."""
    return "\n".join(line.rstrip() for line in screen_lines(app))
