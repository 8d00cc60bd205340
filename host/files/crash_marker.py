"""How the former run of a daemon ended, for those that could not say it themselves.

A note lies in the home while a daemon runs and goes when it ends, however it ends, unless it was
killed. Whoever starts next finds it, and compares: another boot means that the machine went down, a
higher count of the kernel's memory killings means that memory ran out. For signals that the
interpreter survives for a moment, such as a segmentation fault, faulthandler writes where it was.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from host.files import keystore
from host.files.home import DaemonRole, Home
from protocol import decoders
from protocol.errors import InternalError, RoleFailed, ShoalError, sole

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KILLINGS = Path("/proc/vmstat")
NOTE_BYTES_MAX = 4096

log = logging.getLogger("shoal.life")


class Note(Struct, frozen=True, kw_only=True):
    """What a daemon leaves while it runs."""

    pid: int
    at_s: float
    """Wall clock, Unix seconds, of its start."""
    boot_id: str
    memory_killings: int
    """Processes that the kernel had killed for want of memory since the boot."""


@contextlib.contextmanager
def life(home: Home, role: DaemonRole, instance: str, *, remedy: str) -> Iterator[None]:
    """The exclusive life of a daemon: it holds the key, and its end, if told by nobody, is told by
    its successor. UserError, ending with `remedy`, where another daemon has the key; RoleFailed
    where the daemon ends over a bug, which is in its log with its trace.
    """
    with keystore.lock(home.identity(role, instance), remedy=remedy):
        place = home.log(role, instance).with_suffix(".running")
        fatal = home.log(role, instance).with_suffix(".fatal")
        told = _end_of_former(place, fatal)
        if told:
            log.warning("%s", told)
        with contextlib.suppress(OSError):  # A full disk is told elsewhere, and must not stop us.
            place.write_bytes(msgspec.json.encode(_note()))
        try:
            with _fatal_signals_to(fatal):
                yield
        except Exception as error:
            # Root of the daemon: an error that says what to do is the command's to tell.
            found = sole(error)
            if isinstance(found, ShoalError) and not isinstance(found, InternalError):
                raise
            # On the terminal the command tells it, in one line.
            only = {"is_only_for_file": True}
            log.critical("the daemon stops because of a bug: %r", found, exc_info=error, extra=only)
            raise RoleFailed(role) from error
        finally:
            place.unlink(missing_ok=True)


def words_of_end(former: Note, now: Note, fatal: str = "") -> str:
    """How the former run must have ended, and what to do about it."""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(former.at_s))
    run = f"the run that began {since} (pid {former.pid}) did not exit cleanly:"
    if former.boot_id != now.boot_id:
        return f"{run} the machine went down or was restarted. Nothing to do."
    if fatal:
        return f"{run} it crashed with {fatal}"
    killed = now.memory_killings - former.memory_killings
    if killed > 0:
        return (
            f"{run} it was killed, and meanwhile the kernel killed {killed} of this machine's "
            "processes for want of memory. Free memory, or lower --micro-batch."
        )
    return f"{run} somebody killed it (SIGKILL, or Ctrl-C three times). Nothing to do."


def _end_of_former(place: Path, fatal: Path) -> str:
    """Empty if the former run ended by itself, or if there was none."""
    try:
        with place.open("rb") as file:
            former = decoders.json_decoder(Note).decode(file.read(NOTE_BYTES_MAX))
    except (OSError, msgspec.MsgspecError):
        return ""
    return words_of_end(former, _note(), _kept_fatal(fatal))


def _kept_fatal(fatal: Path) -> str:
    """What faulthandler wrote, in one line, moved to where it stays; empty if nothing."""
    try:
        first = fatal.read_text(errors="replace").partition("\n")[0]
        if not first:
            return ""
        kept = fatal.with_name(f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{fatal.stem}.txt")
        fatal.rename(kept)
    except OSError:
        return ""
    return f"{first.removeprefix('Fatal Python error: ')}; where it was is in {kept}"


@contextlib.contextmanager
def _fatal_signals_to(fatal: Path) -> Iterator[None]:
    try:
        file = fatal.open("wb")
    except OSError:
        yield  # Only a convenience: the daemon runs without.
        return
    with file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()
    fatal.unlink(missing_ok=True)


def _note() -> Note:
    return Note(
        pid=os.getpid(), at_s=time.time(), boot_id=_boot_id(), memory_killings=_memory_killings()
    )


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""  # Not Linux: then a restart cannot be told from a killing.


def _memory_killings() -> int:
    try:
        lines = KILLINGS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
