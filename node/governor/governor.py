"""The governor: from what the machine's sensors say, whether to train now, and how much.

A state machine without clock or sensors: readings and times are arguments. It pauses at once and
goes on only after the cause has been away for a while, so that nothing flaps. A reading that cannot
be taken is None, and then the rule about it does not apply, except for the owner's presence, for
which the owner chose what to assume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from host.files.local_settings import Mode, PresentSettings, Settings, WhenSettings
from host.files.weekly_hours import Schedule, clock

CALM_S: Final = 30.0
"""A cause must have been away for so long; the schedule and the owner's idleness need no such wait:
they have their own."""

COOLED_C: Final = 8.0
"""Degrees below its ceiling at which a device may go on."""

MEMORY_BACK_FRAC: Final = 1.25
"""Free memory must be so much above its floor before training goes on."""

STRICTNESS: Final[tuple[Mode, ...]] = ("always", "idle", "never")

Share = Literal["full", "beside", "none"]
"""All that the owner allows; what is allowed while somebody uses the machine; nothing."""


class Rules(NamedTuple):
    """What the owner of this machine decided about one device."""

    when: WhenSettings
    mode: Mode
    """The one of `when` that counts for the device."""
    device: str
    """What the mode is about, in words."""
    has_less_beside: bool
    """In mode `always`: there are narrower limits while somebody uses the machine."""
    memory_free_bytes_min: int
    """Left to everybody else on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the sensors say at one moment; None: they cannot tell."""

    weekday: int
    """0 is Monday, local time."""
    minute: int
    """Of the day, local time."""
    on_battery: bool | None = None
    owner_idle_s: float | None = None
    """Since somebody last typed or moved something; infinite where nobody is logged in."""
    temperature_c: float | None = None
    hottest: str = ""
    apps: frozenset[str] = frozenset()
    """Those named in the rules that run now."""
    memory_free_bytes: int | None = None


class Ruling(NamedTuple):
    """What holds until the next look."""

    share: Share
    reasons: tuple[str, ...] = ()
    """Why it is less than the owner allows at best, in words, the weightiest first."""

    @property
    def is_paused(self) -> bool:
        return self.share == "none"

    @property
    def because(self) -> str:
        """The reasons in one clause; empty if nothing is in the way."""
        return " and ".join(self.reasons)


class Governor:
    """Rules one device of this machine."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._seen_s: dict[str, float] = {}
        """Causes that hold, and the moment at which each was last seen."""
        self._said: dict[str, str] = {}

    def change(self, rules: Rules) -> None:
        """The owner decided anew; what held under other rules holds no longer."""
        if rules == self.rules:
            return
        self.rules = rules
        self._seen_s.clear()
        self._said.clear()

    def look(self, reading: Reading, now_s: float) -> Ruling:
        """The ruling at this moment. now_s: monotonic seconds, never less than before."""
        for cause, words in self._seen(reading):
            self._seen_s[cause], self._said[cause] = now_s, words
        for cause in [c for c, at_s in self._seen_s.items() if now_s - at_s >= CALM_S]:
            del self._seen_s[cause], self._said[cause]
        reasons = list(self._now(reading))
        reasons += [self._lasting(cause, now_s) for cause in self._seen_s]
        if reasons:
            return Ruling("none", tuple(reasons))
        return self._with_owner(reading)

    def _now(self, reading: Reading) -> Iterator[str]:
        """Causes that end the moment they end."""
        rules = self.rules
        if rules.mode == "never":
            yield f"{rules.device} is set to never train"
        day, minute, schedule = reading.weekday, reading.minute, Schedule(rules.when.hours)
        if not schedule.is_open(day, minute):
            ahead = schedule.changes_in(day, minute)
            assert ahead is not None, "a schedule with hours opens some time"
            yield f"it is outside its hours, until {clock(day, minute, ahead)}"

    def _seen(self, reading: Reading) -> Iterator[tuple[str, str]]:
        """Causes that are here now, or that hold and are not well past."""
        rules = self.rules
        if reading.on_battery and rules.when.on_battery == "pause":
            yield "battery", "it runs on battery"
        for app in sorted(reading.apps):
            yield f"app {app}", f"{app} runs"
        ceiling, hot = rules.when.temperature_c_max, reading.temperature_c
        if ceiling is not None and hot is not None:
            margin = COOLED_C if "temperature" in self._seen_s else 0.0
            if hot > ceiling - margin:
                part = reading.hottest or "it"
                yield "temperature", f"{part} is at {hot:.0f} °C, above {ceiling:.0f}"
        free, floor = reading.memory_free_bytes, rules.memory_free_bytes_min
        if free is not None and floor:
            wanted = floor * (MEMORY_BACK_FRAC if "memory" in self._seen_s else 1.0)
            if free < wanted:
                yield "memory", f"{_gib(free)} GiB of memory are free, below {_gib(floor)}"

    def _lasting(self, cause: str, now_s: float) -> str:
        words, away_s = self._said[cause], now_s - self._seen_s[cause]
        if away_s <= 0.0:
            return words
        return f"{words} until {away_s:.0f} s ago (resumes in {CALM_S - away_s:.0f} s)"

    def _with_owner(self, reading: Reading) -> Ruling:
        rules = self.rules
        if rules.mode != "idle" and not rules.has_less_beside:
            return Ruling("full")
        idle_s = reading.owner_idle_s
        if idle_s is None:
            if rules.when.input_unknown == "absent":
                return Ruling("full")
            why = "somebody may be using it (the system cannot tell)"
        elif idle_s >= rules.when.owner_idle_s:
            return Ruling("full")
        else:
            why = f"somebody used it {idle_s:.0f} s ago"
        return Ruling("none" if rules.mode == "idle" else "beside", (why,))


def rules_of(settings: Settings, device: str) -> Rules:
    """What the settings say about a learner on this device (`cpu`, `cuda:0`; empty: not known)."""
    has_less_beside = settings.present != PresentSettings()
    room = settings.limits.ram_free_bytes_min
    return Rules(settings.when, *mode_of(settings, device), has_less_beside, room)


def mode_of(settings: Settings, device: str) -> tuple[Mode, str]:
    """The mode that counts for a device, and what it was set for, in words.

    Of several devices that train as one, `cuda:0,cuda:1`, the strictest.
    """
    found = [_mode_of_one(settings, one) for one in device.split(",")]
    return max(found, key=lambda one: STRICTNESS.index(one[0]))


def _mode_of_one(settings: Settings, device: str) -> tuple[Mode, str]:
    kind = device.partition(":")[0]
    names = [f"{kind}:0" if device == kind else device, kind]
    names += ["gpu"] if kind not in ("", "cpu") else []
    for name in names:
        mode = settings.when.devices.get(name)
        if mode is not None:
            return mode, name
    return settings.when.mode, "this machine"


def device_wanted(settings: Settings) -> str | None:
    """The device for a new trainer: the one named, the processor where accelerators may never
    train, otherwise None for the best there is."""
    if settings.learner.device is not None:
        return settings.learner.device
    modes = settings.when.devices
    is_gpu_barred = "never" in (modes.get("gpu"), modes.get("cuda"), modes.get("cuda:0"))
    return "cpu" if is_gpu_barred else None


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"
