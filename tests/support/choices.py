"""Which of many like cases run at once, and which only when everything does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """All cases, for `parametrize`; those after the first few are marked slow."""
    return [
        pytest.param(case, marks=[pytest.mark.slow] if at >= count else [])
        for at, case in enumerate(cases)
    ]


def spread(count: int, cases: Iterable[Any]) -> list[Any]:
    """All cases, for `parametrize`; all but so many of them, evenly spread, are marked slow."""
    every = list(cases)
    quick = {at * len(every) // count for at in range(count)}
    return [
        pytest.param(case, marks=[] if at in quick else [pytest.mark.slow])
        for at, case in enumerate(every)
    ]
