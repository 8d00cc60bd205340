"""Before a learner joins: what the project is, and whether its owner's judge lets it.

The host is in the swarm's table by then, and nobody has heard of a learner yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from host.files.pinned_files import PinnedFiles
from host.files.shard_files import ShardFiles, learners_folder
from host.files.signed_project import open_project
from host.options import NodeOptions
from host.transport import Transport
from node.daemon.frozen_base import have_base
from node.download.locator import Locator, fetch_genesis
from node.download.pinned import fetch_manifest, fetch_pinned
from protocol import limits, wire
from protocol.errors import RemoteError, TransientError, UserError
from protocol.numerics.outer import digest
from protocol.project import Genesis

SEAT_S: Final = 10.0
"""Without a syncer there are no rules to judge by: the learner waits for one as it is."""

log = logging.getLogger("shoal.node")


async def learn_project(
    options: NodeOptions, transport: Transport, on_attempt: Callable[[str, float], None]
) -> bytes:
    """The project's genesis, from this machine's copy or from a host named in the link.

    The files that it pins, the list of published shards and the frozen base model of an adapter are
    here as well, from whoever has them.

    UserError where this machine does not suit the project.
    """
    link = options.link
    copy = options.home.project(link.project) / "genesis"
    if copy.is_file() and digest(copy.read_bytes()) == link.project:
        genesis = copy.read_bytes()
    else:
        genesis = await fetch_genesis(transport, link, on_attempt)
        copy.write_bytes(genesis)
    if options.judge is not None:
        await _judge(options, transport, genesis)
    spec = wire.decode(genesis, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
    files = PinnedFiles(options.home.data_cache(), spec.tokenizer)
    locator = Locator.of(transport, link, genesis)
    await fetch_pinned(transport, link, locator, files, on_attempt)
    if spec.published is not None:
        shards = ShardFiles(options.home.data_cache(), spec, learners_folder(options.instance))
        await fetch_manifest(transport, link, locator, shards, on_attempt)
    await have_base(options, transport, spec, genesis, on_attempt)
    return genesis


async def _judge(options: NodeOptions, transport: Transport, genesis: bytes) -> None:
    assert options.judge is not None
    locator = Locator.of(transport, options.link, genesis)
    try:
        async with asyncio.timeout(SEAT_S):
            found = await locator.find_seat(None)
        opened = open_project(genesis, found.charter)
    except (TransientError, RemoteError, TimeoutError) as error:
        log.info("cannot tell whether this machine suits the project: %s", error or "no syncer")
        return
    against = await asyncio.to_thread(options.judge, opened.genesis, opened.charter)
    if against:
        raise UserError(against)
