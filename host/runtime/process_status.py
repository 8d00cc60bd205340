"""What the kernel counts of this process's memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final, Literal

from host.runtime import stand_ins

STATUS: Final = Path("/proc/self/status")

Line = Literal["VmData", "VmHWM", "VmRSS"]
"""As Linux calls them: asked for, the most that was resident, resident now."""


def status_bytes(name: Line) -> int | None:
    """Memory of this process, in bytes; None where the system does not count it.

    Other systems than Linux count what is resident, and do not say what was asked for.
    """
    if stand_ins.uses("process-status"):
        return _status_line(name)
    if name == "VmData":
        return None
    if name == "VmHWM":
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * 1024 if stand_ins.IS_LINUX else most  # BSD and macOS count in bytes.
    import psutil

    return int(psutil.Process().memory_info().rss)


def _status_line(name: Line) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None
