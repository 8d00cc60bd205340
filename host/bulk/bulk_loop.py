"""An event loop on a thread of its own, for bytes that must not make the daemon's own loop late.

Encrypting and decrypting let go of the interpreter for each record, thousands of times a second: on
the daemon's loop every answer to a peer would wait behind them. What belongs to this loop is
touched by it alone; the two loops send each other work, which is done in the order in which it was
sent, many pieces in one turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

STOP_S: Final = 5.0
"""A thread that has not ended by then is left behind; it does not keep the process alive."""

log = logging.getLogger("shoal.channel")

T = TypeVar("T")
Work = tuple[Callable[..., object], tuple[Any, ...]]


_standing: dict[asyncio.AbstractEventLoop, BulkLoop] = {}


class Post:
    """Work for one loop, from any thread. Waking a loop costs more than most of what is sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: deque[Work] = deque()
        self._is_awaited = False

    def send(self, call: Callable[..., object], *arguments: Any) -> None:
        """`call(*arguments)` in the loop's next turn; nothing once the loop is closed."""
        self._work.append((call, arguments))
        if not self._is_awaited and not self._loop.is_closed():
            self._is_awaited = True
            self._loop.call_soon_threadsafe(self._do)

    def _do(self) -> None:
        # First this: what is sent from now on may wake the loop once more for nothing, but it is
        # never left lying.
        self._is_awaited = False
        for _ in range(len(self._work)):
            call, arguments = self._work.popleft()
            try:
                call(*arguments)
            except Exception:
                # Root of the work: one connection must not take the others' post with it.
                log.exception("work for another thread failed")


class BulkLoop:
    """The thread: `there` sends work to it, `here` back. Hosts on the same loop share one."""

    @classmethod
    def of_this_loop(cls) -> BulkLoop:
        """The one that works for the running loop; `give_back` when it is not needed any more."""
        home = asyncio.get_running_loop()
        found = _standing.get(home)
        if found is None:
            found = _standing[home] = cls(home)
        found._users += 1
        return found

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._users = 0
        self._loop: asyncio.AbstractEventLoop = type(home)()
        self.here = Post(home).send
        self.there = Post(self._loop).send
        self._thread = threading.Thread(target=self._run, name="bulk data", daemon=True)
        self._thread.start()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises, done over there; it is cancelled as its asker is."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(future)

    async def give_back(self) -> None:
        """The last one ends the thread, once it has done what was sent."""
        self._users -= 1
        if self._users:
            return
        del _standing[self._home]
        self.there(self._wind_up)
        await asyncio.to_thread(self._thread.join, STOP_S)
        if self._thread.is_alive():
            log.error("the thread for bulk data did not end within %g s", STOP_S)

    def _wind_up(self) -> None:
        self._loop.create_task(self._end(), name="bulk data, the end")

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=STOP_S / 2)
        await asyncio.sleep(0)  # Connections that are being ended take two turns for it.
        await asyncio.sleep(0)
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
