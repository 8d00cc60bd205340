"""The loss curve as an SVG: numbers in, markup out, and no text of anybody's. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from tui.text import fmt

Point = tuple[int, int, float]
"""Global step, committed tokens, held-out loss in nats per token."""


class Size(NamedTuple):
    """Of a chart, in units that are about pixels where it is shown."""

    width: int
    height: int
    ticks: int
    """Along the bottom, about."""


WIDE: Final = Size(704, 300, 6)
NARROW: Final = Size(340, 260, 3)

_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 14, 18, 34
_CHAR: Final = 6.6
"""Width of a digit of a label, about."""


class _Scale(NamedTuple):
    """From values to places."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return self.begin + part * (self.end - self.begin)


def loss_chart(curve: Sequence[Point], best: Point | None, size: Size, name: str) -> str:
    """The chart as `<svg>`; name: a class of its own and part of the ids in it.

    Empty where nothing was measured yet.
    """
    points = [one for one in curve if math.isfinite(one[2])]
    if not points:
        return ""
    across, up = _scales(points, size)
    where = [(across.at(tokens), up.at(loss)) for _, tokens, loss in points]
    parts = [
        f'<svg class="chart {name}" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-labelledby="{name}-title">',
        f'<title id="{name}-title">{described(points, best)}</title>',
        *_grid(across, up, size),
        f'<path class="area" d="{_line(where)}V{size.height - _BOTTOM}H{where[0][0]:.1f}Z"/>',
        f'<path class="line" d="{_line(where)}"/>',
        *(_mark("point", x, y, 2.5) for x, y in (where if len(where) <= 40 else where[-1:])),
        *(_best(best, across, up, size) if best is not None else ()),
        "</svg>",
    ]
    return "".join(parts)


def small_chart(curve: Sequence[Point], best: Point | None, name: str) -> str:
    """The line alone, for a list of many; empty where there is no line yet."""
    points = [one for one in curve if math.isfinite(one[2])]
    if len(points) < 2:
        return ""
    size = Size(300, 64, 0)
    losses = [loss for _, _, loss in points]
    span = max(max(losses) - min(losses), 1e-9)
    across = _Scale(0, max(1, max(tokens for _, tokens, _ in points)), 2, size.width - 6)
    up = _Scale(min(losses), min(losses) + span, size.height - 6, 6)
    where = [(across.at(tokens), up.at(loss)) for _, tokens, loss in points]
    mark = _mark("best", across.at(best[1]), up.at(best[2]), 4) if best is not None else ""
    return (
        f'<svg class="chart small" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-labelledby="{name}"><title id="{name}">{described(points, best)}</title>'
        f'<path class="area" d="{_line(where)}V{size.height}H{where[0][0]:.1f}Z"/>'
        f'<path class="line" d="{_line(where)}"/>{mark}</svg>'
    )


def described(curve: Sequence[Point], best: Point | None) -> str:
    """The chart in a sentence, for whoever does not see it."""
    if not curve:
        return "Nothing was measured yet."
    first, last = curve[0], curve[-1]
    said = f"Held-out loss: {fmt.loss(first[2])} at the beginning"
    if len(curve) > 1:
        said += f", {fmt.loss(last[2])} after {fmt.count(last[1])} tokens"
    if best is not None:
        said += f"; the best so far is {fmt.loss(best[2])}, after {fmt.count(best[1])} tokens"
    return f"{said}."


def _scales(points: Sequence[Point], size: Size) -> tuple[_Scale, _Scale]:
    losses = [min(loss, 1e6) for _, _, loss in points]
    low, high = min(losses), max(losses)
    room = max(0.08 * (high - low), 0.01 * max(abs(high), 1.0))
    tokens = max(tokens for _, tokens, _ in points)
    across = _Scale(0, max(1, tokens), _LEFT, size.width - _RIGHT)
    return across, _Scale(max(0.0, low - 2.5 * room), high + room, size.height - _BOTTOM, _TOP)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between two values, about so many."""
    raw = (high - low) / max(1, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(one * size for one in (1, 2, 2.5, 5, 10) if one * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def _grid(across: _Scale, up: _Scale, size: Size) -> list[str]:
    made = []
    values = ticks(up.low, up.high, 4)
    digits = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9)) if values[1:] else 2
    for value in values:
        y = up.at(value)
        made.append(f'<line x1="{_LEFT}" x2="{size.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        made.append(_label(_LEFT - 8, y + 4, "end", f"{value:.{min(digits, 4)}f}"))
    for value in ticks(across.low, across.high, size.ticks):
        x, text = across.at(value), _short(value)
        half = len(text) * _CHAR / 2
        anchor, place = ("end", size.width - 2) if x + half > size.width - 2 else ("middle", x)
        made.append(_label(place, size.height - 12, anchor, text))
    return made


def _short(tokens: float) -> str:
    """A tick: 0, 500 k, 1.5 M."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= factor:
            return f"{tokens / factor:g} {unit}"
    return f"{tokens:g}"


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _line(where: Sequence[tuple[float, float]]) -> str:
    (x, y), *others = where
    return f"M{x:.1f} {y:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in others)


def _mark(kind: str, x: float, y: float, radius: float) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _best(best: Point, across: _Scale, up: _Scale, size: Size) -> list[str]:
    x, y = across.at(best[1]), up.at(best[2])
    text = f"best {fmt.loss(best[2])}"
    half = len(text) * _CHAR / 2
    place = min(max(x, _LEFT + half + 8), size.width - _RIGHT - half - 4)
    # Below it, where a curve that falls has never been; the room for it is in the scale.
    return [
        _mark("best", x, y, 5.5),
        f'<text class="best" x="{place:.1f}" y="{y + 23:.1f}" text-anchor="middle">{text}</text>',
    ]
