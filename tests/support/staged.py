"""A source whose frames a test hands out one by one, and what an app needs to be driven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from protocol.errors import UserError
from tests.support import recordings
from tui.app import ShoalApp
from tui.frames.frame import Frame
from tui.frames.sources import PlaybackSource

SMALL, LARGE = (80, 24), (200, 60)


class Staged:
    """Gives the frames it was given; remembers the commands it was sent."""

    playback = None

    def __init__(self, frames: Iterable[Frame] = ()) -> None:
        self.waiting: asyncio.Queue[Frame] = asyncio.Queue()
        for frame in frames:
            self.waiting.put_nowait(frame)
        self.commands: list[tuple[str, str, dict[str, Any]]] = []
        self.refusal = ""

    async def frames(self) -> AsyncIterator[Frame]:
        while True:
            yield await self.waiting.get()

    async def command(self, verb: str, target: str, **fields: Any) -> str:
        self.commands.append((verb, target, fields))
        if self.refusal:
            raise UserError(self.refusal)
        return f"{target}: {verb} done"


def replay(path: Path, frames: list[Frame]) -> PlaybackSource:
    """A paused recording of the frames, at its start."""
    source = PlaybackSource(recordings.write(path, frames))
    source.playback.is_playing = False
    return source


def drive(
    app: ShoalApp,
    steps: Callable[[Any], Coroutine[Any, Any, None]],
    size: tuple[int, int] = SMALL,
) -> None:
    """Runs the app without a terminal while `steps(pilot)` presses its keys."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await settle(pilot)
            await steps(pilot)

    asyncio.run(run())


async def settle(pilot: Any, app: ShoalApp | None = None) -> None:
    """Until the frames that wait are drawn."""
    source = pilot.app.source
    while isinstance(source, Staged) and not source.waiting.empty():
        await pilot.pause()
    await pilot.pause()
    pilot.app.catch_up()  # Frames that come at once are too dear to be drawn one by one.
    for _ in range(2):
        await pilot.pause()


def notices(app: ShoalApp) -> str:
    """What the viewer was told."""
    return "\n".join(notification.message for notification in app._notifications)
