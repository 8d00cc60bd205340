"""Sockets of network engines that were killed: they stay in the temporary directory for ever.

Only what is provably nobody's is removed: a socket of ours that refuses connections, and is old
enough not to be one that is just being opened.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from pathlib import Path

PATTERNS = ("hivemind-p2pd-*.sock", "hivemind-p2pclient-*.sock")
AGE_S_MIN = 120.0
"""Between its binding and its listening a socket refuses connections too."""

SWEPT_MAX = 2_000
CONNECT_S = 0.2


def sweep(folder: Path = Path("/tmp")) -> int:
    """Remove dead sockets of engines of this user; how many there were."""
    swept = 0
    for pattern in PATTERNS:
        for path in list(folder.glob(pattern))[:SWEPT_MAX]:
            with contextlib.suppress(OSError):  # Another host sweeps too, or it is just closed.
                if _is_dead(path):
                    path.unlink()
                    swept += 1
    return swept


def _is_dead(path: Path) -> bool:
    found = path.lstat()
    is_ours = stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or time.time() - found.st_mtime < AGE_S_MIN:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
