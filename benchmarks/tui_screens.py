"""The terminal UI: how soon it is there, and how much of a core it takes with a thousand learners.

    .venv/bin/python benchmarks/tui_screens.py [--times 5] [--seconds 20] [--learners 1000]

First paint: from starting Python to the first whole screen, in a terminal of 80 x 24, without any
daemon; in turn with the least program of the same library, which nothing made with it beats. Then,
in one of 200 x 60, the screen follows a stand-in for a daemon: its answers are MessagePack as from
the real control socket and change with every question, twice a second.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import pty
import select
import statistics
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

import psutil

BARE = """
import sys
from host.runtime.garbage import seldom_sought
with seldom_sought():
    from tui import app
    from tui.sources.live import LiveSource
sys.exit(app.run(LiveSource(lambda: [], None)))
"""
"""The screen and nothing else, begun as the command does it: what this script imports would count
too."""

LEAST = """
from textual.app import App
from textual.widgets import Static
class Least(App):
    BINDINGS = [("q", "quit", "quit")]
    def compose(self):
        yield Static("Contribution")
Least().run()
"""

PAINTED = b"Contribution"
"""The end of the bar of views, which is on the first screen."""

WARM_UP_S = 5.0
VIEWS = {"1": "overview and learners", "2": "learners", "6": "events"}


class Terminal:
    """Python in another process, and the terminal it draws on."""

    def __init__(self, *words: str, columns: int = 200, rows: int = 60) -> None:
        self.started_s = time.monotonic()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(sys.executable, [sys.executable, *words])
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
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> int:
        """Quits the screen; its exit status."""
        self.press("q")
        self.read_for(2.0)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def screen(learners: int) -> int:
    """The child: the screen, fed by the stand-in."""
    import msgspec

    from protocol import decoders
    from tests.support import recordings
    from tui import app
    from tui.sources.live import Endpoint, LiveSource

    frames = recordings.thousand(8, learners)
    answers = [msgspec.msgpack.encode({"status": frame.statuses[0]}) for frame in frames]
    turn = itertools.cycle(answers)

    class Double:
        """A connection to the stand-in."""

        def ask(self, verb: str, wanted: Any, timeout_s: float = 2.0, **fields: Any) -> Any:
            content = next(turn) if verb == "status" else b"\x80"
            return decoders.msgpack_decoder(wanted).decode(content)

        def close(self) -> None:
            """Nothing is open."""

    endpoint = Endpoint("syncer", "default", Path("nowhere.sock"))
    return app.run(LiveSource(lambda: [endpoint], lambda path: Double()))


def first_paint(times: int) -> None:
    """Prints the medians, and the slowest of ours."""
    took: dict[str, list[float]] = {BARE: [], LEAST: []}
    for _ in range(times):
        for program, seconds in took.items():
            terminal = Terminal("-c", program, columns=80, rows=24)
            drawn = terminal.read_for(10.0, until=PAINTED)
            seconds.append(time.monotonic() - terminal.started_s)
            if PAINTED not in drawn:
                sys.exit(drawn.decode(errors="replace"))
            terminal.read_for(0.5)
            terminal.close()
    ours_s, least_s = statistics.median(took[BARE]), statistics.median(took[LEAST])
    print(
        f"first paint: median {ours_s:.2f} s, slowest {max(took[BARE]):.2f} s; the least program "
        f"{least_s:.2f} s, so {ours_s / least_s:.2f} times that"
    )


def following(learners: int, seconds: float) -> int:
    """Prints the share of a core for each view; the screen's exit code."""
    terminal = Terminal(__file__, "--screen", str(learners))
    terminal.read_for(WARM_UP_S)
    for key, name in VIEWS.items():
        terminal.press(key)
        terminal.read_for(2.0)
        before_s = terminal.cpu_s()
        drawn = terminal.read_for(seconds)
        share = (terminal.cpu_s() - before_s) / seconds
        print(
            f"{name}: {share:.1%} of a core, {len(drawn) / seconds / 1000:.1f} kB/s drawn "
            f"({learners} learners, 2 frames a second, {seconds:g} s)"
        )
    return terminal.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="first paints; 0: none")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each view")
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--screen", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.screen is not None:
        return screen(chosen.screen)
    if chosen.times:
        first_paint(chosen.times)
    return following(chosen.learners, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
