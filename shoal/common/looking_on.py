"""A process that looks on in a swarm by its join link, asked like a daemon of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from host.join_link import parse_link
from host.runtime.python_path import python_path

OBSERVER_STOP_S: Final = 10.0


@contextlib.contextmanager
def observer(link: str) -> Iterator[Path]:
    """The control socket of a process that looks on in the swarm; it ends with the block."""
    parse_link(link)
    with tempfile.TemporaryDirectory(prefix="shoal-tui-") as folder:
        socket = Path(folder) / "run" / "observer.sock"
        socket.parent.mkdir(mode=0o700)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "node.daemon.observer", link, str(socket)],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield socket
        finally:
            process.terminate()
            try:
                process.wait(OBSERVER_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
