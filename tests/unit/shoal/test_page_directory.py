"""Many projects on one page: what strangers serve is bounded, checked and shown as text."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given, settings

from host.addresses import steady_port
from host.files.home import Home
from protocol.errors import UserError
from shoal.__main__ import main
from shoal.page import directory
from shoal.page.directory import Listed, fetch_all, page_address, read
from shoal.page.facts import BYTES_MAX, PageFacts
from shoal.page.render import directory as drawn
from tests.support import pages
from tests.support.strategies import values_of

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> PageFacts:
    opened = pages.project(Home(tmp_path_factory.mktemp("home")), about=f"Tales. {HOSTILE}")
    return pages.facts(opened, pages.syncer(opened))


@asynccontextmanager
async def serving(answer: bytes, *, holds: bool = False):
    """The address of a web server that says this to everybody, and hangs up or does not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if holds:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def found(answer: bytes, *, holds: bool = False) -> Listed:
    async def look() -> Listed:
        async with serving(answer, holds=holds) as address:
            return (await fetch_all([address], 7.0))[0]

    return asyncio.run(look())


def test_a_page_is_read(facts):
    one = found(http(msgspec.json.encode(facts)))
    assert (one.trouble, one.at_s) == ("", 7.0)
    assert one.facts.project.name == facts.project.name
    assert one.facts.run == facts.run


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (http(b"<html>"), "what it sent is not the page of a project"),
        (http(b"{}"), "what it sent is not the page of a project"),
        (http(b"[" * 100_000), "what it sent is not the page of a project"),
        (http(b"", "500 Oops"), "it answered with HTTP status 500"),
        (http(b"", "302 Found", Location="http://169.254.169.254/"), "HTTP status 302"),
        (http(b" " * (BYTES_MAX + 1)), "more than 256 KiB"),
        (http(gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip"), "more than 256 KiB"),
        (b"SSH-2.0-x\r\n", "nobody answers there"),
        (b"", "nobody answers there"),
    ],
    ids=["html", "empty", "deep", "error", "elsewhere", "long", "bomb", "other", "nothing"],
)
def test_what_is_no_page_is_told_as_such(answer, trouble):
    one = found(answer)
    assert one.facts is None
    assert trouble in one.trouble


def test_one_that_says_nothing_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(directory, "ANSWER_S", 0.2)
    assert found(b"HTTP/1.1 200 OK\r\n", holds=True).trouble == "it did not answer within 0.2 s"


def test_what_a_stranger_wrote_is_cleaned_and_stays_text(facts):
    replace = msgspec.structs.replace
    state = replace(facts.state, sentence=f"{HOSTILE} at 203.0.113.9\x1b[2J")
    project = replace(facts.project, name=f"a\u202eb{HOSTILE}", about=["x " * 900])
    taken = read(msgspec.json.encode(replace(facts, state=state, project=project)))
    assert taken.project.name == f"ab{HOSTILE}"
    assert "203.0.113.9" not in taken.state.sentence
    assert len(taken.project.about[0]) <= directory.ABOUT_CHARS_MAX + 2
    text = drawn([Listed("https://example.org/", 7.0, facts=taken)], "All <of> them", 7.0)
    assert "<script" not in text
    assert "<h1><bdi>All &lt;of&gt; them</bdi></h1>" in text
    assert '<a href="https://example.org/" rel="noopener noreferrer">' in text


@settings(max_examples=25)
@given(values_of(PageFacts))
def test_whatever_is_of_the_format_can_be_listed(made):
    text = drawn([Listed("", 7.0, facts=read(msgspec.json.encode(made)))], "Projects", 7.0)
    assert "<script" not in text


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("https://example.org", "https://example.org/"),
        ("http://example.org:8080/shoal/page.json", "http://example.org:8080/shoal/"),
        ("https://[2001:db8::1]/x", "https://[2001:db8::1]/x/"),
    ],
)
def test_addresses_are_those_of_pages(said, address):
    assert page_address(said) == address


@pytest.mark.parametrize(
    "said", ["example.org", "ftp://x/", "javascript:alert(1)", "https://u:p@x/", "http://x:999999"]
)
def test_what_is_no_address_is_refused(said):
    with pytest.raises(UserError, match="neither a join link nor"):
        page_address(said)


def test_the_file_is_written_also_where_nobody_answers(tmp_path, capsys):
    output = tmp_path / "index.html"
    port = steady_port("127.0.0.1")
    assert main(["pages", f"http://127.0.0.1:{port}", "--output", str(output)]) == 3
    said = capsys.readouterr().out
    assert "nobody answers there" in said
    assert "0 of 1 projects answer" in said
    assert "no answer" in output.read_text()
    assert main(["pages", "--output", str(output)]) == 2
