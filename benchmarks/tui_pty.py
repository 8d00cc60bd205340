"""Runs a program in a terminal of its own, for benchmarks of the screens."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time


class Terminal:
    """A child process and the terminal it draws on."""

    def __init__(self, command: list[str], *, columns: int = 200, rows: int = 60) -> None:
        self.started_s = time.monotonic()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(command[0], command)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_for(self, seconds: float, *, until: bytes = b"") -> bytes:
        """What the child draws, until some bytes come or the time is over."""
        ends_s = time.monotonic() + seconds
        drawn = b""
        while (left_s := ends_s - time.monotonic()) > 0:
            if select.select([self.master], [], [], left_s)[0]:
                try:
                    drawn += os.read(self.master, 1 << 16)
                except OSError:
                    break  # the child is gone
                if until and until in drawn:
                    break
        return drawn

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self.master, keys.encode())

    def cpu_s(self) -> float:
        """Processor seconds of the child so far, all threads."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> int:
        """Quits the screen; its exit status."""
        self.press("q")
        self.read_for(2.0)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
