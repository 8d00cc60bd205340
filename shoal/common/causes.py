"""What an exception means where it comes from this machine and not from a bug of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from shoal.common import extras

_OF_DISKS = {
    errno.ENOSPC: "The disk is full{where}. Free some room, then start again.",
    errno.EDQUOT: "Your share of the disk is used up{where}. Free some room, then start again.",
    errno.EROFS: "The disk is mounted read-only{where}. Mount it writable, or use another --home.",
    errno.EIO: "The disk fails{where}. Look at the system's log, and move --home to another disk.",
    errno.EMFILE: "Too many files are open. Raise the limit (ulimit -n), then start again.",
    errno.ENFILE: "The whole machine has too many files open. End something, then start again.",
    errno.ENOMEM: "The machine is out of memory. Free some, then start again.",
    errno.EACCES: "Access was denied{where}. Correct the permissions, or use another --home.",
}


def of_this_machine(error: Exception) -> str | None:
    """What is wrong with this machine, and what to do; None where that is not the trouble."""
    for one in _chain(error):
        if isinstance(one, MemoryError):
            return "The machine is out of memory. Free some, then start again."
        if isinstance(one, OSError) and one.errno in _OF_DISKS:
            where = f" ({one.filename})" if isinstance(one.filename, str) else ""
            return _OF_DISKS[one.errno].format(where=where)
        if isinstance(one, ImportError) and not isinstance(one, ModuleNotFoundError):
            return f"A library cannot be loaded ({one}). Install Shoal again."
        if isinstance(one, ModuleNotFoundError):
            return (one.name and extras.explain(one.name)) or (
                f"The library {one.name} is missing. Install Shoal again."
            )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it holds, and what it came from."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
