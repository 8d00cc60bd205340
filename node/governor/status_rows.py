"""What people see of the governor: devices, ceilings with what is taken, and why it holds back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from host.runtime.logs import log_tail
from node.governor.accelerators import DeviceReading
from node.governor.governor import mode_of
from node.governor.loop import GovernorLoop
from node.governor.policy import Decision
from node.governor.sensors import Look
from protocol.status import DeviceRow, GuestStatus, LimitRow

LINE_CHARS_MAX: Final = 300


def owner_limits_status(
    governor: GovernorLoop,
    *,
    device: str,
    is_suspended: bool,
    log: Path,
) -> GuestStatus | None:
    """The newest look and what was decided; None before the first. log: the trainer's."""
    look, decision = governor.look, governor.decision
    if look is None or decision is None:
        return None
    return GuestStatus(
        because=decision.ruling.because,
        is_held=decision.ruling.is_paused,
        is_suspended=is_suspended,
        is_beside=decision.ruling.share == "beside",
        duty_frac=decision.duty_frac,
        devices=[_device(governor, one, device) for one in look.devices],
        limits=list(_limits(governor, look, decision, device)),
        hours=list(governor.settings.when.hours),
        owner=look.owner,
        absent=list(look.absent),
        trainer_log=[line[:LINE_CHARS_MAX] for line in log_tail(log)],
    )


def _device(governor: GovernorLoop, one: DeviceReading, used: str) -> DeviceRow:
    mode, _ = mode_of(governor.settings, one.device)
    return DeviceRow(
        name=one.device,
        model=one.model,
        mode=mode,
        is_used=_is_same(one.device, used),
        temperature_c=one.temperature_c,
        busy_frac=one.busy_frac,
        memory_used_bytes=one.memory_used_bytes,
        memory_bytes=one.memory_bytes,
    )


def _is_same(device: str, used: str) -> bool:
    """Whether a device is one of those that the trainer is on."""
    return any(device in (one, f"{one}:0") for one in used.split(","))


def _limits(
    governor: GovernorLoop, look: Look, decision: Decision, device: str
) -> Iterator[LimitRow]:
    limits, allowed = governor.settings.limits, decision.allowed
    cpu = governor.policy.throttle.used_frac
    yield LimitRow(
        key="limits.cpu_percent",
        words="processor",
        unit="percent",
        ceiling=100.0 * allowed.cpu_frac,
        used=None if cpu is None else 100.0 * cpu,
    )
    yield LimitRow(
        key="limits.ram_bytes_max",
        words="memory",
        unit="bytes",
        ceiling=limits.ram_bytes_max,
        used=look.own.memory_bytes,
    )
    for used in look.devices:
        if used.device == "cpu" or not _is_same(used.device, device):
            continue
        yield LimitRow(
            key="limits.gpu_percent",
            words=f"{used.device}'s time",
            unit="percent",
            ceiling=100.0 * allowed.gpu_frac,
            used=None if used.busy_frac is None else 100.0 * used.busy_frac,
        )
        size = used.memory_bytes
        yield LimitRow(
            key="limits.gpu_memory_percent",
            words=f"{used.device}'s memory",
            unit="bytes",
            ceiling=None if size is None else size * limits.gpu_memory_percent / 100.0,
            used=used.memory_used_bytes,
        )
    if governor.settings.when.temperature_c_max is not None:
        yield LimitRow(
            key="when.temperature_c_max",
            words="heat",
            unit="celsius",
            ceiling=governor.settings.when.temperature_c_max,
            used=look.reading.temperature_c,
        )
    is_watched = limits.disk_bytes_max is not None
    yield LimitRow(
        key="limits.disk_bytes_max",
        words="files",
        unit="bytes",
        ceiling=limits.disk_bytes_max,
        used=governor.disk_bytes if is_watched else None,
    )
    for key, words, ceiling, rate in (
        ("limits.up_bytes_per_s", "sending", allowed.up_bytes_per_s, governor.rates[0]),
        ("limits.down_bytes_per_s", "fetching", allowed.down_bytes_per_s, governor.rates[1]),
    ):
        yield LimitRow(key=key, words=words, unit="bytes/s", ceiling=ceiling, used=rate)
