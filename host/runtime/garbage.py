"""When the interpreter looks for garbage: seldom while code is loaded, and never in that code; by
the clock while a daemon lives.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SELDOM: Final = 50_000
"""Objects made since the last look; while a trainer's libraries are imported, the default of 700
costs an eighth of the start; and a syncer with a hundred learners spends a tenth of its time on it,
up to half a second at once."""

YOUNG_EVERY_S: Final = 3.0
"""A daemon looks through its new objects so often, in a few milliseconds: a circle may hold a
payload of megabytes, and an idle daemon makes few objects. Where a start leaves a hundred thousand
behind, ten seconds of them at once would hold the loop for 0.2 s."""


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


@contextmanager
def sought_by_the_clock(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """While a daemon lives on this loop. What it was started with is not looked through."""
    # A hundred thousand objects of imported code would hold the loop for 30 ms each time.
    gc.collect()
    gc.freeze()
    former = gc.get_threshold()
    gc.set_threshold(SELDOM, *former[1:])
    due: asyncio.TimerHandle

    def look() -> None:
        nonlocal due
        gc.collect(1)
        due = loop.call_later(YOUNG_EVERY_S, look)

    due = loop.call_later(YOUNG_EVERY_S, look)
    try:
        yield
    finally:
        due.cancel()
        gc.set_threshold(*former)
