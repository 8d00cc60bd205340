"""A process that somebody else started for a purpose does not outlive it.

On Linux the kernel sees to that. Elsewhere a thread looks at who its parent is: a process whose
parent ended gets another one.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from host.runtime import stand_ins
from protocol.errors import UserError

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""

VARIABLE: Final = "SHOAL_ENDS_WITH_PARENT"
"""Environment of a child: the number of the signal that it sends itself when its parent ends."""

LOOK_EVERY_S: Final = 0.25


def end_with_parent(number: signal.Signals) -> None:
    """From now on we get this signal when the process that started us ends.

    On Linux it comes from the kernel, and already when the thread that started us ends; elsewhere
    within `LOOK_EVERY_S`. OSError where the kernel refuses.
    """
    if not stand_ins.uses("parent-death"):
        watched = (os.getppid(), number)
        Thread(target=_watch_parent, args=watched, name="parent", daemon=True).start()
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def before_exec(number: signal.Signals) -> Callable[[], None] | None:
    """What `subprocess` shall call in a child before its program runs (`preexec_fn`).

    None where nothing outlasts the start of a program; the child needs `environment_for` there.
    """
    return (lambda: end_with_parent(number)) if stand_ins.uses("parent-death") else None


def environment_for(number: signal.Signals) -> dict[str, str]:
    """What to add to the environment of a child that runs `shoal`, beside `before_exec`."""
    return {} if stand_ins.uses("parent-death") else {VARIABLE: str(int(number))}


def obey() -> None:
    """Ends with the parent if whoever started us said so in our environment.

    Our own children are not meant, so the variable goes. UserError if it names no signal.
    """
    asked = os.environ.pop(VARIABLE, "")
    if not asked:
        return
    try:
        number = signal.Signals(int(asked))
    except ValueError as error:
        raise UserError(
            f"{VARIABLE} is {asked!r}, which is no signal's number. Set it to 15, for SIGTERM."
        ) from error
    end_with_parent(number)


def _watch_parent(parent: int, number: signal.Signals) -> None:
    pause = Event()
    while os.getppid() == parent:
        pause.wait(LOOK_EVERY_S)
    os.kill(os.getpid(), number)
