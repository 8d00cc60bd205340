"""A line for the person who watches a daemon's terminal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

EVERY_S = 15.0
REPEAT_EVERY_S = 300.0


async def tell_progress(line: Callable[[], str], log: logging.Logger) -> None:
    """Now and then, for ever; the same line seldom."""
    told, told_s = "", 0.0
    while True:
        await asyncio.sleep(EVERY_S)
        now, now_s = line(), time.monotonic()
        if now != told or now_s - told_s >= REPEAT_EVERY_S:
            log.info("%s", now)
            told, told_s = now, now_s
