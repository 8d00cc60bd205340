"""Short names for folders that lie deep: the address of a local socket has few bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from host.runtime import stand_ins

SOCKET_BYTES_MAX: Final = 107 if stand_ins.IS_LINUX else 103
"""Of the path in a socket's address, by unix(7), and by the headers of BSD and macOS."""


@contextmanager
def short_name(folder: Path) -> Iterator[str]:
    """A short path to this folder, valid inside the block. OSError if the folder is not there.

    On Linux it goes through a descriptor; elsewhere through a link in a temporary folder, which is
    removed afterwards.
    """
    if stand_ins.uses("descriptor-paths"):
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    import shutil
    import tempfile

    # Not where TMPDIR says: on macOS that is a long path itself.
    temporary = tempfile.mkdtemp(prefix="shoal-", dir="/tmp")
    try:
        link = Path(temporary) / "to"
        link.symlink_to(folder.absolute())
        yield str(link)
    finally:
        shutil.rmtree(temporary)
