"""Numbers, durations and names as people read them. Nothing here knows what they mean."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from protocol import limits
from protocol.status import ReceiptStatus

_BARS = "▁▂▃▄▅▆▇█"
_COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def clean(text: str, chars_max: int = 64) -> str:
    """`text` without anything that could move the cursor or colour the screen, and not longer.

    Names come from other people's machines.
    """
    if len(text) <= chars_max and text.isprintable():
        return text
    printable = "".join(char if char.isprintable() else "?" for char in text[: chars_max + 1])
    return printable if len(printable) <= chars_max else printable[: chars_max - 1] + "…"


def count(number: float) -> str:
    """9 999, 12.3 k, 4.56 M: three digits or a little more."""
    for size, unit in _COUNT_UNITS:
        if abs(number) >= size:
            factor = 1e3 if unit == "k" else size
            return f"{_three(number / factor)} {unit}"
    return f"{number:,.0f}"


def bytes_of(number: float) -> str:
    """512 B, 12.3 kB, 4.56 MB: decimal units, as networks count."""
    for size, unit in _BYTE_UNITS:
        if number >= size:
            return f"{_three(number / size)} {unit}"
    return f"{number:.0f} B"


def _three(number: float) -> str:
    decimals = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{decimals}f}"


def duration(seconds: float) -> str:
    """0.42 s, 41 s, 3 min 5 s, 2 h 41 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 9.995:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    if whole < 86_400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def between(low_s: float, high_s: float) -> str:
    """20 to 30 min, 2.5 to 3.1 h: how long something takes, as exactly as it is known."""
    size_s, unit = next(
        ((size_s, unit) for limit_s, size_s, unit in _SIZES if high_s < limit_s), (86_400.0, "d")
    )
    digits = 1 if unit in ("h", "d") and high_s < 10 * size_s else 0
    low, high = f"{low_s / size_s:.{digits}f}", f"{high_s / size_s:.{digits}f}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


_SIZES = ((90.0, 1.0, "s"), (5400.0, 60.0, "min"), (172_800.0, 3600.0, "h"))


def rtt(seconds: float) -> str:
    """0.4 ms, 12 ms, 1.2 s: how long an answer takes."""
    if seconds < 0.00995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def ago(seconds: float) -> str:
    """now, 12 s, 3 min 5 s: how long something is past, in whole seconds."""
    return "now" if seconds < 1.5 else whole(seconds)


def whole(seconds: float) -> str:
    """0 s, 12 s, 3 min 5 s: a duration that does not flicker."""
    return f"{round(seconds)} s" if seconds < 59.5 else duration(round(seconds))


def percent(share: float) -> str:
    """97 %, rounded down, so that 100 % means all of it."""
    return f"{math.floor(min(max(share, 0.0), 1.0) * 100 + 1e-9)} %"


def percents(parts: Sequence[float], whole: float) -> list[int]:
    """Whole percents of `parts` that add up as the parts do: 100 where they are all there is.

    What rounding down takes goes to those that lost most by it.
    """
    if whole <= 0:
        return [0] * len(parts)
    exact = [max(part, 0.0) / whole * 100 for part in parts]
    made = [math.floor(one + 1e-9) for one in exact]
    left = round(sum(exact)) - sum(made)
    by_loss = sorted(range(len(parts)), key=lambda at: (made[at] - exact[at], at))
    for at in by_loss[: max(left, 0)]:
        made[at] += 1
    return made


def loss(value: float | None) -> str:
    """Three decimals, or a dash where there is no reading; the bound stands for no number."""
    if value is None:
        return "–"
    return "beyond measure" if value >= limits.LOSS_MAX else f"{value:.3f}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """1 learner, 2 learners."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def tally(counts: Mapping[str, int]) -> str:
    """3 late, 1 stale: the most frequent first; empty where nothing was counted."""
    ranked = sorted((-number, word) for word, number in counts.items() if number)
    return ", ".join(f"{-number:,} {clean(word)}" for number, word in ranked)


def enumerate_names(names: Sequence[str], shown_max: int = 4) -> str:
    """a, b, c and 7 others."""
    shown = ", ".join(clean(name, 20) for name in names[:shown_max])
    left = len(names) - shown_max
    return f"{shown} and {plural(left, 'other')}" if left > 0 else shown


def bar(share: float, cells: int) -> str:
    """A bar that is full only when all is done."""
    full = math.floor(min(max(share, 0.0), 1.0) * cells + 1e-9)
    return "█" * full + "░" * (cells - full)


def sparkline(values: Sequence[float], cells: int) -> str:
    """The course of `values` in at most `cells` characters, highest on top; empty below two."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2 or cells < 2:
        return ""
    cells = min(cells, len(finite))
    picked = [finite[i * (len(finite) - 1) // (cells - 1)] for i in range(cells)]
    low, high = min(picked), max(picked)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in picked)


_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""Bits of a braille character: rows from the bottom, then left and right."""


def course(values: Sequence[float], cells: int) -> str:
    """The newest of `values` as a line from zero, two to a character: a small dip looks small."""
    recent = [max(value, 0.0) for value in values[-2 * cells :]]
    top = max(recent, default=0.0) * 4 / 3
    if len(recent) < 2 or not 0 < top < math.inf:
        return ""
    if len(recent) % 2:
        recent = recent[1:]
    heights = [min(int(value / top * len(_DOTS)), len(_DOTS) - 1) for value in recent]
    return "".join(
        chr(0x2800 | _DOTS[left][0] | _DOTS[right][1])
        for left, right in zip(heights[::2], heights[1::2], strict=True)
    )


def clock(at_s: float) -> str:
    """14:03:59, the local time of a Unix time."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def date(at_s: float) -> str:
    """2026-01-31 14:03 UTC, of a Unix time."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))


def bulk_way(way: str, detail: str) -> str:
    """How bulk data goes to a host: directly or over streams, and why not directly."""
    if way == "direct":
        return "over a direct connection"
    because = f" ({clean(detail, 120)})" if detail else ""
    return f"over streams{because}" if way else ""


def way(path: str, rtt_s: float | None) -> str:
    """How a host is reached and how fast it answers, with a comma before; empty if unknown."""
    told = [clean(path, 12), "" if rtt_s is None else f"answers in {rtt(rtt_s)}"]
    return "".join(f", {one}" for one in told if one)


def receipt(one: ReceiptStatus | None) -> str:
    """What is signed for, and when that was; empty without a receipt."""
    if one is None:
        return ""
    signed = time.strftime("%m-%d %H:%M", time.gmtime(one.at_s))
    return (
        f"{count(one.tokens)} tokens, {plural(one.merges, 'merge')}; "
        f"signed by {one.signer[:8]} {signed} UTC"
    )
