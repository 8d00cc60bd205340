"""Boxes of this machine: devices, gauges of ceilings, the trainer's log."""

from __future__ import annotations

from rich.text import Text

from protocol.status import GuestStatus, LimitRow
from tui.text import fmt, layout, owner_limits
from tui.text.paint import Paint

GAUGE_CELLS = 10
DEVICE_CELLS = 8
LIMIT_CELLS = 16
NEAR_FRAC = 0.9
LOG_LINES = 6


def devices(status: GuestStatus, width: int, paint: Paint) -> list[Text]:
    """A line for each processor and accelerator; then what this machine does not tell."""
    made = []
    for one in status.devices:
        line = Text()
        mark = "● " if one.is_used else "  "
        line.append(mark, style=paint.good if one.is_used else paint.quiet)
        line.append(layout.fit_plain(fmt.clean(one.name, 12), DEVICE_CELLS), style=paint.strong)
        line.append(", ".join(owner_limits.readings(one)))
        made += layout.wrap(line, width)
    if status.absent:
        text = "not readable here: " + "; ".join(fmt.clean(one, 120) for one in status.absent)
        made += layout.wrap(Text(text, style=paint.quiet), width)
    return made


def limits(status: GuestStatus, width: int, paint: Paint) -> list[Text]:
    """A line for each ceiling, what is taken beside it; one line for those that were not set."""
    made, free = [], []
    for row in status.limits:
        if not owner_limits.is_set(row):
            used = f" {owner_limits.amount(row.used, row.unit)}" if row.used is not None else ""
            free.append(f"{fmt.clean(row.words, 24)}{used}")
            continue
        made += layout.wrap(limit(row, paint), width)
    if status.duty_frac < 1.0:
        made += layout.wrap(
            Text(f"The trainer works {100 * status.duty_frac:.0f} % of the time."), width
        )
    if status.hours:
        hours = ", ".join(fmt.clean(one, 40) for one in status.hours)
        made += layout.wrap(Text(f"hours: {hours}"), width)
    if status.is_beside:
        made += layout.wrap(
            Text(f"less, because {fmt.clean(status.because, 200)}", style=paint.warn), width
        )
    if free:
        text = f"not limited: {', '.join(free)}"
        made += layout.wrap(Text(text, style=paint.quiet), width)
    return made


def limit(row: LimitRow, paint: Paint) -> Text:
    """One ceiling, with a gauge."""
    line = Text(layout.fit_plain(fmt.clean(row.words, 24), LIMIT_CELLS))
    if row.used is None or row.ceiling is None:
        line.append(f"at most {owner_limits.amount(row.ceiling, row.unit)}; usage unknown")
        return line
    share = row.used / row.ceiling if row.ceiling else 1.0
    style = paint.good if share < NEAR_FRAC else paint.warn if share <= 1.0 else paint.bad
    line.append(fmt.bar(share, GAUGE_CELLS), style=style)
    used, ceiling = (owner_limits.amount(one, row.unit) for one in (row.used, row.ceiling))
    line.append(f" {used} of {ceiling}")
    return line


def log(status: GuestStatus, width: int, paint: Paint, count: int = LOG_LINES) -> list[Text]:
    """The newest lines of the trainer's log."""
    if not status.trainer_log:
        return [Text("the trainer has printed nothing", style=paint.quiet)]
    return [layout.fit(fmt.clean(one, 400), width) for one in status.trainer_log[-count:]]
