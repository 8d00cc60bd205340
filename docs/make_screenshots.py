"""Makes the pictures in docs/screenshots from the recordings beside them, of real swarms.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import matplotlib  # noqa: E402
from PIL import Image, ImageDraw, ImageFont  # noqa: E402
from rich.cells import cell_len  # noqa: E402
from rich.color_triplet import ColorTriplet  # noqa: E402
from rich.segment import Segment  # noqa: E402

from tui.app import MOVE_S, ShoalApp  # noqa: E402
from tui.sources.playback import PlaybackSource  # noqa: E402

FOLDER = ROOT / "docs" / "screenshots"
RECORDING, ELECTION_RECORDING = FOLDER / "run.recording", FOLDER / "election.recording"
LARGE, USUAL, SMALL = (200, 60), (120, 40), (80, 24)
WELL, LEARNER_KILLED, SYNCER_KILLED = 20, 40, 57
LEADER_KILLED, ELECTED = 4, 9
"""Frames of the recordings."""

DARK, LIGHT = "deep-water", "daylight"


@dataclass(frozen=True)
class Shot:
    """One picture: a frame of a recording, seen after some keys."""

    name: str
    frame: int
    keys: str
    size: tuple[int, int]
    theme: str = DARK
    recording: Path = RECORDING


SHOTS = (
    Shot("overview", LEARNER_KILLED, "1", USUAL),
    Shot("overview-light", LEARNER_KILLED, "1", USUAL, LIGHT),
    Shot("overview-200x60", WELL, "1", LARGE),
    Shot("overview-80x24", WELL, "1", SMALL),
    Shot("trouble", SYNCER_KILLED, "1", SMALL),
    Shot("peers", LEARNER_KILLED, "2", USUAL),
    Shot("fragments", WELL, "3", USUAL),
    Shot("this-node", WELL, "4", USUAL),
    Shot("syncer", WELL, "5", USUAL),
    Shot("events", LEARNER_KILLED, "6", USUAL),
    Shot("contribution", WELL, "7", USUAL),
    Shot("election", LEADER_KILLED, "h5", SMALL, recording=ELECTION_RECORDING),
    Shot("elected", ELECTED, "h5", USUAL, recording=ELECTION_RECORDING),
)

MOVING = range(32, 44)
"""Frames of the moving picture: three learners train, one is killed, two go on."""

SPEED = 1.5
CELL = (9, 18)
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
COLORS = 128
Color = tuple[int, int, int]


class Clock:
    """Seconds that grow when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def shoot(shot: Shot) -> str:
    """The picture as SVG. What travels is where it was half a second after the frame came."""
    source = PlaybackSource(shot.recording)
    source.playback.seek(shot.frame - 1)
    clock = Clock()
    app = ShoalApp(source, clock=clock)
    async with app.run_test(size=shot.size) as pilot:
        app.theme = shot.theme
        while app.frame is None:
            await pilot.pause()
        await follow(pilot, source, shot.frame)
        source.playback.is_playing = True
        clock.now_s += 0.5
        for key in shot.keys:
            await pilot.press(key)
        await pilot.pause()
        await pilot.pause()
        return app.export_screenshot(title="shoal tui")


async def follow(pilot: Any, source: PlaybackSource, frame: int) -> None:
    """Plays on to the next frame, as if the viewer had watched."""
    before = pilot.app.frame
    source.playback.seek(frame)
    while pilot.app.frame is before:
        await pilot.pause()
    await pilot.pause()


async def film() -> list[Image.Image]:
    """The overview in motion, frame by frame."""
    source = PlaybackSource(RECORDING)
    source.playback.seek(MOVING.start)
    clock = Clock()
    app = ShoalApp(source, clock=clock)
    made = []
    async with app.run_test(size=USUAL) as pilot:
        while app.frame is None:
            await pilot.pause()
        for number in MOVING[1:]:
            await follow(pilot, source, number)
            for _ in range(round(1 / (MOVE_S * SPEED))):
                source.playback.is_playing = True
                app._draw()
                source.playback.is_playing = False
                await pilot.pause()
                made.append(draw(app))
                clock.now_s += MOVE_S * SPEED
    return made


def draw(app: ShoalApp) -> Image.Image:
    """The screen of the app, cell by cell."""
    fonts = [
        ImageFont.truetype(FONT / name, CELL[1] - 3)
        for name in ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")
    ]
    width, height = app.size
    image = Image.new("RGB", (width * CELL[0], height * CELL[1]))
    pen = ImageDraw.Draw(image)
    for row, strip in enumerate(app.screen._compositor.render_strips()):
        column = 0
        for segment in strip:
            column += _draw_segment(pen, segment, (column, row), fonts)
    return image


def _draw_segment(pen: Any, segment: Segment, at: tuple[int, int], fonts: list[Any]) -> int:
    """Writes a piece of a line; the cells it takes."""
    style, cells = segment.style, cell_len(segment.text)
    ink: Color = (220, 220, 220)
    ground: Color = (0, 0, 0)
    if style is not None and style.color is not None:
        ink = _rgb(style.color.get_truecolor())
    if style is not None and style.bgcolor is not None:
        ground = _rgb(style.bgcolor.get_truecolor())
    if style is not None and style.reverse:
        ink, ground = ground, ink
    left, top = at[0] * CELL[0], at[1] * CELL[1]
    pen.rectangle((left, top, left + cells * CELL[0] - 1, top + CELL[1] - 1), fill=ground)
    font = fonts[bool(style is not None and style.bold)]
    for char in segment.text:
        if "\u2800" <= char <= "\u28ff":
            _draw_dots(pen, ord(char) - 0x2800, (left, top), ink)
        elif char != " ":
            pen.text((left, top), char, fill=ink, font=font)
        left += cell_len(char) * CELL[0]
    return cells


DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a braille character, which the font lacks."""


def _draw_dots(pen: Any, bits: int, at: tuple[int, int], ink: Color) -> None:
    for number, (column, row) in enumerate(DOTS):
        if bits >> number & 1:
            left = at[0] + 2 + column * CELL[0] // 2
            top = at[1] + 2 + row * CELL[1] // 4
            pen.rectangle((left, top, left + 1, top + 1), fill=ink)


def _rgb(color: ColorTriplet) -> Color:
    return (color.red, color.green, color.blue)


def write_film(frames: list[Image.Image], path: Path) -> None:
    """The frames as a GIF with one palette."""
    palette = frames[len(frames) // 2].quantize(COLORS)
    reduced = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    reduced[0].save(
        path,
        save_all=True,
        append_images=reduced[1:],
        duration=round(MOVE_S * 1000),
        loop=0,
        optimize=True,
    )


def main() -> None:
    """Writes all of them."""
    # Clocks on the pictures must not depend on where they are made.
    os.environ["TZ"] = "UTC"
    time.tzset()
    FOLDER.mkdir(exist_ok=True)
    for shot in SHOTS:
        (FOLDER / f"{shot.name}.svg").write_text(asyncio.run(shoot(shot)))
        print(FOLDER / f"{shot.name}.svg")
    write_film(asyncio.run(film()), FOLDER / "overview.gif")
    print(FOLDER / "overview.gif")


if __name__ == "__main__":
    main()
