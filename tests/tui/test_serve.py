"""What `shoal tui --serve` starts for a browser: the screen, though its output is no terminal."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import aiohttp
import psutil
import pytest

from host.addresses import steady_port
from tests.support import recordings


def test_the_screen_runs_for_a_browser(tmp_path):
    recording = recordings.write(tmp_path / "recording", recordings.healthy(3))
    command = [sys.executable, "-m", "shoal", "tui", "--readonly", "--replay", str(recording)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "SHOAL_HOME": str(tmp_path / "home"),
            "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
            "COLUMNS": "80",
            "ROWS": "24",
        },
    )
    limit = threading.Timer(30.0, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        told = b""
        while b"python-stdlib-8m" not in told:
            part = process.stdout.read1(65536)
            assert part, told
            told += part
        assert told.startswith(b"__GANGLION__\n"), "the server waits for this word"
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


@pytest.mark.net
@pytest.mark.slow
def test_what_a_browser_looks_at_ends_with_the_server(tmp_path):
    tape = recordings.write(tmp_path / "tape", recordings.healthy(3))
    port = steady_port("127.0.0.1")
    command = [sys.executable, "-m", "shoal", "tui", "--replay", str(tape)]
    server = subprocess.Popen(
        [*command, "--serve", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SHOAL_HOME": str(tmp_path / "home")},
    )

    async def browse() -> None:
        async with asyncio.timeout(60.0), aiohttp.ClientSession() as session:
            page = await connected(session, f"http://localhost:{port}/ws?width=80&height=24")
            while b"python-stdlib-8m" not in (await page.receive_bytes()):
                pass
            # While the browser is still there: one that says goodbye would end the screen too.
            (screen,) = psutil.Process(server.pid).children(recursive=True)
            server.kill()
            await asyncio.to_thread(screen.wait, 20.0)

    try:
        asyncio.run(browse())
    finally:
        server.kill()
        server.wait()


async def connected(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientWebSocketResponse:
    """Once the server listens."""
    while True:
        try:
            return await session.ws_connect(url)
        except aiohttp.ClientError:
            await asyncio.sleep(0.2)
