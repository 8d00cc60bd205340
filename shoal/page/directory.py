"""Pages of several projects, read from wherever they are served, and listed on one.

What comes is a stranger's: bounded, checked against the format, and cleaned once more, for whoever
served it need not be Shoal. Nobody is followed elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec

from protocol import decoders
from protocol.errors import MalformedMessage, RemoteError, TransientError, UserError
from protocol.limits import NAME_CHARS_MAX, TEXT_CHARS_MAX
from shoal.page import words
from shoal.page.facts import BYTES_MAX, SENTENCE_CHARS_MAX, PageFacts

ANSWER_S: Final = 15.0
AT_ONCE_MAX: Final = 8
PAGES_MAX: Final = 500
ABOUT_CHARS_MAX: Final = 280


class Listed(NamedTuple):
    """One project, as it was found."""

    place: str
    """The address of its page; empty where it was asked by its join link."""
    at_s: float
    """When it was asked: Unix seconds."""
    facts: PageFacts | None = None
    trouble: str = ""
    """Why there is nothing to show."""


def page_address(text: str) -> str:
    """The address of a page, with a slash at its end. UserError for what is none."""
    try:
        parts = urlsplit(text.strip())
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_sound = is_sound and parts.username is None and (parts.port or 1) > 0
    except ValueError:
        is_sound = False
    if not is_sound or not text.isprintable():
        raise UserError(
            f"{text!r} is neither a join link nor the address of a page. Write it as in "
            "https://example.org/"
        )
    path = parts.path.removesuffix("page.json")
    return f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}/"


async def fetch_all(addresses: Sequence[str], now_s: float) -> list[Listed]:
    """What each of these pages says, in this order."""
    turn = asyncio.Semaphore(AT_ONCE_MAX)
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(
        timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), max_line_size=4096
    ) as session:

        async def look(address: str) -> Listed:
            async with turn:
                try:
                    return Listed(address, now_s, facts=await fetch(session, address))
                except (RemoteError, TransientError) as error:
                    return Listed(address, now_s, trouble=words.line(str(error), 200))

        return list(await asyncio.gather(*(look(one) for one in addresses)))


async def fetch(session: aiohttp.ClientSession, address: str) -> PageFacts:
    """What the page at this address says. TransientError where nobody answers, MalformedMessage
    where what comes is no page."""
    place = urljoin(address, "page.json")
    try:
        async with session.get(place, allow_redirects=False) as answer:
            if answer.status != 200:
                raise TransientError(f"it answered with HTTP status {answer.status}")
            content = await _bounded(answer.content)
    except TimeoutError as error:
        raise TransientError(f"it did not answer within {ANSWER_S:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise TransientError("nobody answers there") from error
    return read(content)


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """All of an answer, after it was uncompressed. MalformedMessage where it is too long."""
    found = b""
    async for part in content.iter_chunked(1 << 14):
        found += part
        if len(found) > BYTES_MAX:
            raise MalformedMessage(f"it sent more than {BYTES_MAX >> 10} KiB, which no page has")
    return found


def read(content: bytes) -> PageFacts:
    """The facts in these bytes, cleaned. MalformedMessage if they are none."""
    try:
        found = decoders.json_decoder(PageFacts).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage("what it sent is not the page of a project") from error
    replace = msgspec.structs.replace
    project, state = found.project, found.state
    about = words.line(" ".join(project.about), TEXT_CHARS_MAX)
    if len(about) > ABOUT_CHARS_MAX:
        about = about[:ABOUT_CHARS_MAX].rpartition(" ")[0] + " …"
    return replace(
        found,
        project=replace(
            project,
            name=words.line(project.name, NAME_CHARS_MAX) or project.id[:8] or "a project",
            about=[about] if about else [],
            model=words.line(project.model, SENTENCE_CHARS_MAX),
        ),
        state=replace(state, sentence=words.public(state.sentence, SENTENCE_CHARS_MAX)),
        run=replace(found.run, left=words.line(found.run.left, NAME_CHARS_MAX)),
    )
