"""Makes docs/screenshots/*.svg from the recordings beside them, recordings of real swarms.

`run.recording` was made with `shoal tui --record` beside one syncer and three learners on one
machine, while a learner and then the syncer were killed; addresses and paths in it were made
neutral. `election.recording` was made beside `benchmarks/failover.py`, with three syncers, as the
leader was killed.

.venv/bin/python docs/make_screenshots.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tui.app import ShoalApp  # noqa: E402
from tui.sources.playback import PlaybackSource  # noqa: E402

FOLDER = ROOT / "docs" / "screenshots"
RECORDING, ELECTION_RECORDING = FOLDER / "run.recording", FOLDER / "election.recording"
WIDE, USUAL, SMALL = (180, 45), (120, 34), (80, 24)
WELL, LEARNER_KILLED, SYNCER_KILLED = 20, 40, 57
LEADER_KILLED, ELECTED = 4, 9
"""Frames of the recordings."""

SHOTS: tuple[tuple[str, int, str, tuple[int, int]], ...] = (
    ("overview", LEARNER_KILLED, "1", USUAL),
    ("overview-wide", WELL, "1", WIDE),
    ("overview-80x24", WELL, "1", SMALL),
    ("trouble", SYNCER_KILLED, "1", SMALL),
    ("peers", LEARNER_KILLED, "2", USUAL),
    ("fragments", WELL, "3", USUAL),
    ("this-node", WELL, "4", USUAL),
    ("syncer", WELL, "5", USUAL),
    ("events", LEARNER_KILLED, "6", USUAL),
    ("contribution", WELL, "7", USUAL),
)
"""File name, frame, keys, size."""


ELECTION_SHOTS: tuple[tuple[str, int, str, tuple[int, int]], ...] = (
    ("election", LEADER_KILLED, "h5", SMALL),
    ("elected", ELECTED, "h5", USUAL),
)


async def shoot(recording: Path, frame: int, keys: str, size: tuple[int, int]) -> str:
    """A frame of the recording, seen after these keys, as SVG."""
    source = PlaybackSource(recording)
    source.playback.seek(frame)
    app = ShoalApp(source)
    async with app.run_test(size=size) as pilot:
        while app.frame is None:
            await pilot.pause()
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        await pilot.pause()
        return app.export_screenshot(title="shoal tui")


def main() -> None:
    """Writes all of them."""
    # Clocks on the pictures must not depend on where they are made.
    os.environ["TZ"] = "UTC"
    time.tzset()
    FOLDER.mkdir(exist_ok=True)
    for recording, shots in ((RECORDING, SHOTS), (ELECTION_RECORDING, ELECTION_SHOTS)):
        for name, frame, keys, size in shots:
            svg = asyncio.run(shoot(recording, frame, keys, size))
            (FOLDER / f"{name}.svg").write_text(svg)
            print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
