"""A syncer on loopback with its page: what a stranger gets of it, and what not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal

import aiohttp
import psutil
import pytest

from host.addresses import steady_port
from protocol import decoders
from shoal.page.facts import PageFacts
from shoal.page.gate import CONNECTIONS_EACH_MAX, REQUESTS_AT_ONCE, STREAMS_EACH_MAX
from shoal.page.server import REQUEST_S
from tests.net.swarms import TinySwarm, is_gone

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

LIMIT_S = 120.0
ABOUT = "To see whether <b>anybody</b> looks.\n\nAnd why."


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("page")) as swarm:
        swarm.prepare(page__about=ABOUT, limits__evaluate_every=5)
        swarm.place = f"127.0.0.1:{steady_port('127.0.0.1')}"
        swarm.begin("--page", swarm.place)
        swarm.start(
            "learner", "ada", "join", swarm.link, "--instance", "ada", "--name", "north/ada",
            "--listen", "127.0.0.1", "--device", "cpu", "--threads", "1", "--log-text",
        )  # fmt: skip
        swarm.all_merge("north/ada")
        yield swarm


@pytest.fixture
def url(swarm):
    return f"http://{swarm.place}"


def fetched(url: str, **headers: str) -> tuple[int, bytes]:
    return asyncio.run(fetch(url, **headers))


async def fetch(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Status and body; asked too often, it asks again when it may."""
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        while True:
            async with session.request(method, url, headers=headers) as answer:
                if answer.status != 429:
                    return answer.status, await answer.read()
                await asyncio.sleep(float(answer.headers["Retry-After"]))


def page_process(swarm) -> psutil.Process:
    """The one that serves the page."""
    found = page_processes(swarm.running["syncer"].pid)
    assert len(found) == 1
    return found[0]


def page_processes(syncer) -> list[psutil.Process]:
    """Children of a syncer that serve the page; one that has just died is none."""
    found = []
    for one in psutil.Process(syncer).children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if "shoal.page.process" in one.cmdline():
                found.append(one)
    return found


def test_a_stranger_sees_how_the_run_is_and_how_to_join(swarm, url):
    def facts():
        code, body = fetched(f"{url}/page.json")
        told = decoders.json_decoder(PageFacts).decode(body) if code == 200 else None
        is_whole = told and told.run.best and told.given.shown and told.given.shown[0].permille
        return told if is_whole else None

    told = swarm.until(facts, "a page with a measurement and a contributor")
    assert told.project.about == ["To see whether <b>anybody</b> looks.", "And why."]
    assert (told.state.level, told.run.learners_training, told.run.voters_here) == ("WELL", 1, 1)
    assert told.join.link == swarm.link
    assert [(one.name, one.permille) for one in told.given.shown] == [("north/ada", 1000)]
    assert [(one.name, one.members) for one in told.given.teams] == [("north", 1)]
    assert told.run.curve[-1][2] > 0.0

    code, page = fetched(f"{url}/")
    assert code == 200
    assert b"To see whether &lt;b&gt;anybody&lt;/b&gt; looks." in page
    assert swarm.link.encode() in page
    code, picture = fetched(f"{url}/preview.png")
    assert (code, picture[:8]) == (200, b"\x89PNG\r\n\x1a\n")


def test_nothing_on_it_tells_where_anybody_is(swarm, url):
    status = swarm.syncer()
    texts = [fetched(f"{url}{place}")[1].decode() for place in ("/", "/page.json")]
    private = [str(swarm.folder), status.key, *(peer.key for peer in status.peers)]
    private += [*status.network.addresses, "127.0.0.1/", "/ip4/", '"pid"']
    for text in texts:
        shown = text.replace(swarm.place, "")
        assert [one for one in private if one in shown] == []


def test_news_come_by_themselves(swarm, url):
    async def watch() -> list[dict[str, str]]:
        told = []
        async with (
            asyncio.timeout(LIMIT_S),
            aiohttp.ClientSession() as session,
            session.get(f"{url}/events") as answer,
        ):
            assert answer.content_type == "text/event-stream"
            async for line in answer.content:
                if line.startswith(b"data: "):
                    told.append(json.loads(line.removeprefix(b"data: ")))
                if len(told) == 3:
                    return told
        raise AssertionError("the stream ended")

    first, *later = asyncio.run(watch())
    assert first.keys() >= {"state", "numbers", "curve", "given", "join", "seen"}
    assert all("seen" in one and "join" not in one for one in later)


def test_projects_are_listed_by_their_pages_and_by_their_links(swarm, url):
    output = swarm.folder / "index.html"
    said = swarm.run("pages", "--output", str(output), f"{url}/", swarm.link, "http://127.0.0.1:1/")
    assert "2 of 3 projects answer" in said
    text = output.read_text()
    assert text.count("<article") == 3
    assert text.count("1 learner training.") == 2
    assert f'<a href="{url}/"' in text
    assert f"shoal join '{swarm.link}'" in text
    assert str(swarm.folder) not in text


@pytest.mark.parametrize(
    ("method", "place", "code"),
    [
        ("POST", "/", 405),
        ("DELETE", "/page.json", 405),
        ("GET", "/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/" + 5000 * "a", 400),
        ("HEAD", "/", 200),
    ],
    ids=["post", "delete", "elsewhere", "above", "long", "head"],
)
def test_what_is_no_look_at_the_page_is_refused(url, method, place, code):
    assert asyncio.run(fetch(f"{url}{place}", method))[0] == code


def test_a_request_with_a_body_is_refused(url):
    async def send() -> int:
        async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{url}/", data=b"x" * 100_000) as answer:
                    if answer.status != 429:
                        return answer.status
                    await asyncio.sleep(1.0)

    assert asyncio.run(send()) == 413


def test_one_address_gets_so_many_streams_connections_and_requests(swarm, url):
    host, port = swarm.place.split(":")

    async def streams(session: aiohttp.ClientSession) -> list[int]:
        answers = [await session.get(f"{url}/events") for _ in range(STREAMS_EACH_MAX + 1)]
        codes = [one.status for one in answers]
        for one in answers:
            one.close()
        return codes

    async def idle() -> None:
        """Connections that say nothing: too many are cut off at once, the others in a while."""
        pairs = [await asyncio.open_connection(host, int(port)) for _ in range(60)]
        ends = await asyncio.gather(*(cut_off(reader) for reader, _ in pairs))
        assert sum(end < REQUEST_S / 2 for end in ends) >= 60 - CONNECTIONS_EACH_MAX
        for _, writer in pairs:
            writer.close()

    async def cut_off(reader: asyncio.StreamReader) -> float:
        began_s = asyncio.get_running_loop().time()
        with contextlib.suppress(ConnectionError):  # Cut off all the harder.
            assert await reader.read() == b""
        return asyncio.get_running_loop().time() - began_s

    async def hammer(session: aiohttp.ClientSession) -> list[int]:
        codes = []
        for _ in range(2 * REQUESTS_AT_ONCE):
            async with session.get(f"{url}/icon.svg") as answer:
                codes.append(answer.status)
        return codes

    async def all_of_it() -> None:
        async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
            await asyncio.sleep(REQUESTS_AT_ONCE / 2)  # What the tests before asked is forgotten.
            assert await streams(session) == [*(STREAMS_EACH_MAX * [200]), 503]
            await idle()
            codes = await hammer(session)
            assert codes[0] == 200
            assert codes[-1] == 429

    merged = swarm.merge_counts()["north/ada"]
    asyncio.run(all_of_it())
    assert swarm.merge_counts()["north/ada"] > merged, "the run goes on beside it"


def test_by_the_link_alone_another_machine_serves_the_page_too(swarm, tmp_path):
    place = f"127.0.0.1:{steady_port('127.0.0.1')}"
    home = ["--home", str(tmp_path / "elsewhere")]
    child = swarm.processes.start("page", "shoal", "page", place, "--link", swarm.link, *home)

    def facts():
        try:
            code, body = fetched(f"http://{place}/page.json")
        except aiohttp.ClientConnectionError:
            return None
        told = decoders.json_decoder(PageFacts).decode(body) if code == 200 else None
        return told if told and told.run.learners_training else None

    seen = swarm.until(facts, "a page elsewhere")
    assert seen.project.id == swarm.project_id.hex()
    assert seen.join.link.startswith("shoal:")
    assert [one.name for one in seen.given.shown] == ["north/ada"]
    onlookers = psutil.Process(child.pid).children()
    child.is_stray = True
    child.process.send_signal(signal.SIGTERM)
    assert child.process.wait(60) == 0
    assert all(is_gone(one.pid) for one in onlookers)
    assert len(onlookers) == 1


def test_a_page_that_is_killed_comes_back_and_ends_with_its_syncer(swarm, url):
    syncer = swarm.syncer().pid
    former = page_process(swarm)
    former.send_signal(signal.SIGKILL)

    def again():
        return any(one.pid != former.pid for one in page_processes(syncer))

    swarm.until(again, "another page process")
    assert fetched(f"{url}/page.json")[0] == 200
    assert swarm.syncer().pid == syncer
    page = page_process(swarm).pid
    swarm.kill("syncer")
    swarm.until(lambda: is_gone(page), "the end of the page")
