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
    (TrainerState.LOADING, "loaded"): TrainerState.STEPPING,
    (TrainerState.STEPPING, "starved"): TrainerState.STARVED,
    (TrainerState.STARVED, "stepped"): TrainerState.STEPPING,
    (TrainerState.STEPPING, "hold"): TrainerState.HELD,
    (TrainerState.STARVED, "hold"): TrainerState.HELD,
    (TrainerState.HELD, "release"): TrainerState.STEPPING,
    (TrainerState.STEPPING, "suspend"): TrainerState.SUSPENDING,
    (TrainerState.STARVED, "suspend"): TrainerState.SUSPENDING,
    (TrainerState.HELD, "suspend"): TrainerState.SUSPENDING,
    (TrainerState.SUSPENDING, "suspended"): TrainerState.SUSPENDED,
    (TrainerState.SUSPENDING, "not suspended"): TrainerState.HELD,
    (TrainerState.SUSPENDED, "wake"): TrainerState.WAKING,
    (TrainerState.WAKING, "woken"): TrainerState.STEPPING,
    (TrainerState.WAKING, "not woken"): TrainerState.SUSPENDED,
    **{(one, "lost"): TrainerState.DOWN for one in TrainerState if one is not TrainerState.DOWN},
}
