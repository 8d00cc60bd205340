"""Begins a daemon's tape where its options say, or says why not; never in the daemon's way."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from host.files.home import Home
from host.options import TapeOptions
from host.tape.tape_file import TapeLabel, TapeRecorder, TapeWriter
from protocol.tape import Frame
from protocol.trace import Fact, TapeStopped

log = logging.getLogger("shoal.tape")


class NoTape:
    """In place of a recorder where nothing is recorded."""

    is_running = False
    state_every_bytes = 1 << 40

    def put(self, frame: Callable[[], Frame], size: int, *, is_urgent: bool = False) -> None:
        """Forgets it."""

    def stop(self, reason: str) -> None:
        """There is nothing to stop."""

    def close(self) -> None:
        """There is nothing to end."""


def begin_tape(
    options: TapeOptions,
    home: Home,
    label: TapeLabel,
    instance: str,
    tell: Callable[[Fact], None],
) -> TapeRecorder | NoTape:
    """A running recorder, or none. tell: hears on the event loop when the tape stops early."""
    if not options.is_on:
        return NoTape()
    loop = asyncio.get_running_loop()

    def stopped(reason: str) -> None:
        fact = TapeStopped(label.role, reason)
        try:
            loop.call_soon_threadsafe(tell, fact)
        except RuntimeError:
            log.warning("%s", fact.text)  # The loop has ended already.

    try:
        if options.folder is None:
            folder = home.tape(label.project, label.role, instance)
        else:
            folder = options.folder / f"{label.role}-{instance}"
        mib_max, now_s = options.mib_max, time.time()
        writer = TapeWriter(folder, label, os.urandom(8), mib_max=mib_max, wall_s=now_s)
    except OSError as error:
        tell(TapeStopped(label.role, f"it cannot be started: {error.strerror or error}"))
        return NoTape()
    return TapeRecorder(writer, on_stop=stopped)
