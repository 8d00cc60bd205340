"""Fetches blobs from whoever leads; a transfer begins anew when another host leads.

A transfer from a leader that was cut off would only end after `blobs.READ_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from host.runtime import lifecycle
from node.download.locator import Locator
from protocol.errors import RemoteError


class LeaderFetcher:
    """One learner's transfers from the syncer that leads."""

    def __init__(self, locator: Locator, on_fault: Callable[[bytes, RemoteError], None]) -> None:
        self.leader: bytes | None = None
        self._locator = locator
        self._on_fault = on_fault
        self._changed = asyncio.Event()

    def follow(self, leader: bytes) -> None:
        """This host leads from now on."""
        self.leader = leader
        self._changed.set()
        self._changed = asyncio.Event()

    async def fetch(self, wanted: list[tuple[bytes, int]]) -> list[memoryview]:
        """What the leader sends. TransientError if it does not."""
        while True:
            sources = [self.leader] if self.leader is not None else []
            fetch = asyncio.ensure_future(self._locator.fetch_from(sources, wanted, self._on_fault))
            changed = asyncio.ensure_future(self._changed.wait())
            async with lifecycle.ending((fetch, changed)):
                await asyncio.wait({fetch, changed}, return_when=asyncio.FIRST_COMPLETED)
                if fetch.done():
                    return fetch.result()[1]
