"""When the interpreter looks for garbage: seldom while code is loaded, and never in that code."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SELDOM: Final = 50_000
"""Objects made since the last look; while a trainer's libraries are imported, the default of 700
costs an eighth of the start."""


@contextmanager
def seldom_sought() -> Iterator[None]:
    """Around a start that imports much. What it leaves behind is not looked through again."""
    former = gc.get_threshold()
    gc.set_threshold(SELDOM, *former[1:])
    try:
        yield
    finally:
        gc.set_threshold(*former)
    gc.freeze()
