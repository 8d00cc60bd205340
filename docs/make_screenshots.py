"""Makes docs/screenshots/*.svg from recorded swarms, as anyone can who has the sources.

.venv/bin/python docs/make_screenshots.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.tui import tapes  # noqa: E402
from tui.app import ShoalApp  # noqa: E402
from tui.frames import Frame  # noqa: E402
from tui.sources import TapeSource  # noqa: E402

FOLDER = ROOT / "docs" / "screenshots"
WIDE, USUAL, SMALL = (180, 45), (120, 34), (80, 24)
SHOTS: tuple[tuple[str, str, str, tuple[int, int]], ...] = (
    ("overview", "learner-killed", "1", USUAL),
    ("overview-wide", "healthy", "1", WIDE),
    ("overview-80x24", "healthy", "1", SMALL),
    ("trouble", "leader-silent", "1", SMALL),
    ("peers", "learner-killed", "2", USUAL),
    ("fragments", "healthy", "3", USUAL),
    ("this-node", "healthy", "4", USUAL),
    ("syncer", "healthy", "5", USUAL),
    ("events", "learner-killed", "6", USUAL),
    ("contribution", "healthy", "7", USUAL),
)
"""File name, tape, keys, size."""


async def shoot(frames: list[Frame], keys: str, size: tuple[int, int], folder: Path) -> str:
    """The last frame of a tape, seen after these keys, as SVG."""
    source = TapeSource(tapes.write(folder / "tape", frames))
    source.playback.seek(source.playback.length - 1)
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
    for name, tape, keys, size in SHOTS:
        with tempfile.TemporaryDirectory() as folder:
            svg = asyncio.run(shoot(tapes.TAPES[tape](), keys, size, Path(folder)))
        (FOLDER / f"{name}.svg").write_text(svg)
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
