"""Daemons of a test as processes, and what can be asked of them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import psutil

from protocol.errors import TransientError
from shoal.common import daemons

POLL_S = 0.05


class Processes:
    """Daemons of the test, each with its output in a file; all are gone at the end."""

    def __init__(self, folder, home):
        self.folder = folder
        self.home = home
        self.running = {}
        self.every = []

    def start(self, name, *arguments):
        output = (self.folder / f"{name}.out").open("ab")
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "shoal", "--home", str(self.home.root), *arguments],
            cwd=self.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        output.close()
        self.every.append(self.running[name])

    def check(self, *names):
        for name in names:
            assert self.running[name].poll() is None, f"{name} ended: {self.output(name)}"

    def output(self, name):
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def kill(self, name):
        """kill -9, and what it leaves behind."""
        process = self.running.pop(name)
        process.kill()
        process.wait(10)
        return process

    def clean_up(self):
        for process in self.every:
            if process.poll() is not None:
                continue
            children = []
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait(10)
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()


def status(home, role, instance="default"):
    """The status of a daemon, or None while it does not answer."""
    found = [d for d in home.daemons() if (d.role, d.instance) == (role, instance)]
    with contextlib.suppress(TransientError):
        return daemons.ask_status(found[0]) if found else None
    return None


def until(look, *, timeout_s, what):
    """The first result of `look` that is true; a failure with its last result after the time."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        if found := look():
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shoal(home, *arguments):
    """A verb of the command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "shoal", "--home", str(home.root), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
