"""When a swarm stands still, rather than being slow: in one place for every screen."""

from __future__ import annotations

from typing import Final

from protocol.status import PaceStatus

S_MIN: Final = 12.0
"""Shorter than this nothing stands still."""

S_UNKNOWN: Final = 90.0
"""The same while a daemon that measures the pace does not know what is usual."""

GAPS: Final = 6
"""No global step for so many usual gaps is worth a word."""


def is_standstill(still_s: float, gap_s: float | None, *, is_measured: bool) -> bool:
    """Whether global steps fail to come that should have come.

    still_s: since the last one. gap_s: usual seconds between two, if known. is_measured: by the
    daemon itself, so that an unknown gap means a swarm that has just begun.
    """
    least_s = S_UNKNOWN if is_measured and gap_s is None else S_MIN
    return still_s >= max(least_s, GAPS * (gap_s or 0.0))


def stands_still(pace: PaceStatus) -> bool:
    """The same, by what a daemon measured."""
    return is_standstill(pace.still_s or 0.0, pace.gap_s, is_measured=True)
