"""Curves with axes that people can read: round numbers, rates from zero, time to the right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from rich.text import Text

from tui.frames.history import Reading
from tui.text import fmt
from tui.text.paint import Paint

_BRAILLE = re.compile(r"[\u2801-\u28ff]+")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
ROWS_PER_TICK = 2
TICKS_MAX = 5
COLUMNS_PER_TICK = 14
AGO_STEPS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)

Point = tuple[float, float]
Moment = tuple[float, str]
"""Where on the axis something happened, and the mark for it."""

BEST = "◆"
"""The mark of the best point."""


def ticks(low: float, high: float, count_max: int, steps: Sequence[float] = ()) -> list[float]:
    """Round numbers between `low` and `high`, about `count_max` of them at most.

    steps: the distances to choose from, ascending; otherwise 1, 2, 2.5 or 5 of any power of ten.
    """
    rough = (high - low) / max(count_max, 1)
    if not (rough > 0 and math.isfinite(rough)):
        return [low]
    size = 10.0 ** math.floor(math.log10(rough))
    choice = [one for one in steps or [size * step for step in _STEPS] if one >= rough * (1 - 1e-9)]
    step = choice[0] if choice else rough
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def chart(
    points: Sequence[Point],
    width: int,
    height: int,
    paint: Paint,
    *,
    say_x: Callable[[float], str],
    say_y: Callable[[float], str],
    is_from_zero: bool = False,
    best: Point | None = None,
    moments: Sequence[Moment] = (),
) -> list[Text]:
    """`height` lines with the curve through `points`, or with words where there is none yet.

    best: a point to mark; moments: marks along the bottom.
    """
    if len(points) < 2 or width < 20 or height < 4:
        return [Text("not enough data yet", style=paint.quiet)]
    left, right = points[0][0], points[-1][0]
    x_steps = AGO_STEPS_S if say_x is say_ago else ()
    x_ticks = ticks(left, right, max(width // COLUMNS_PER_TICK, 1), x_steps)
    values = [y for _, y in points]
    low, high = (0.0 if is_from_zero else min(values)), max(values)
    pad = max(high - low, abs(high) * 0.01, 1e-6) * 0.06
    low, high = (low if is_from_zero else low - pad), high + pad
    y_ticks = ticks(low, high, min(max((height - 1) // ROWS_PER_TICK, 1), TICKS_MAX))
    drawn = _draw(
        tuple(points),
        (width, height),
        (tuple(x_ticks), tuple(map(say_x, x_ticks))),
        (tuple(y_ticks), tuple(map(say_y, y_ticks))),
        (low, high),
    )
    rows = [list(row) for row in drawn.split("\n")]
    marked = _mark(rows, (left, right), (low, high), best, moments)
    lines = []
    for number, row in enumerate(rows):
        line = Text("".join(row), style=paint.quiet)
        line.highlight_regex(_BRAILLE, paint.chart)
        for at, column in marked:
            if at == number:
                line.stylize(f"bold {paint.accent}", column, column + 1)
        lines.append(line)
    return lines


def _mark(
    rows: list[list[str]],
    across: Point,
    up: Point,
    best: Point | None,
    moments: Sequence[Moment],
) -> list[tuple[int, int]]:
    """Writes the marks over the plot; the cells in which they stand."""
    foot = next((at for at, row in enumerate(rows) if {"└", "┬"} & set(row)), None)
    if foot is None or across[1] <= across[0]:
        return []
    axis = next((at for at, char in enumerate(rows[0]) if char in "│┤"), 0)
    cells = max(map(len, rows)) - axis - 2
    found: dict[tuple[int, int], str] = {}
    for x, mark in moments:
        share = (x - across[0]) / (across[1] - across[0])
        if 0 <= share <= 1:
            found[(foot, axis + 1 + round(share * cells))] = mark
    if best is not None:
        column = axis + 1 + round((best[0] - across[0]) / (across[1] - across[0]) * cells)
        row = round((1 - (best[1] - up[0]) / (up[1] - up[0])) * (foot - 1))
        # Onto the curve itself, which is rounded in another way.
        near = [
            (abs(beside - column) > 1, -at, abs(beside - column), beside)
            for at in range(max(row - 2, 0), min(row + 3, foot))
            for beside in range(max(column - 2, 0), column + 3)
            if beside < len(rows[at]) and _BRAILLE.match(rows[at][beside])
        ]
        if near:
            _, above, _, column = min(near)
            row = -above
        found[(row, column)] = BEST
    for (row, column), mark in found.items():
        rows[row] += [" "] * (column + 1 - len(rows[row]))
        rows[row][column] = mark
    return list(found)


Ticks = tuple[tuple[float, ...], tuple[str, ...]]


@lru_cache(16)
def _draw(
    points: tuple[Point, ...],
    size: tuple[int, int],
    across: Ticks,
    up: Ticks,
    bounds: Point,
) -> str:
    """The plot without colour. Kept, since most frames bring no new point."""
    from textual_plotext import Plot

    plot = Plot()
    plot.theme("clear")
    plot.plotsize(*size)
    plot._set_size(*size)
    plot.plot([x for x, _ in points], [y for _, y in points], marker="braille")
    plot.xlim(points[0][0], points[-1][0])
    plot.ylim(*bounds)
    plot.xticks(list(across[0]), list(across[1]))
    plot.yticks(list(up[0]), list(up[1]))
    plot.xaxes(True, False)
    plot.yaxes(True, False)
    return Text.from_ansi(plot.build()).plain.rstrip("\n")


def loss_points(curve: Sequence[tuple[int, int, float]]) -> list[Point]:
    """Held-out loss over committed tokens; measurements that are no numbers are left out."""
    return [(float(tokens), loss) for _, tokens, loss in curve if math.isfinite(loss)]


def rate_points(readings: Sequence[Reading], now_s: float, span_s: float) -> list[Point]:
    """Tokens a second over seconds before now, in bins that stand still while time goes on."""
    recent = [one for one in readings if now_s - one.at_s <= span_s]
    if len(recent) < 2:
        return []
    bin_s = max(span_s / 120, 2.0)
    bins: dict[int, list[float]] = {}
    for one in recent:
        bins.setdefault(math.floor(one.at_s / bin_s), []).append(one.tokens_per_s)
    newest = max(bins)
    if len(bins) > 3:
        # The bin that still fills would move the whole curve with every frame.
        del bins[newest]
        newest = max(bins)
    return [
        ((number - newest) * bin_s, sum(values) / len(values))
        for number, values in sorted(bins.items())
    ]


def span_s(readings: Sequence[Reading], now_s: float) -> float:
    """A round length of time that shows what there is: 2 minutes to an hour."""
    held_s = now_s - readings[0].at_s if readings else 0.0
    return next((one for one in (120.0, 300.0, 900.0, 1800.0) if held_s <= one), 3600.0)


def say_ago(seconds: float) -> str:
    """An x tick of a chart over time."""
    return "now" if seconds >= 0 else f"-{fmt.duration(-seconds)}"


def say_loss(value: float) -> str:
    """A y tick of a loss: as many decimals as tell neighbours apart."""
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.3g}"


def say_tokens(value: float) -> str:
    """A tick that counts tokens."""
    number, _, unit = fmt.count(value).partition(" ")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{number} {unit}".strip()
