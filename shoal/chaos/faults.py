"""Harm that needs no special right on this machine: a network engine held, a disk that is full."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

import psutil

from protocol.errors import UserError

NETWORK_ENGINE: Final = "p2pd"
LOOK_S: Final = 0.2
"""How often a held engine is looked for again: its daemon may have started another."""


@contextlib.contextmanager
def engine_held(daemon: psutil.Process, *, on_s: float, off_s: float) -> Iterator[None]:
    """Inside, the network engine of this daemon runs `on_s` and rests `off_s`, again and again.

    A daemon that finds its engine hanging starts another one: that one is held too.
    """
    is_over = threading.Event()
    held = threading.Thread(target=_hold, args=(daemon, is_over, on_s, off_s), daemon=True)
    held.start()
    try:
        yield
    finally:
        is_over.set()
        held.join(5.0)


def _hold(daemon: psutil.Process, is_over: threading.Event, on_s: float, off_s: float) -> None:
    try:
        while not is_over.is_set():
            each_engine(daemon, psutil.Process.suspend)
            if is_over.wait(off_s) or not on_s:
                continue
            each_engine(daemon, psutil.Process.resume)
            is_over.wait(on_s)
    finally:
        each_engine(daemon, psutil.Process.resume)


def each_engine(daemon: psutil.Process, act: Callable[[psutil.Process], None]) -> None:
    """Does this to every network engine of the daemon that still lives."""
    with contextlib.suppress(psutil.Error):
        for process in daemon.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name() == NETWORK_ENGINE:
                    act(process)


@contextlib.contextmanager
def disk_full(process: psutil.Process) -> Iterator[None]:
    """Inside, the process can write no file beyond its first byte. UserError where the system
    cannot bound another process.
    """
    if not hasattr(process, "rlimit"):
        raise UserError(
            "This system cannot make a disk seem full: only Linux bounds the files of a process"
            " that runs. Leave out disk-full."
        )
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
