"""Watching whether the swarm is whole, and dialling more eagerly while it is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from host.network import own_network
from host.transport import Transport
from protocol.errors import TransientError
from protocol.ids import NodeKey
from protocol.peers.partition import PartitionWatch, Sight

LOOK_EVERY_S: Final = 5.0
HEADS_EVERY_S: Final = 30.0

log = logging.getLogger("shoal.swarm")


@dataclass(eq=False)
class PartitionMonitor:
    """The watch of one daemon, with what only its role can say."""

    transport: Transport
    voters: Callable[[], Collection[NodeKey]]
    """Who may lead or vote."""
    follows: Callable[[], bool]
    """Whether it leads, or hears a leader."""
    heads: Callable[[], Awaitable[Collection[NodeKey]]] | None = None
    """Who proves to lead, by the swarm's table. Raises TransientError."""
    no_network: Callable[[Iterable[str]], str] = own_network.trouble
    """That this machine has no network, given addresses of the swarm; empty if it has."""
    watch: PartitionWatch = field(default_factory=PartitionWatch)
    _heads: Collection[NodeKey] = ()
    _heads_s: float = 0.0

    @property
    def trouble(self) -> str:
        """What is wrong with the swarm as a whole, in one sentence; empty if nothing is known."""
        return self.watch.trouble

    def missing(self) -> list[NodeKey]:
        """Those that may lead, while nobody is known to."""
        return [] if self.follows() else [k for k in self.voters() if k != self.transport.key]

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look(time.monotonic())

    async def look(self, now_s: float) -> None:
        """Looks once."""
        try:
            sight = await self._sight()
        except TransientError:
            return  # The engine is down: that is told, and says nothing of the swarm.
        if self.watch.look(sight, now_s):
            if self.trouble:
                log.warning("%s", self.trouble)
            else:
                log.info("The swarm is whole again.")
        self.transport.dialer.is_urgent = self.watch.kind != "whole"

    async def _sight(self) -> Sight:
        transport = self.transport
        if no_network := self.no_network(self._known()):
            return Sight(0, (), (), follows=False, no_network=no_network)
        away = transport.dialer.away()
        here = transport.connected() - {transport.key}
        voters = set(self.voters()) - {transport.key}
        await self._look_for_heads()
        return Sight(
            here=len(here),
            voters=voters,
            seen=voters & here,
            follows=self.follows(),
            heads=self._heads,
            away=len(away),
        )

    def _known(self) -> list[str]:
        """Addresses of the swarm. Where a name leads is told by the connection that it led to."""
        known = [peer.text for peer in self.transport.dialer.to_try(0)]
        with contextlib.suppress(TransientError):  # The engine is down: nobody is connected.
            known += [text for peer in self.transport.peers() for text in peer.addresses]
        return known

    async def _look_for_heads(self) -> None:
        now_s = time.monotonic()
        if self.heads is None or now_s - self._heads_s < HEADS_EVERY_S:
            return
        self._heads_s = now_s
        try:
            self._heads = await self.heads()
        except TransientError:
            self._heads = ()
