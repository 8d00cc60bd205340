"""The governor: from what the machine's sensors say, whether to train now, and how much.

A state machine without clock or sensors: readings and times are arguments. It pauses at once and
goes on only after the cause has been away for a while, so that nothing flaps. A reading that cannot
be taken is None, and then the rule about it does not apply, except for the owner's presence, for
which the owner chose what to assume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from node.politeness.schedule import Schedule, clock

CALM_S: Final = 30.0
"""A cause must have been away for so long; the schedule and the owner's idleness need no such wait:
they have their own."""

COOLED_C: Final = 8.0
"""Degrees below its ceiling at which a device may go on."""

MEMORY_BACK_FRAC: Final = 1.25
"""Free memory must be so much above its floor before training goes on."""

Mode = Literal["always", "idle", "never"]
Assumed = Literal["absent", "present"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the owner of this machine decided."""

    mode: Mode = "always"
    """`idle` trains fully only while nobody uses the machine."""
    schedule: Schedule = field(default_factory=Schedule)
    duty_frac: float = 1.0
    """Share of the time in which training may run, 0 < duty <= 1."""
    busy_duty_frac: float = 0.0
    """In mode `idle`: the same while somebody uses the machine; 0 pauses."""
    idle_after_s: float = 300.0
    """Nobody uses the machine once nothing was typed or moved for so long."""
    unknown_owner: Assumed = "absent"
    """What counts in mode `idle` where the system does not say whether somebody is there."""
    trains_on_battery: bool = False
    temperature_c_max: float | None = None
    """Of the hottest part; None does not look."""
    apps: tuple[str, ...] = ()
    """Names of programs for which training makes room."""
    memory_free_bytes_min: int = 0
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

    duty_frac: float
    """0: pause."""
    reasons: tuple[str, ...]
    """Why it is less than the owner allows at best, in words, the weightiest first."""

    @property
    def is_paused(self) -> bool:
        return self.duty_frac <= 0.0

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
        """The owner decided anew; what held under the old rules holds no longer."""
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
            return Ruling(0.0, tuple(reasons))
        return self._with_owner(reading)

    def _now(self, reading: Reading) -> Iterator[str]:
        """Causes that end the moment they end."""
        rules = self.rules
        if rules.mode == "never":
            yield "this machine is set to never train"
        day, minute = reading.weekday, reading.minute
        if not rules.schedule.is_open(day, minute):
            ahead = rules.schedule.changes_in(day, minute)
            assert ahead is not None, "a schedule with hours opens some time"
            yield f"it is outside its hours, until {clock(day, minute, ahead)}"

    def _seen(self, reading: Reading) -> Iterator[tuple[str, str]]:
        """Causes that are here now, or that hold and are not well past."""
        rules = self.rules
        if reading.on_battery and not rules.trains_on_battery:
            yield "battery", "it runs on battery"
        for app in sorted(reading.apps):
            yield f"app {app}", f"{app} runs"
        ceiling, hot = rules.temperature_c_max, reading.temperature_c
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
        return f"{words} until {away_s:.0f} s ago (goes on {CALM_S - away_s:.0f} s from now)"

    def _with_owner(self, reading: Reading) -> Ruling:
        rules = self.rules
        if rules.mode != "idle":
            return Ruling(rules.duty_frac, ())
        idle_s = reading.owner_idle_s
        if idle_s is None:
            if rules.unknown_owner == "absent":
                return Ruling(rules.duty_frac, ())
            why = "somebody may be using it (the system cannot tell)"
        elif idle_s >= rules.idle_after_s:
            return Ruling(rules.duty_frac, ())
        else:
            why = f"somebody used it {idle_s:.0f} s ago"
        return Ruling(min(rules.busy_duty_frac, rules.duty_frac), (why,))


def strictest(rulings: Mapping[str, Ruling]) -> Ruling:
    """The ruling for a learner that needs all of these devices at once."""
    least = min(rulings.values(), key=lambda ruling: ruling.duty_frac)
    reasons = dict.fromkeys(reason for ruling in rulings.values() for reason in ruling.reasons)
    return Ruling(least.duty_frac, tuple(reasons))


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"
