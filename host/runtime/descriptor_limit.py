"""How many descriptors this process may have open."""

from __future__ import annotations

import resource


def allow_descriptors(count: int) -> int:
    """The soft limit, raised to `count` or as far as the system lets us; never lowered.

    The usual soft limit of 1024, 256 on macOS, is for programs of old.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return count
    wanted = count if hard == resource.RLIM_INFINITY else min(hard, count)
    while soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            wanted //= 2  # macOS has a ceiling below the hard limit, and does not tell it.
        else:
            return wanted
    return soft
