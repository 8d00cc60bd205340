"""How much room files take."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def tree_bytes(folders: Iterable[Path]) -> int:
    """Bytes on disk of all files below these folders; what vanishes meanwhile does not count."""
    total = 0
    waiting = [os.fspath(folder) for folder in folders]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
    return total
