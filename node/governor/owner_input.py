"""When somebody last typed or moved something on this machine, as far as it can be told.

Desktops answer for themselves (GNOME, X11), a terminal by the last read of its device. A service
or a Wayland session of another kind often cannot be asked: then the answer is None, "cannot tell",
and the owner's settings say what counts. No probe may take longer than `PROBE_S_MAX`.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

PROBE_S_MAX: Final = 2.0
SCREENS: Final = ("/tmp/.X11-unix/X*", "/run/user/*/wayland-*")
"""Sockets of graphical sessions, whoever runs them."""

_GNOME = (
    "gdbus",
    "call",
    "--session",
    "--dest=org.gnome.Mutter.IdleMonitor",
    "--object-path=/org/gnome/Mutter/IdleMonitor/Core",
    "--method=org.gnome.Mutter.IdleMonitor.GetIdletime",
)

Run = Callable[[tuple[str, ...]], str | None]
"""Gets a command, gives what it printed; None if it is not there, failed, or took too long."""


@dataclass(frozen=True, slots=True)
class OwnerInput:
    """One look."""

    idle_s: float | None
    """Infinite where nobody is logged in; None: cannot tell."""
    way: str
    """How it was found out, or why it could not be."""


def look(
    environ: Mapping[str, str] = os.environ,
    *,
    run: Run | None = None,
    root: Path = Path("/"),
    now_s: Callable[[], float] = time.time,
) -> OwnerInput:
    """The shortest time since anybody's input. May take seconds: not for an event loop."""
    idle = list(_terminals(root, now_s()))
    screen = _screen(environ, run or run_bounded)
    if screen is not None:
        way, seconds = screen
        return OwnerInput(min([seconds, *idle]), way)
    if any(found for pattern in SCREENS for found in root.glob(pattern.lstrip("/"))):
        if idle and min(idle) < PROBE_S_MAX:
            return OwnerInput(min(idle), "terminals")
        return OwnerInput(None, "a graphical session runs here, which this process may not query")
    return OwnerInput(min(idle, default=math.inf), "terminals" if idle else "nobody is logged in")


def _screen(environ: Mapping[str, str], run: Run) -> tuple[str, float] | None:
    """What the desktop says, if there is one that answers."""
    if "DBUS_SESSION_BUS_ADDRESS" in environ:
        said = run(_GNOME)
        found = re.search(r"uint64 (\d+)", said or "")
        if found:
            return "GNOME", int(found[1]) / 1000.0
    if "DISPLAY" in environ:
        said = run(("xprintidle",))
        if said is not None and said.strip().isdigit():
            return "X11", int(said) / 1000.0
    return None


def _terminals(root: Path, now_s: float) -> Iterator[float]:
    """Seconds since each terminal that somebody is logged in at was last read from."""
    for user in psutil.users():
        terminal = user.terminal
        if not terminal or terminal.startswith(":"):
            continue
        try:
            read_s = (root / "dev" / terminal).stat().st_atime
        except OSError:
            continue  # Logged out since.
        yield max(0.0, now_s - read_s)


def run_bounded(command: tuple[str, ...]) -> str | None:
    """As `Run` says."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
