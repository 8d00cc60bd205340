"""Getting the frozen base model of an adapter, piece by piece, from whoever has it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from host.addresses import parse_peer
from host.files.held_base import HeldBase, Piece
from host.join_link import JoinLink
from host.transport import Transport
from node.download.locator import ASK_HOST, Locator
from node.download.pinned import AGAIN, ASKED_MAX
from protocol.errors import RemoteError, TransientError
from protocol.ids import NodeKey

AT_ONCE: Final = 4
"""Pieces on their way, of different hosts where there are several."""

SAYS_EVERY_S: Final = 15.0

log = logging.getLogger("shoal.node")

OnAttempt = Callable[[str, float], None]
"""Gets why a try failed and the seconds until the next."""


@dataclass(slots=True)
class HeldDownload:
    """Fetches what is missing of a held base."""

    transport: Transport
    locator: Locator
    held: HeldBase
    named: list[NodeKey]
    """Hosts that the join link names."""
    on_attempt: OnAttempt
    came_bytes: int = 0
    _todo: deque[Piece] = field(default_factory=deque)
    _said_s: float = 0.0

    @classmethod
    def of(
        cls,
        transport: Transport,
        link: JoinLink,
        locator: Locator,
        held: HeldBase,
        on_attempt: OnAttempt,
    ) -> HeldDownload:
        """For the project that a join link names."""
        named = [parse_peer(text).key for text in link.addresses]
        return cls(transport, locator, held, named, on_attempt)

    async def run(self) -> None:
        """Has every piece here when it returns; tries for ever, with growing pauses.

        UserError if the disk is full.
        """
        self._todo.extend(await asyncio.to_thread(self.held.missing))
        self._said_s = time.monotonic()
        works = [
            asyncio.ensure_future(self._work(at)) for at in range(min(AT_ONCE, len(self._todo)))
        ]
        try:
            await asyncio.gather(*works)
        finally:
            for one in works:
                one.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _work(self, turn: int) -> None:
        attempt = 0
        while self._todo:
            piece = self._todo.popleft()
            content, reason = await self._ask(await self._peers(turn), piece)
            if content is None:
                self._todo.appendleft(piece)
                pause_s = AGAIN.pause_s(attempt)
                self.on_attempt(
                    f"the frozen base model cannot be fetched yet: {reason}; {ASK_HOST}", pause_s
                )
                await asyncio.sleep(pause_s)
                attempt += 1
                continue
            await asyncio.to_thread(self.held.keep, piece, content)
            attempt = 0
            self._tell(piece)

    async def _peers(self, turn: int) -> list[NodeKey]:
        """Whom to ask: each worker begins with another host."""
        others = [*await self.locator.donors_or_none(), *sorted(self.transport.connected())]
        others = [one for one in dict.fromkeys(others) if one not in self.named]
        peers = [*self.named, *others[:ASKED_MAX]]
        peers = [one for one in peers if one != self.transport.key]
        first = turn % len(peers) if peers else 0
        return [*peers[first:], *peers[:first]]

    async def _ask(self, peers: list[NodeKey], piece: Piece) -> tuple[memoryview | None, str]:
        """The piece from the first that has it, or why nobody gave it."""
        reason = "nobody is connected"
        for peer in peers:
            try:
                return await self.transport.fetch(peer, piece.digest, piece.bytes), ""
            except (TransientError, RemoteError) as error:
                reason = str(error)
        return None, reason

    def _tell(self, piece: Piece) -> None:
        self.came_bytes += piece.bytes
        now_s = time.monotonic()
        if now_s - self._said_s >= SAYS_EVERY_S:
            self._said_s = now_s
            left = sum(one.bytes for one in self._todo)
            log.info(
                "fetching the frozen base model: %d MB came, %d MB to go",
                self.came_bytes // 10**6,
                left // 10**6,
            )
