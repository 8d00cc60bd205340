"""The page in a real browser: on a phone and a desk, light and dark, live, and without scripts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import msgspec
import pytest

from host.addresses import steady_port
from host.files.home import Home
from protocol.status import SampleStatus
from tests.support import pages, recordings
from tests.support.browser import Tab, needs_browser, tab
from tests.support.daemon_double import FakeDaemon

pytestmark = [pytest.mark.net, needs_browser]

HOSTILE = "<script>window.taken = 1</script><img src=x onerror='window.taken = 1'>"
LOOKS = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]

CUT = """
[...document.querySelectorAll("body *")]
  .filter((one) => !one.closest("svg, .scroll, details:not([open]), .skip, .here, .heard, title"))
  .filter((one) => {
    const box = one.getBoundingClientRect();
    const isBeyond = box.right > innerWidth + 1 || box.left < -1;
    return box.width && (isBeyond || one.scrollWidth > one.clientWidth + 1 && one.clientWidth);
  })
  .map((one) => one.tagName + "." + one.className + ": " + one.textContent.slice(0, 40))
"""
"""Elements that reach beyond the window, or whose content is wider than they are."""

PALE = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (colour) => {
    const [r, g, b] = [...colour].slice(0, 3).map((one) => one / 255)
      .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgba("white");
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim()) continue;
    if (one.closest("script, style, title, .here, .heard")) continue;
    if (!one.getClientRects().length) continue;
    const style = getComputedStyle(one);
    const ink = rgba(one.closest("svg") ? style.fill : style.color);
    const [low, high] = [light(ink), light(behind(one))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5))
      found.push(one.tagName + " " + ratio.toFixed(2) + " " + walker.currentNode.data.slice(0, 30));
  }
  return found;
})()
"""
"""Texts whose contrast is below that of WCAG 2.2, level AA."""


@pytest.fixture
def place(tmp_path):
    """A daemon, and where the page of it is served by a process of its own."""
    home = Home(tmp_path / "home")
    opened = pages.project(home, about=f"Folk tales for a library. {HOSTILE}\n\nAnd more of it.")
    status = pages.syncer(opened)
    status.contributors[1].name = f"north/{HOSTILE}"[:64]
    daemon = FakeDaemon(home.socket("syncer", "default"), status)
    node = recordings.learner(900)
    node.project = status.project
    node.sample = SampleStatus("Once", f" upon a time {HOSTILE}", 880, recordings.START_S)
    learner = FakeDaemon(home.socket("learner", "default"), node)
    port = steady_port("127.0.0.1")
    command = [sys.executable, "-m", "shoal", "--home", str(home.root), "page"]
    process = subprocess.Popen([*command, f"127.0.0.1:{port}"])
    yield daemon, f"http://127.0.0.1:{port}/"
    process.terminate()
    assert process.wait(60) == 0
    daemon.close()
    learner.close()


@asynccontextmanager
async def opened_at(url: str, width: int = 1280, scheme: str = "light"):
    async with tab() as page:
        await page.look(width, scheme=scheme)
        while True:
            await page.open(url)
            if await page.run("document.querySelector('[data-part]') !== null"):
                break
            await asyncio.sleep(0.2)  # The server is still starting.
        page.complaints.clear()
        await page.open(url)
        yield page


async def is_whole(page: Tab) -> None:
    assert await page.run(CUT) == []
    assert await page.run(PALE) == []
    assert await page.run("window.taken") is None
    assert await page.run("document.querySelectorAll('main script, header script').length") == 0


def test_it_is_whole_and_readable_however_it_is_looked_at(place, tmp_path):
    _, url = place

    async def look() -> None:
        async with opened_at(url) as page:
            for width, scheme in LOOKS:
                await page.look(width, scheme=scheme)
                await page.open(url)
                await page.until("document.getElementById('live').textContent.startsWith('Live')")
                await is_whole(page)
                await page.run("document.querySelector('details').open = true")
                await is_whole(page)
            assert page.complaints == []

    asyncio.run(look())


def test_it_follows_the_run_without_being_loaded_again(place):
    daemon, url = place

    async def follow() -> None:
        async with opened_at(url) as page:
            await page.until("document.getElementById('live').textContent.startsWith('Live')")
            await page.run("document.querySelector('details').open = true; window.mark = 7")
            swarm = msgspec.structs.replace(daemon.said.swarm, tokens=1_234_000_000)
            daemon.said = msgspec.structs.replace(
                daemon.said, swarm=swarm, sentence="Waiting for learners: share the join link."
            )
            await page.until("document.body.textContent.includes('1.23 G')")
            await page.until("document.body.textContent.includes('Waiting for learners')")
            assert await page.run("window.mark") == 7
            said = await page.run("document.getElementById('heard').textContent")
            assert said == "The run: needs care."
            assert await page.run("document.querySelector('details').open")
            await is_whole(page)
            assert page.complaints == []

    asyncio.run(follow())


def test_without_scripts_it_is_a_picture_of_that_moment(place):
    _, url = place

    async def look() -> None:
        async with opened_at(url) as page:
            await page.without_scripts()
            await page.open(url)
            said = await page.run("document.body.innerText")
            assert "A picture of that moment" in said
            assert "shoal join 'shoal:" in said
            assert "Copy the command" not in said
            assert await page.run("document.querySelectorAll('svg.chart').length") == 2
            await is_whole(page)

    asyncio.run(look())
