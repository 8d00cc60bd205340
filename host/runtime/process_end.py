"""The end of a child process as a descriptor, which event loops and `select` can wait for."""

from __future__ import annotations

import os
from threading import Thread
from typing import Protocol

from host.runtime import stand_ins


class Waited(Protocol):
    """A child process of ours."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int: ...


def descriptor_of_end(process: Waited) -> int:
    """A descriptor that is readable once the process has ended; the caller closes it.

    When it is readable, `process.wait()` returns at once. Where the system has no pidfd, a thread
    waits for the process, and ends with it. OSError if the system gives no descriptor.
    """
    if stand_ins.uses("pidfd"):
        return os.pidfd_open(process.pid)
    reading, writing = os.pipe()
    Thread(
        target=_close_at_end, args=(process, writing), name=f"end-of-{process.pid}", daemon=True
    ).start()
    return reading


def _close_at_end(process: Waited, descriptor: int) -> None:
    """A pipe without a writer is readable."""
    try:
        process.wait()
    finally:
        os.close(descriptor)
