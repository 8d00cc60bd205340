"""Calls that Linux has and other systems lack, and whether a stand-in takes the place of each here.

Each call has one function in this room, with both ways of doing its work: that of Linux, and one
that any POSIX system has. What the system has decides, and `VARIABLE` can force the portable way,
so that it is tested where the call exists.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

from protocol.errors import UserError

VARIABLE: Final = "SHOAL_STAND_INS"
"""Environment: `all`, or calls with commas between, for which the stand-ins are used although the
system has the calls: in tests, and in a sandbox that forbids one."""

Call = Literal[
    "affinity",
    "descriptor-paths",
    "fallocate",
    "memfd",
    "multicast-all",
    "parent-death",
    "pidfd",
    "process-status",
    "received-cloexec",
    "seqpacket",
]

IS_LINUX: Final = sys.platform == "linux"

AVAILABLE: Final[Mapping[Call, bool]] = {
    "affinity": hasattr(os, "sched_getaffinity"),
    "descriptor-paths": hasattr(os, "O_PATH") and Path("/proc/self/fd").exists(),
    "fallocate": hasattr(os, "posix_fallocate"),
    "memfd": hasattr(os, "memfd_create"),
    "multicast-all": IS_LINUX,
    "parent-death": IS_LINUX,
    "pidfd": hasattr(os, "pidfd_open"),
    "process-status": Path("/proc/self/status").exists(),
    "received-cloexec": hasattr(socket, "MSG_CMSG_CLOEXEC"),
    "seqpacket": IS_LINUX,
}
"""What this system has."""


def uses(call: Call, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the system's own call is used; False: its stand-in.

    UserError if the environment names a call that there is not.
    """
    return AVAILABLE[call] and call not in _forced(environment.get(VARIABLE, ""))


def _forced(text: str) -> frozenset[str]:
    known = frozenset(get_args(Call))
    named = frozenset(one.strip() for one in text.split(",") if one.strip())
    if named == {"all"}:
        return known
    if unknown := sorted(named - known):
        raise UserError(
            f"{VARIABLE} names {unknown[0]!r}, which has no stand-in. It may be `all`, or of "
            f"these, with commas between: {', '.join(sorted(known))}."
        )
    return named
