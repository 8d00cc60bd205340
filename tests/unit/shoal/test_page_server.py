"""One page and its viewers, over HTTP on loopback: what they share, and what each may."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from host.files.home import Home
from host.files.local_settings import PageSettings
from protocol.errors import UserError
from protocol.status import SampleStatus
from shoal.page import beside, server
from shoal.page.gate import REQUESTS_AT_ONCE
from shoal.page.server import Outside, PageServer
from shoal.page.watch import PERIOD_S, Watch
from tests.support import pages, recordings
from tests.support.daemon_double import FakeDaemon

LIMIT_S = 60.0
DIRECT = Outside()


class Clock:
    """The time of looks, which a test sets forward."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture
def syncer(home):
    opened = pages.project(home, about="Folk tales.")
    daemon = FakeDaemon(home.socket("syncer", "default"), pages.syncer(opened))
    yield daemon
    daemon.close()


@asynccontextmanager
async def served(watch: Watch, outside: Outside = DIRECT):
    """The address of a page that is served inside, and a session to ask it with."""
    listener = server.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    task = asyncio.create_task(PageServer(watch, outside).serve(listener))
    try:
        async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
            yield session, f"http://127.0.0.1:{port}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def text(session, url, **headers):
    async with session.get(url, headers=headers) as answer:
        return answer.status, answer.headers, await answer.text()


def test_many_viewers_share_one_look_and_nobody_looks_for_nobody(home, syncer):
    clock = Clock()
    watch = Watch(home, "default", clock=clock)

    async def look() -> list[int]:
        async with served(watch) as (session, url):
            counts = [watch.looks]
            await asyncio.gather(*(text(session, f"{url}/page.json") for _ in range(12)))
            counts.append(watch.looks)
            clock.now_s += PERIOD_S / 2
            await text(session, f"{url}/")
            counts.append(watch.looks)
            clock.now_s += 3600
            counts.append(watch.looks)
            await text(session, f"{url}/")
            return [*counts, watch.looks]

    assert asyncio.run(look()) == [0, 1, 1, 1, 2]


def test_a_syncer_that_falls_silent_is_told_with_what_was_last_known(home, syncer):
    clock = Clock()
    watch = Watch(home, "default", clock=clock)

    async def look():
        async with served(watch) as (session, url):
            _, _, before = await text(session, f"{url}/page.json")
            await asyncio.to_thread(syncer.close)
            clock.now_s += 60
            _, _, after = await text(session, f"{url}/page.json")
            return json.loads(before), json.loads(after)

    before, after = asyncio.run(look())
    assert (before["state"]["level"], after["state"]["level"]) == ("WELL", "TROUBLE")
    assert "has not answered for" in after["state"]["sentence"]
    assert after["state"]["seen_s"] == before["state"]["seen_s"]
    assert after["run"]["tokens"] == before["run"]["tokens"]


def test_a_syncer_that_never_answered_has_no_page_yet(home):
    async def look():
        async with served(Watch(home, "default")) as (session, url):
            return await text(session, f"{url}/")

    code, headers, said = asyncio.run(look())
    assert (code, headers["Retry-After"]) == (503, "5")
    assert said == "The syncer of this page has not answered yet.\n"


def test_a_page_that_cannot_be_drawn_is_tried_now_and_then_and_tells_no_path(home, syncer):
    clock = Clock()
    watch = Watch(home, "default", clock=clock)
    copy = home.project_file(bytes.fromhex(syncer.said.project.id))
    content = copy.read_bytes()

    async def look() -> list[tuple[int, str]]:
        async with served(watch) as (session, url):
            copy.unlink()
            told = [await text(session, f"{url}/") for _ in range(3)]
            assert watch.looks == 1
            copy.write_bytes(content)
            clock.now_s += PERIOD_S
            told.append(await text(session, f"{url}/page.json"))
            return [(code, said) for code, _, said in told]

    *failed, (code, _) = asyncio.run(look())
    assert failed == 3 * [(503, "This page cannot be drawn now.\n")]
    assert code == 200


def test_what_the_model_writes_comes_from_a_learner_beside_the_syncer(home, syncer):
    status = recordings.learner(900)
    status.project = syncer.said.project
    status.sample = SampleStatus("Once", " upon a time", 880, recordings.START_S)
    learner = FakeDaemon(home.socket("learner", "default"), status)

    async def look():
        async with served(Watch(home, "default")) as (session, url):
            return json.loads((await text(session, f"{url}/page.json"))[2])

    try:
        told = asyncio.run(look())
    finally:
        learner.close()
    assert told["sample"] == {
        "prompt": "Once",
        "text": " upon a time",
        "global_step": 880,
        "at_s": recordings.START_S,
    }


def test_the_picture_is_named_by_the_address_that_was_asked_or_that_the_owner_gave(home, syncer):
    async def look(outside: Outside, host: str) -> str:
        async with served(Watch(home, "default"), outside) as (session, url):
            return (await text(session, f"{url}/", Host=host))[2]

    asked = asyncio.run(look(Outside(), "train.example.org:8080"))
    assert 'content="http://train.example.org:8080/preview.png"' in asked
    forged = asyncio.run(look(Outside(), 'x"><script>'))
    assert 'property="og:image" content="preview.png"' in forged
    given = asyncio.run(look(Outside("https://example.org/shoal/"), "elsewhere"))
    assert 'content="https://example.org/shoal/preview.png"' in given


def test_answers_may_be_compressed_and_say_what_browsers_may_do(home, syncer):
    async def look():
        async with (
            served(Watch(home, "default")) as (session, url),
            session.get(f"{url}/", headers={"Accept-Encoding": "gzip"}) as answer,
        ):
            return answer.headers, await answer.read()

    headers, content = asyncio.run(look())
    assert headers["Content-Encoding"] == "gzip"
    assert content.startswith(b"<!doctype html>")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Server"]) == ("nosniff", "Shoal")


def test_behind_a_proxy_each_asker_has_a_rate_of_its_own(home, syncer):
    async def ask(outside: Outside) -> list[int]:
        async with served(Watch(home, "default"), outside) as (session, url):
            codes = []
            for at in range(REQUESTS_AT_ONCE + 20):
                source = f"203.0.113.{at}"
                code, _, _ = await text(session, f"{url}/icon.svg", **{"X-Forwarded-For": source})
                codes.append(code)
            return codes

    assert set(asyncio.run(ask(Outside(is_behind_proxy=True)))) == {200}
    assert 429 in asyncio.run(ask(Outside()))


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x01nothing\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /" + 9000 * b"a" + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % at for at in range(200)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["noise", "length", "long", "headers", "tls"],
)
def test_what_is_no_request_is_refused_and_fills_no_log(home, syncer, said, caplog):
    async def send() -> bytes:
        async with served(Watch(home, "default")) as (_, url):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2]))
            writer.write(said)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(send())[:13] in (b"HTTP/1.0 400 ", b"")
    assert [one for one in caplog.records if one.name.startswith("shoal.page")] == []


# Where it is served.


def test_a_port_that_is_taken_is_told_before_anything_starts(home):
    taken = server.listen("127.0.0.1", 0)
    place = f"127.0.0.1:{taken.getsockname()[1]}"
    try:
        with (
            pytest.raises(UserError, match="cannot be served on"),
            beside.beside(place, home, "default", PageSettings()),
        ):
            raise AssertionError("it began")
    finally:
        taken.close()


def test_the_flag_counts_before_the_settings_and_off_is_nowhere():
    set_up = PageSettings(at="0.0.0.0:8080")
    assert beside.page_at(None, PageSettings()) is None
    assert beside.page_at(None, set_up).port == 8080
    assert beside.page_at("9090", set_up) == beside.page_at("127.0.0.1:9090", PageSettings())
    assert beside.page_at("off", set_up) is None
    with pytest.raises(UserError, match="is not an address for the page"):
        beside.page_at("example.org", set_up)


@pytest.mark.parametrize("url", ["ftp://x/", "example.org", "https://a b/", "https://x/?q", "//x"])
def test_an_address_outside_that_is_none_is_refused(url):
    assert beside.url_of(PageSettings(url="https://example.org/a")) == "https://example.org/a/"
    with pytest.raises(UserError, match="no address of a page"):
        beside.url_of(PageSettings(url=url))
