"""The verb `pages`: lists projects on one page, from their own pages or by their join links."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Annotated, Final

from host.control import client
from host.join_link import PREFIX, parse_link
from host.runtime.atomic_files import replace_file
from protocol.errors import RemoteError, TransientError, UserError
from protocol.status import StatusAnswer, SyncerStatus
from shoal.common import choices, daemons
from shoal.common.exit_codes import ExitCode
from shoal.common.looking_on import observer
from shoal.common.verdicts import verdicts
from shoal.page import words
from shoal.page.directory import PAGES_MAX, Listed, fetch_all, page_address
from shoal.page.drawn_up import page_facts
from shoal.page.render import directory

SWARM_S: Final = 60.0
"""How long one may take to enter a swarm by its link and to hear how it is."""


def pages(
    *places: Annotated[
        str, choices.option("Addresses of projects' pages, or join links in quotes.")
    ],
    output: Annotated[Path, choices.option("The file to write.")] = Path("index.html"),
    title: Annotated[str, choices.option("Its heading.")] = "Projects to take part in",
) -> int:
    """Writes the file. NOT_REACHABLE if no project answers; it is written even so."""
    if not places or len(places) > PAGES_MAX:
        raise UserError(
            f"Name 1 to {PAGES_MAX} pages or join links, such as: shoal pages https://example.org/"
        )
    now_s = time.time()
    links = [one for one in places if one.strip().startswith(PREFIX)]
    for link in links:
        parse_link(link)
    addresses = [page_address(one) for one in places if one not in links]
    fetched = iter(asyncio.run(fetch_all(addresses, now_s)))
    listed = [by_link(one, now_s) if one in links else next(fetched) for one in places]
    text = directory(listed, words.line(title, 100) or "Projects", now_s)
    try:
        replace_file(output, text.encode())
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror}).") from error
    answering = [one for one in listed if one.facts is not None]
    for one in listed:
        if one.facts is None:
            print(f"no answer from {one.place or 'a join link'}: {one.trouble}")
    print(f"wrote {output}: {len(answering)} of {len(listed)} projects answer")
    return ExitCode.DONE if answering else ExitCode.NOT_REACHABLE


def by_link(link: str, now_s: float) -> Listed:
    """A project as its leader tells whoever looks on by its join link."""
    trouble = f"it did not answer within {SWARM_S:g} s"
    with observer(link) as socket:
        for _ in daemons.again(SWARM_S):
            with contextlib.suppress(TransientError):
                try:
                    status = _told(socket)
                except RemoteError as error:
                    return Listed("", now_s, trouble=words.public(str(error), 200))
                verdict = verdicts([status], [])[status.key]
                facts = page_facts(status, None, verdict, at_s=now_s, seen_s=now_s)
                return Listed("", now_s, facts=facts)
    return Listed("", now_s, trouble=trouble)


def _told(socket: Path) -> SyncerStatus:
    with contextlib.closing(client.Connection(socket)) as connection:
        status = connection.ask("status", StatusAnswer).status
    assert isinstance(status, SyncerStatus), "an observer reports its syncer"
    return status
