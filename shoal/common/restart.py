"""A daemon that stops over a bug starts again from its disk, in the same process.

The process executes its own command line anew, so that nothing of the failed run is left in memory;
its process id, its terminal and whoever supervises it stay. A daemon that fails again and again
stays down with exit code 70, which systemd and others may take up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from protocol.backoff import Backoff
from protocol.errors import RoleFailed, sole
from shoal.common import causes, failures

RESTART = Backoff((1.0, 2.0, 5.0, 10.0, 30.0))
RESTARTS_MAX = len(RESTART.steps_s)
WINDOW_S = 600.0
"""So often at most within so long: a bug that meets every start is not worn away by starting."""

PAST_VARIABLE = "SHOAL_RESTARTED_AT"
"""When this process was started again lately: seconds of the monotonic clock, with commas."""


def after(error: Exception) -> int:
    """Reports what ended the command; returns its exit code unless a daemon starts again."""
    failed = sole(error)
    if not isinstance(failed, RoleFailed) or causes.of_this_machine(failed) is not None:
        return failures.report(error)
    past = lately(os.environ.get(PAST_VARIABLE, ""), time.monotonic())
    pause_s = pause_after(past)
    if pause_s is None:
        times = f"{len(past) + 1} times in {WINDOW_S / 60:.0f} minutes"
        return failures.report(error, f"It failed {times} and stays down.")
    failures.report(error, f"It starts again from its disk in {pause_s:.0f} s.")
    try:
        time.sleep(pause_s)
    except KeyboardInterrupt:
        return failures.interrupted()
    os.environ[PAST_VARIABLE] = ",".join(str(int(at_s)) for at_s in (*past, time.monotonic()))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def lately(text: str, now_s: float) -> list[float]:
    """The restarts that count; whatever is no number, or of another boot, does not."""
    times = [float(word) for word in text.split(",") if word.isdecimal()]
    return [at_s for at_s in times if 0 <= now_s - at_s <= WINDOW_S]


def pause_after(past: Sequence[float]) -> float | None:
    """Seconds until the next start; None: no more."""
    return RESTART.pause_s(len(past)) if len(past) < RESTARTS_MAX else None
