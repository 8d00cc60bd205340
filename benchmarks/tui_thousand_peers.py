"""How much of a core the terminal UI takes while it follows a swarm of a thousand learners.

    .venv/bin/python benchmarks/tui_thousand_peers.py [--seconds 20] [--learners 1000]

The screen runs in a terminal of 200 x 60 and asks a stand-in for a daemon, whose answers are
MessagePack as from the real control socket and change with every question, twice a second.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.tui_pty import Terminal  # noqa: E402

WARM_UP_S = 5.0
VIEWS = {"1": "overview and learners", "2": "learners", "6": "events"}


def screen(learners: int) -> int:
    """The child: the screen, fed by the stand-in."""
    import msgspec

    from tests.support import recordings
    from tui import app
    from tui.frames.sources import Endpoint, LiveSource

    frames = recordings.thousand(8, learners)
    answers = [msgspec.msgpack.encode(frame.statuses[0]) for frame in frames]
    turn = itertools.cycle(answers)

    def call(path: Path, verb: str, timeout_s: float = 2.0, **fields: Any) -> dict[str, Any]:
        if verb == "status":
            return {"status": msgspec.msgpack.decode(next(turn))}
        return {"events": [], "last": 0}

    endpoint = Endpoint("syncer", "default", Path("nowhere.sock"))
    return app.run(LiveSource(lambda: [endpoint], call))


def main() -> int:
    """Prints the share of a core for each view."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--screen", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.screen:
        return screen(chosen.learners)
    own = str(Path(__file__).resolve())
    command = [sys.executable, own, "--screen", "--learners", str(chosen.learners)]
    terminal = Terminal(command)
    terminal.read_for(WARM_UP_S)
    for key, name in VIEWS.items():
        terminal.press(key)
        terminal.read_for(2.0)
        before_s = terminal.cpu_s()
        drawn = terminal.read_for(chosen.seconds)
        share = (terminal.cpu_s() - before_s) / chosen.seconds
        print(
            f"{name}: {share:.1%} of a core, {len(drawn) / chosen.seconds / 1000:.1f} kB/s drawn "
            f"({chosen.learners} learners, 2 frames a second, {chosen.seconds:g} s)"
        )
    return terminal.close()


if __name__ == "__main__":
    sys.exit(main())
