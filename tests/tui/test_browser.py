"""`shoal tui --serve` in a real browser: the same picture, and nothing that commands a daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import aiohttp
import pytest
from PIL import Image

from host.addresses import steady_port
from tests.support import recordings
from tests.support.browser import needs_browser, tab
from tui.text.theme import THEMES

pytestmark = [pytest.mark.net, pytest.mark.slow, needs_browser]

SEEN_S = 90.0
PIXELS_MIN = 200


@pytest.fixture
def server(tmp_path):
    """The port at which a browser finds the screen of a recorded swarm."""
    recording = recordings.write(tmp_path / "recording", recordings.healthy(30))
    port = steady_port("127.0.0.1")
    command = [sys.executable, "-m", "shoal", "tui", "--serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--replay", str(recording)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SHOAL_HOME": str(tmp_path / "home")},
    )
    yield port
    process.kill()
    process.wait()


def pixels(path, color):
    """How many pixels of a picture have exactly this colour."""
    wanted = tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))
    with Image.open(path) as image:
        found = image.convert("RGB").getcolors(image.width * image.height)
    return next((count for count, one in found or () if one == wanted), 0)


async def listening(port):
    async with asyncio.timeout(SEEN_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://localhost:{port}/") as answer:
                    assert answer.status == 200
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.2)


def test_a_browser_draws_the_picture_in_the_colours_of_the_theme(server, tmp_path):
    seen: list[int] = []
    picture, theme = tmp_path / "screen.png", THEMES[0]

    async def look():
        await listening(server)
        async with tab() as page, asyncio.timeout(SEEN_S):
            await page.look(1400)
            await page.open(f"http://localhost:{server}/")
            while True:
                await page.picture(picture)
                # Learners that train, their courses, and the frame of the syncer.
                seen[:] = [
                    pixels(picture, one) for one in (theme.success, theme.primary, theme.accent)
                ]
                if min(seen) >= PIXELS_MIN:
                    return
                await asyncio.sleep(0.3)

    asyncio.run(look())
    assert min(seen) >= PIXELS_MIN
