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
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
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
    (TrainerState.STEPPING, "suspend"): TrainerState.SUSPENDING,
    (TrainerState.STARVED, "suspend"): TrainerState.SUSPENDING,
    (TrainerState.HELD, "suspend"): TrainerState.SUSPENDING,
    (TrainerState.SUSPENDING, "suspended"): TrainerState.SUSPENDED,
    (TrainerState.SUSPENDING, "not suspended"): TrainerState.HELD,
    (TrainerState.SUSPENDING, "lost"): TrainerState.DOWN,
    (TrainerState.SUSPENDED, "wake"): TrainerState.WAKING,
    (TrainerState.SUSPENDED, "lost"): TrainerState.DOWN,
    (TrainerState.WAKING, "woken"): TrainerState.STEPPING,
    (TrainerState.WAKING, "not woken"): TrainerState.SUSPENDED,
    (TrainerState.WAKING, "lost"): TrainerState.DOWN,
}
