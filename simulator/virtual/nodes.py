"""How fast hosts are, and how they come and go."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
NotNegative = Annotated[float, Meta(ge=0.0, le=1e9)]
Spread = Annotated[float, Meta(ge=0.0, le=3.0)]


class SpeedModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Local steps of a group of learners.

    One host's mean is drawn around the group's; each step varies around the host's mean; a slow
    random walk lets a host drift (heat, other work); now and then a host is a straggler for a time.
    All spreads are standard deviations of logarithms.
    """

    step_s: Positive = 1.0
    """Median over the group."""
    spread: Spread = 0.0
    """Between hosts."""
    jitter: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.05
    """Between the steps of one host."""
    drift: Spread = 0.0
    """Of a host's mean, over an hour."""
    stragglers_per_h: NotNegative = 0.0
    """How often a host becomes slow for a time."""
    straggler_factor: Annotated[float, Meta(ge=1.0, le=1000.0)] = 4.0
    straggler_s: Positive = 60.0
    """How long that lasts, on average."""


@dataclass(slots=True)
class Speed:
    """One host's, drawn from a model."""

    model: SpeedModel
    chance: random.Random
    mean_s: float = 0.0
    _seen_s: float = 0.0
    _slow_until_s: float = 0.0

    def __post_init__(self) -> None:
        self.mean_s = self.model.step_s * math.exp(self.chance.gauss(0.0, self.model.spread))

    def step_s(self, now_s: float) -> float:
        """Seconds of the local step that begins now."""
        model, chance = self.model, self.chance
        passed_h = (now_s - self._seen_s) / 3600.0
        self._seen_s = now_s
        if model.drift > 0.0:
            self.mean_s *= math.exp(chance.gauss(0.0, model.drift * math.sqrt(passed_h)))
        if model.stragglers_per_h > 0.0 and now_s >= self._slow_until_s:
            is_slow = chance.random() < -math.expm1(-model.stragglers_per_h * passed_h)
            self._slow_until_s = now_s + is_slow * chance.expovariate(1.0 / model.straggler_s)
        factor = model.straggler_factor if now_s < self._slow_until_s else 1.0
        # The mean of the steps, not their median, is the host's mean.
        shift = -0.5 * model.jitter**2
        return self.mean_s * factor * math.exp(shift + model.jitter * chance.gauss(0.0, 1.0))


class ChurnModel(Struct, frozen=True, forbid_unknown_fields=True):
    """How learners come and go, as rates of one host."""

    join_s: NotNegative = 5.0
    """The first ones arrive within this time, evenly."""
    leaves_per_h: NotNegative = 0.0
    """Goodbyes: the learner hands in what it has, and stops."""
    crashes_per_h: NotNegative = 0.0
    """The daemon dies, and its trainer with it."""
    trainer_crashes_per_h: NotNegative = 0.0
    repair_s: Positive = 60.0
    """Median time until a learner that left or crashed is back."""
    repair_spread: Spread = 0.7

    def events(self, chance: random.Random, until_s: float) -> list[tuple[float, str, float]]:
        """(time, "leave" | "crash" | "crash-trainer", seconds away) of one host, in order."""
        rates = {
            "leave": self.leaves_per_h,
            "crash": self.crashes_per_h,
            "crash-trainer": self.trainer_crashes_per_h,
        }
        total_per_s = sum(rates.values()) / 3600.0
        found: list[tuple[float, str, float]] = []
        now_s = self.join_s
        while total_per_s > 0.0:
            now_s += chance.expovariate(total_per_s)
            if now_s >= until_s:
                break
            (kind,) = chance.choices(list(rates), list(rates.values()))
            away_s = self.repair_s * math.exp(chance.gauss(0.0, self.repair_spread))
            found.append((now_s, kind, away_s))
            if kind != "crash-trainer":
                now_s += away_s
        return found
