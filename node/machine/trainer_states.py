"""The trainer process as its learner sees it: states, and what leads from one to another."""

from __future__ import annotations

from enum import Enum


class Inner(Enum):
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


INNER_TRANSITIONS: dict[tuple[Inner, str], Inner] = {
    (Inner.DOWN, "start"): Inner.STARTING,
    (Inner.STARTING, "ready"): Inner.LOADING,
    (Inner.STARTING, "lost"): Inner.DOWN,
    (Inner.LOADING, "loaded"): Inner.STEPPING,
    (Inner.LOADING, "lost"): Inner.DOWN,
    (Inner.STEPPING, "starved"): Inner.STARVED,
    (Inner.STEPPING, "lost"): Inner.DOWN,
    (Inner.STARVED, "stepped"): Inner.STEPPING,
    (Inner.STEPPING, "hold"): Inner.HELD,
    (Inner.STARVED, "hold"): Inner.HELD,
    (Inner.HELD, "release"): Inner.STEPPING,
    (Inner.HELD, "lost"): Inner.DOWN,
    (Inner.STARVED, "lost"): Inner.DOWN,
    (Inner.STEPPING, "park"): Inner.PARKING,
    (Inner.STARVED, "park"): Inner.PARKING,
    (Inner.HELD, "park"): Inner.PARKING,
    (Inner.PARKING, "parked"): Inner.PARKED,
    (Inner.PARKING, "not parked"): Inner.HELD,
    (Inner.PARKING, "lost"): Inner.DOWN,
    (Inner.PARKED, "wake"): Inner.WAKING,
    (Inner.PARKED, "lost"): Inner.DOWN,
    (Inner.WAKING, "woken"): Inner.STEPPING,
    (Inner.WAKING, "not woken"): Inner.PARKED,
    (Inner.WAKING, "lost"): Inner.DOWN,
}
