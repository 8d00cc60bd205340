"""Where compiled kernels are kept between runs.

numba reads the folder from `NUMBA_CACHE_DIR`. It is named by the content of all kernel sources, so
that after an update no program goes on with a part of the former loops. What lies there is loaded
as code: the folder must belong to this user and be closed to others.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

VARIABLE: Final = "NUMBA_CACHE_DIR"

SOURCES: Final = Path(__file__).resolve().parents[2] / "protocol" / "numerics" / "compiled"

KEPT_MAX: Final = 4
"""Folders that stay: two versions in use side by side must not evict each other."""


def use(root: Path) -> Path | None:
    """The folder below `root` that this process and its children keep compiled kernels in.

    numba makes it when it compiles the first one. None where the environment names a folder
    already, or where others could write to this one: each process then compiles for itself. Call
    it before anything of `protocol.numerics` is imported.
    """
    folder = root / digest_of(SOURCES)
    if VARIABLE in os.environ or not all(_is_ours(one) for one in (root, folder)):
        return None
    _forget_old(root, folder)
    os.environ[VARIABLE] = str(folder)
    return folder


def digest_of(sources: Path) -> str:
    """A name for the content of all Python files of a folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(sources.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can put anything there; so it is where nothing is yet."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _forget_old(root: Path, ours: Path) -> None:
    """Removes the oldest folders, when one more is about to be made."""
    if ours.exists() or not root.exists():
        return
    by_age = sorted(root.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)
    for folder in by_age[KEPT_MAX - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
