"""Threads for arithmetic, as many as the host gives: pieces go to whoever is free."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from host.runtime import stand_ins

T = TypeVar("T")
R = TypeVar("R")

NICE: Final = 5
"""How far arithmetic stands behind the thread that answers the network."""


def available() -> int:
    """Cores that this process may use."""
    if stand_ins.uses("affinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def give_way() -> None:
    """Puts the calling thread behind those that people and peers wait for, where the system can."""
    if stand_ins.IS_LINUX:
        # Of this thread alone, which only Linux can; a host that forbids it loses nothing else.
        me = threading.get_native_id()
        with contextlib.suppress(OSError):
            niceness = min(os.getpriority(os.PRIO_PROCESS, me) + NICE, 19)
            os.setpriority(os.PRIO_PROCESS, me, niceness)


class Cores:
    """Workers that are threads. The caller works too, so it never waits for a busy pool.

    Several callers at once share the threads.
    """

    def __init__(self, count: int | None = None) -> None:
        """count: threads that work for one caller, itself among them; None: every core."""
        self.count = count = count or available()
        self._pool = (
            ThreadPoolExecutor(count - 1, thread_name_prefix="core", initializer=give_way)
            if count > 1
            else None
        )

    def close(self) -> None:
        """Ends the threads; nobody may be at work."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, work: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
        """As `protocol.numerics.workers.Workers` says."""
        if self._pool is None or len(pieces) < 2:
            return [work(piece) for piece in pieces]
        turns = itertools.count()
        results: dict[int, R] = {}

        def go_on() -> None:
            # `next` of a counter is one step of the interpreter: no piece is taken twice.
            while (at := next(turns)) < len(pieces):
                results[at] = work(pieces[at])

        many = min(self.count, len(pieces)) - 1
        helpers: list[Future[None]] = [self._pool.submit(go_on) for _ in range(many)]
        try:
            go_on()
        finally:
            begun = [helper for helper in helpers if not helper.cancel()]
            wait(begun)
        for helper in begun:
            helper.result()
        return [results[at] for at in range(len(pieces))]
