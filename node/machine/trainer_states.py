"""The trainer process as its learner sees it: states, and what leads from one to another."""

from __future__ import annotations

from enum import Enum


class TrainerState(Enum):
    """From no process, over one that steps, to one whose state waits in files."""

    DOWN = "down"
    STARTING = "starting"
    LOADING = "loading"
    STEPPING = "stepping"
    STARVED = "starved"
    HELD = "held"
    PARKING = "parking"
    PARKED = "parked"
    WAKING = "waking"


TRAINER_TRANSITIONS: dict[tuple[TrainerState, str], TrainerState] = {
    (TrainerState.DOWN, "start"): TrainerState.STARTING,
    (TrainerState.STARTING, "ready"): TrainerState.LOADING,
    (TrainerState.STARTING, "lost"): TrainerState.DOWN,
    (TrainerState.LOADING, "loaded"): TrainerState.STEPPING,
    (TrainerState.LOADING, "lost"): TrainerState.DOWN,
    (TrainerState.STEPPING, "starved"): TrainerState.STARVED,
    (TrainerState.STEPPING, "lost"): TrainerState.DOWN,
    (TrainerState.STARVED, "stepped"): TrainerState.STEPPING,
    (TrainerState.STEPPING, "hold"): TrainerState.HELD,
    (TrainerState.STARVED, "hold"): TrainerState.HELD,
    (TrainerState.HELD, "release"): TrainerState.STEPPING,
    (TrainerState.HELD, "lost"): TrainerState.DOWN,
    (TrainerState.STARVED, "lost"): TrainerState.DOWN,
    (TrainerState.STEPPING, "park"): TrainerState.PARKING,
    (TrainerState.STARVED, "park"): TrainerState.PARKING,
    (TrainerState.HELD, "park"): TrainerState.PARKING,
    (TrainerState.PARKING, "parked"): TrainerState.PARKED,
    (TrainerState.PARKING, "not parked"): TrainerState.HELD,
    (TrainerState.PARKING, "lost"): TrainerState.DOWN,
    (TrainerState.PARKED, "wake"): TrainerState.WAKING,
    (TrainerState.PARKED, "lost"): TrainerState.DOWN,
    (TrainerState.WAKING, "woken"): TrainerState.STEPPING,
    (TrainerState.WAKING, "not woken"): TrainerState.PARKED,
    (TrainerState.WAKING, "lost"): TrainerState.DOWN,
}
