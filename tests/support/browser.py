"""A real browser without a window, driven over its own debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
ANSWER_S = 60.0

needs_browser = pytest.mark.skipif(
    FOUND is None, reason="no browser: chromium is not installed (apt-get install chromium)"
)


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._is_loaded = False
        self.complaints: list[str] = []
        """What the browser said in its console: errors, refused styles and scripts."""

    async def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """The answer to one command; what is told meanwhile is kept as far as it is a complaint."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": values})
        async with asyncio.timeout(ANSWER_S):
            while True:
                told = json.loads(await self._socket.receive_str())
                self._hear(told)
                if told.get("id") == number:
                    assert "error" not in told, told
                    return told["result"]

    def _hear(self, told: dict[str, Any]) -> None:
        values = told.get("params", {})
        if told.get("method") == "Page.loadEventFired":
            self._is_loaded = True
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(values["exceptionDetails"]))
        if told.get("method") == "Log.entryAdded":
            self.complaints.append(values["entry"]["text"])

    async def open(self, url: str) -> None:
        for one in ("Page", "Runtime", "Log"):
            await self.ask(f"{one}.enable")
        self._is_loaded = False
        await self.ask("Page.navigate", url=url)
        async with asyncio.timeout(ANSWER_S):
            while not self._is_loaded:
                self._hear(json.loads(await self._socket.receive_str()))

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Waits for what an expression means."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                if await self.run(script):
                    return
                await asyncio.sleep(0.1)

    async def look(self, width: int, *, scheme: str = "light", height: int = 900) -> None:
        """A window of this width in this colour scheme."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2, mobile=width < 600,
        )  # fmt: skip
        await self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    async def without_scripts(self) -> None:
        await self.ask("Emulation.setScriptExecutionDisabled", value=True)

    async def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """A tab of a browser that ends with the block."""
    assert FOUND is not None
    with tempfile.TemporaryDirectory(prefix="shoal-browser-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            FOUND, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
            "--disable-component-update", "--remote-debugging-port=0",
            f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [one for one in await answer.json() if one["type"] == "page"]
                address = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.kill()
            await process.wait()


async def _port(path: Path, process: asyncio.subprocess.Process) -> int:
    """Where the browser answers, once it has written that down."""
    async with asyncio.timeout(ANSWER_S):
        while not path.exists() or not path.read_text().strip():
            assert process.returncode is None, "the browser ended by itself"
            await asyncio.sleep(0.1)
    return int(path.read_text().split()[0])
