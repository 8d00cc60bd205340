"""Faults of scenarios for a swarm that a test built itself."""

from __future__ import annotations

import random

from simulator.scenarios.faults import FaultSchedule
from simulator.scenarios.scenarios import Faults, Scenario

KINDS = ("kill-learner", "kill-syncer", "kill-trainer", "cut", "cut-voters", "disk-full")


def afflict(swarm, seed, *, until_s, every_s=12.0, away_s=(0.5, 20.0), kinds=KINDS):
    """Draw faults from the seed and schedule them; everything is healed at `until_s`.

    Some kinds are left out altogether in each seed, so that rare combinations get their turn.
    """
    chance = random.Random(f"faults {seed}")
    drawn = tuple(kind for kind in kinds if chance.random() < 0.7) or kinds[:1]
    scenario = Scenario(faults=Faults(kinds=drawn, every_s=every_s, away_s=away_s))
    FaultSchedule(swarm, scenario, chance, until_s, tell=lambda now_s, words: None).schedule()
