"""What Shoal's own processes take: the daemon, its trainer, its network engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import psutil

TREE_EVERY_S: Final = 10.0
"""Finding children means looking at every process of the machine."""

SHARES_EVERY_S: Final = 10.0
"""To say which pages are shared the kernel walks all of a process: 7 ms for each GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """So much at one moment."""

    cpu_s: float
    """Processor seconds since the first look; never less than before."""
    trainer_cpu_s: float
    """The trainers' part of it, all ranks together."""
    memory_bytes: int
    """Resident, with what the processes share counted once."""


class OwnProcesses:
    """Adds up over processes that come and go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._self = psutil.Process()
        self._tree: list[psutil.Process] = []
        self._tree_s = -1e9
        self._trainer_pid: int | None = None
        self._trainer: set[int] = set()
        """Process ids of its ranks."""
        self._seen_s: dict[tuple[int, float], float] = {}
        self._memory: dict[tuple[int, float], _Memory] = {}
        self._cpu_s = self._trainer_cpu_s = 0.0

    def look(self, trainer_pid: int | None) -> Own:
        """What all of them took; trainer_pid: which of them trains now, if any."""
        now_s = self._clock()
        is_due = now_s - self._tree_s >= TREE_EVERY_S
        if is_due or trainer_pid != self._trainer_pid:
            self._tree = _with_trainer(self._self, trainer_pid)
            self._tree_s, self._trainer_pid = now_s, trainer_pid
            self._trainer = _ranks(trainer_pid, self._tree)
        memory_bytes = 0
        for process in self._tree:
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    memory_bytes += self._resident(process, key, now_s)
            except psutil.Error:
                continue  # It ended; the next look at the tree is without it.
            # What a process took before it was first seen counts from then on only.
            used_s = times.user + times.system
            spent_s = used_s - self._seen_s.get(key, used_s)
            self._seen_s[key] = used_s
            self._cpu_s += spent_s
            if process.pid in self._trainer:
                self._trainer_cpu_s += spent_s
        living = {process.pid for process in self._tree}
        self._seen_s = {key: used for key, used in self._seen_s.items() if key[0] in living}
        self._memory = {key: known for key, known in self._memory.items() if key[0] in living}
        return Own(cpu_s=self._cpu_s, trainer_cpu_s=self._trainer_cpu_s, memory_bytes=memory_bytes)

    def _resident(self, process: psutil.Process, key: tuple[int, float], now_s: float) -> int:
        """Bytes of a process. Pages shared between processes count in parts, where the system
        tells; between two such answers by what all its pages grew or shrank."""
        rss = int(process.memory_info().rss)
        known = self._memory.get(key)
        if known is None or now_s - known.at_s >= SHARES_EVERY_S:
            known = self._memory[key] = _Memory(now_s, rss - _in_parts(process, rss))
        return max(0, rss - known.others)


def _with_trainer(top: psutil.Process, trainer_pid: int | None) -> list[psutil.Process]:
    """A process and everything below it; a trainer that a fork server made lies elsewhere."""
    tree = [top, *top.children(recursive=True)]
    if trainer_pid is not None and all(one.pid != trainer_pid for one in tree):
        with suppress(psutil.NoSuchProcess):
            trainer = psutil.Process(trainer_pid)
            tree += [trainer, *trainer.children(recursive=True)]
    return tree


def _ranks(pid: int | None, tree: list[psutil.Process]) -> set[int]:
    """The trainer and its other ranks, which it started; `tree` has all of ours."""
    if pid is None:
        return set()
    found = {pid}
    for process in tree:
        with suppress(psutil.Error):  # It ended; then it has no part in anything.
            if process.ppid() == pid:
                found.add(process.pid)
    return found


class _Memory(NamedTuple):
    """Of one process at one moment."""

    at_s: float
    others: int
    """Part of the resident bytes that counts elsewhere."""


def _in_parts(process: psutil.Process, rss: int) -> int:
    """Bytes of a process with shared pages in parts; the same bytes where that cannot be told."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return rss
