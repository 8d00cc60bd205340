"""Getting what a project pins from whoever has it: the tokenizer, and the list of shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from host.addresses import parse_peer
from host.files.pinned_files import PinnedFiles
from host.files.shard_files import ShardFiles
from host.join_link import JoinLink
from host.transport import Transport
from node.download.locator import ASK_HOST, Locator
from protocol import limits
from protocol.backoff import Backoff
from protocol.errors import RemoteError, TransientError, UserError

AGAIN: Final = Backoff((1.0, 2.0, 4.0, 8.0, 16.0, 30.0))
ASKED_MAX: Final = 8
"""Others than those that the link names, in one try."""


async def fetch_pinned(
    transport: Transport,
    link: JoinLink,
    locator: Locator,
    files: PinnedFiles,
    on_attempt: Callable[[str, float], None],
) -> None:
    """Has every file here when it returns; tries for ever, with growing pauses.

    `on_attempt` gets why a try failed and the seconds until the next. UserError if they are too
    large, or one cannot be written.
    """
    if files.size_bytes > limits.TOKENIZER_BYTES_MAX:
        raise UserError(
            f"This project's tokenizer has {files.size_bytes:,} bytes, and at most"
            f" {limits.TOKENIZER_BYTES_MAX:,} are fetched. Ask its owner for a smaller one."
        )
    for file in await asyncio.to_thread(files.missing):
        wanted = (file.digest, file.bytes)
        content = await _fetched(transport, link, locator, file.name, wanted, on_attempt)
        await asyncio.to_thread(files.keep, file, content)


async def fetch_manifest(
    transport: Transport,
    link: JoinLink,
    locator: Locator,
    files: ShardFiles,
    on_attempt: Callable[[str, float], None],
) -> None:
    """Has the list of a project's shards here when it returns, if its data are published.

    As `fetch_pinned`. UserError if the list is of no use, or cannot be written.
    """
    pinned = files.pinned
    if pinned is None or files.table is not None:
        return
    wanted = (pinned.manifest, pinned.manifest_bytes)
    content = await _fetched(transport, link, locator, "list of shards", wanted, on_attempt)
    await asyncio.to_thread(files.keep_manifest, content)


async def _fetched(
    transport: Transport,
    link: JoinLink,
    locator: Locator,
    what: str,
    wanted: tuple[bytes, int],
    on_attempt: Callable[[str, float], None],
) -> memoryview:
    """A blob from whoever has it. wanted: digest and bytes."""
    named = [parse_peer(text).key for text in link.addresses]
    attempt = 0
    while True:
        others = [*await locator.donors_or_none(), *sorted(transport.connected())]
        others = [one for one in dict.fromkeys(others) if one not in {*named, transport.key}]
        content, reason = await _ask(transport, [*named, *others[:ASKED_MAX]], *wanted)
        if content is not None:
            return content
        pause_s = AGAIN.pause_s(attempt)
        on_attempt(f"the project's {what} cannot be fetched yet: {reason}; {ASK_HOST}", pause_s)
        await asyncio.sleep(pause_s)
        attempt += 1


async def _ask(
    transport: Transport, peers: list[bytes], digest: bytes, size_bytes: int
) -> tuple[memoryview | None, str]:
    """The blob from the first that has it, or why nobody gave it."""
    reason = "nobody is connected"
    for peer in peers:
        try:
            return await transport.fetch(peer, digest, size_bytes), ""
        except (TransientError, RemoteError) as error:
            reason = str(error)
    return None, reason
