"""Begins a daemon's tape where its options say, or says why not; never in the daemon's way."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

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


def tape_folder(options: TapeOptions, home: Home, label: TapeLabel, instance: str) -> Path:
    """Where the tape goes: a directory of this daemon's own."""
    if options.folder is None:
        return home.tape(label.project, label.role, instance)
    return options.folder / f"{label.role}-{instance}"


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
        writer = TapeWriter(
            tape_folder(options, home, label, instance),
            label,
            os.urandom(8),
            mib_max=options.mib_max,
            wall_s=time.time(),
        )
    except OSError as error:
        tell(TapeStopped(label.role, f"it cannot be started: {error.strerror or error}"))
        return NoTape()
    return TapeRecorder(writer, on_stop=stopped)
