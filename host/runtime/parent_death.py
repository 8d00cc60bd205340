"""A process that somebody else started for a purpose does not outlive it."""

from __future__ import annotations

import ctypes
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""


def end_with_parent(number: signal.Signals) -> None:
    """From now on the kernel sends us this signal when the thread that started us ends.

    Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
