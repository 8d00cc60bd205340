"""Durations as people type them: `90s`, `15m`, `2h`, `1d`."""

from __future__ import annotations

import re

from protocol.errors import UserError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST_S = 365 * 86_400

_TYPED = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def seconds(text: str) -> float:
    """The duration in seconds, above 0 and at most a year. UserError for anything else."""
    found = _TYPED.fullmatch(text.strip().lower())
    value = float(found[1]) * UNITS_S[found[2]] if found else 0.0
    if not 0 < value <= LONGEST_S:
        raise UserError(
            f"{text!r} is not a duration. Write a number and s, m, h or d, such as 15m or 2h."
        )
    return value
