"""A daemon's life as a process: the event loop, Ctrl-C, and a clean end in every case."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from typing import Any

import uvloop

from host.runtime import garbage

INTERRUPTED_EXIT = 130
log = logging.getLogger("shoal.life")


class Stopper:
    """Turns signals into one polite request, then into an insistent one."""

    def __init__(self, main: asyncio.Task[int]) -> None:
        self._main = main
        self._asked = 0
        self.on_ask: Callable[[str], None] | None = None
        """Set once there is something that can stop politely."""

    def ask(self, reason: str) -> None:
        """Stop soon. Asked again: stop now. A third time: stop without tidying up."""
        self._asked += 1
        if self._asked >= 3:
            os._exit(INTERRUPTED_EXIT)
        if self._asked == 1 and self.on_ask is not None:
            self.on_ask(reason)
        else:
            self._main.cancel()


def quiet_about_peers(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keeps what peers do out of the terminal: one that opens a stream and goes away before the
    first byte makes the network library fail in a callback of its own; and of several that refuse
    it when it joins, it looks at the first refusal only. All else is told as usual.
    """
    error, where = context.get("exception"), context.get("message", "")
    is_refusal = type(error).__module__ == "hivemind.dht.protocol"
    if isinstance(error, asyncio.IncompleteReadError) and "client_connected_cb" in where:
        log.debug("a stream ended before it began")
    elif is_refusal and "never retrieved" in where:
        log.debug("another host refused as well: %s", error)
    else:
        loop.default_exception_handler(context)


def live(main: Callable[[Stopper], Coroutine[Any, Any, int]]) -> int:
    """Run a daemon until it ends by itself or is asked to; its exit code."""
    code: int = uvloop.run(_live(main))
    return code


async def _live(main: Callable[[Stopper], Coroutine[Any, Any, int]]) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(quiet_about_peers)
    begun = asyncio.Event()

    async def begin() -> int:
        await begun.wait()
        return await main(stopper)

    task = loop.create_task(begin())
    stopper = Stopper(task)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopper.ask, "stopped by its owner")
    begun.set()
    try:
        with garbage.sought_by_the_clock(loop):
            return await task
    except asyncio.CancelledError:
        return 0  # Asked to stop before there was anything to say goodbye to.


@contextlib.asynccontextmanager
async def background(*works: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Keep these running while the block does; they end with it, and their errors end it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@contextlib.asynccontextmanager
async def ending(tasks: Collection[asyncio.Future[Any]]) -> AsyncIterator[None]:
    """What of these is still under way behind the block is cancelled and waited for."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel these and wait for them; one that had failed before is told."""
    for task in tasks:
        task.cancel()
    for task, error in zip(
        tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True
    ):
        if isinstance(error, Exception):
            log.error("%s failed", task.get_name(), exc_info=error)


@contextlib.contextmanager
def tidying(what: str) -> Iterator[None]:
    """A step of shutting down: its failure is told and does not keep the others from running."""
    try:
        yield
    except Exception:
        # Root of a shutdown step: whatever it is, the remaining steps must still happen.
        log.exception("%s did not end cleanly", what)
