"""How long it takes from starting Python to the first screen of the terminal UI.

.venv/bin/python benchmarks/tui_first_paint.py [--times 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.tui_pty import Terminal  # noqa: E402

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tui import app
from tui.sources.live import LiveSource
sys.exit(app.run(LiveSource(lambda: [], None)))
"""
PAINTED = b"Contribution"
"""The end of the bar of views, which is on the first screen."""


def main() -> int:
    """Prints the median and the slowest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    times = []
    for _ in range(chosen.times):
        terminal = Terminal([sys.executable, "-c", PROGRAM, str(ROOT)], columns=80, rows=24)
        drawn = terminal.read_for(10.0, until=PAINTED)
        times.append(time.monotonic() - terminal.started_s)
        if PAINTED not in drawn:
            print(drawn.decode(errors="replace"))
            return 1
        terminal.read_for(0.5)
        terminal.close()
    print(f"first paint: median {statistics.median(times):.2f} s, slowest {max(times):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
