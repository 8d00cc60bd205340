"""Colours: enough contrast in every theme (WCAG 2.2, AA), and states that differ without hue."""

from __future__ import annotations

import itertools

import pytest
from textual.color import Color

from tui.text.theme import THEMES, paint_of
from tui.views.picture import LIT, MARKS, OTHER_MARK

CONTRAST_MIN = 4.5
"""WCAG 2.2, success criterion 1.4.3: of text in its usual size."""

SHADES_APART = 0.1
"""Of the whole range, in lightness or in blue, for who sees red and green alike."""

GROUNDS = ("background", "surface", "panel")
INKS = ("good", "warn", "bad", "quiet", "accent", "chart")


def luminance(color: Color) -> float:
    """Relative luminance as WCAG defines it."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (one / 255 for one in color.rgb)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(ink: Color, ground: Color) -> float:
    low, high = sorted((luminance(ink), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


def color(style: str) -> Color:
    """The colour in a style such as `bold #ff7b72`."""
    return Color.parse(style.split()[-1])


COLOURED = [theme for theme in THEMES if theme.name != "no-colour"]


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_whatever_is_written_can_be_read_on_every_ground(theme):
    paint = paint_of(theme)
    inks = {name: color(getattr(paint, name)) for name in INKS}
    inks["foreground"] = Color.parse(theme.foreground)
    for name, ink in inks.items():
        for ground in GROUNDS:
            found = contrast(ink, Color.parse(getattr(theme, ground)))
            assert found >= CONTRAST_MIN, (name, ground, round(found, 2))


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_good_and_bad_differ_for_who_sees_no_red_and_green(theme):
    """Deuteranopia as Viénot, Brettel and Mollon simulate it (1999): red and green fall together,
    so what is left to tell states apart is lightness and blue."""
    paint = paint_of(theme)
    seen = []
    for name in ("good", "warn", "bad"):
        red, green, blue = (part / 255 for part in color(getattr(paint, name)).rgb)
        mixed = 0.292 * red + 0.708 * green
        seen.append((name, mixed, 0.0223 * (red - green) + blue))
    for (one, light, blue), (other, light2, blue2) in itertools.combinations(seen, 2):
        distance = max(abs(light - light2), abs(blue - blue2))
        assert distance >= SHADES_APART, (one, other, distance)


def test_every_state_has_a_shape_of_its_own_beside_its_colour():
    assert MARKS["training"] not in {MARKS["gone"], MARKS["paused"], OTHER_MARK, LIT}
    assert len({MARKS["training"], MARKS["gone"], MARKS["paused"], MARKS["left"], OTHER_MARK}) == 5
