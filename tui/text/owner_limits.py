"""How a learner behaves on its machine, in words: devices, and ceilings with what is taken."""

from __future__ import annotations

from collections.abc import Iterator

from protocol.status import DeviceRow, GuestStatus, LimitRow
from tui.text import fmt


def readings(one: DeviceRow) -> Iterator[str]:
    """What a device says of itself."""
    yield fmt.clean(one.model, 24)
    if one.temperature_c is not None:
        yield f"{one.temperature_c:.0f} °C"
    if one.busy_frac is not None:
        yield f"{100 * one.busy_frac:.0f} % busy"
    if one.memory_used_bytes is not None and one.memory_bytes:
        yield (f"{fmt.bytes_of(one.memory_used_bytes)} of {fmt.bytes_of(one.memory_bytes)} used")
    if one.mode != "always":
        yield f"trains {'never' if one.mode == 'never' else 'when idle'}"


def is_set(row: LimitRow) -> bool:
    """Whether there is a ceiling at all."""
    return row.ceiling is not None and not (row.unit == "percent" and row.ceiling >= 100.0)


def amount(value: float | None, unit: str) -> str:
    """A reading in its unit."""
    if value is None:
        return "?"
    match unit:
        case "percent":
            return f"{value:.0f} %"
        case "celsius":
            return f"{value:.0f} °C"
        case "bytes/s":
            return f"{fmt.bytes_of(value)}/s"
    return fmt.bytes_of(value)


def summary(guest: GuestStatus) -> str:
    """Ceilings that were set, in one line."""
    told = [
        f"{fmt.clean(row.words, 24)} {amount(row.used, row.unit)} of "
        f"{amount(row.ceiling, row.unit)}"
        for row in guest.limits
        if is_set(row)
    ]
    if guest.hours:
        told.append(f"hours {', '.join(fmt.clean(one, 40) for one in guest.hours)}")
    return "; ".join(told)


def machine(guest: GuestStatus) -> str:
    """The devices in one line."""
    return "; ".join(
        f"{fmt.clean(one.name, 12)} ({', '.join(readings(one))})" for one in guest.devices
    )
