"""Whom a host dials on its own account: those it was told of, and those it knows from before.

One of them that answers is enough to be in the swarm. All are greeted again and again, because a
host that was away has been dropped from everybody's table, and two halves of a split swarm find
together as soon as one host of each greets one of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from host import addresses
from host.addresses import PeerAddress
from host.nat.peer_file import PeerFile
from host.network.engine import Engine
from host.network.neighbours import ConnectedPeer
from protocol.errors import TransientError
from protocol.ids import NodeKey

GREET_EVERY_S: Final = 15.0
URGENT_EVERY_S: Final = 5.0
"""While the swarm seems to be split."""

KNOWN_AT_ONCE_MAX: Final = 4
"""Hosts from before that are dialled in one round; one that does not answer costs five seconds."""

FOUND_MAX: Final = 4  # Half of what one try has room for.
SEEN_MAX: Final = 64  # Peers remembered for rebuilding the engine.


class Dialer:
    """Addresses to begin with, and to come back to."""

    def __init__(
        self,
        own: NodeKey,
        bootstrap: Sequence[str],
        hints: Sequence[str],
        known: PeerFile,
        live: Callable[[], Engine],
    ) -> None:
        """`bootstrap`: one of all must answer if any is named. `live`: raises TransportLost."""
        self.known = known
        self.is_urgent = False
        self._must = bool(addresses.parse_others(bootstrap, own))
        self._named = addresses.parse_others((*bootstrap, *hints), own)
        self._own = own
        self._live = live
        self._seen: dict[NodeKey, ConnectedPeer] = {}
        self._tried: dict[NodeKey, int] = {}
        self._round = 0
        self._found: list[PeerAddress] = []

    @property
    def named(self) -> list[NodeKey]:
        """Hosts that we were told of."""
        return [peer.key for peer in self._named]

    def told(self, texts: Iterable[str]) -> None:
        """Addresses that were found meanwhile, in place of those found before."""
        self._found = addresses.parse_others(list(texts)[:FOUND_MAX], self._own)

    def to_try(self, attempt: int) -> list[PeerAddress]:
        """Addresses for the engine's start number `attempt`; empty: begin alone.

        The first host of a swarm has nobody it must find: after one try it may begin alone.
        """
        if not self._must and attempt > 0:
            return []
        found = list(self._named)
        for peer in self._seen.values():
            found += addresses.readable(peer.addresses)
        for key, texts in self.known.book.best():
            if key != self._own:
                found += addresses.readable(texts)
        turn = addresses.rotated(list(dict.fromkeys(found)), attempt)
        return list(dict.fromkeys((*self._found, *turn)))[: addresses.PEERS_TRIED_MAX]

    def places(self, key: NodeKey) -> list[PeerAddress]:
        """Where a host may be reached: as we were told, and where it was before."""
        named = [peer for peer in self._named if peer.key == key]
        seen = self._seen.get(key)
        texts = (*self.known.book.places(key), *(seen.addresses if seen is not None else ()))
        return list(dict.fromkeys((*named, *addresses.readable(texts))))

    def remember(self, peers: Iterable[ConnectedPeer]) -> None:
        """Hosts of an engine that was lost, for the next one."""
        for peer in list(peers)[:SEEN_MAX]:
            self._seen[peer.key] = peer
        while len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]

    async def run(self) -> None:
        """Greets for ever; what goes wrong is tried again."""
        while True:
            await asyncio.sleep(URGENT_EVERY_S if self.is_urgent else GREET_EVERY_S)
            with contextlib.suppress(TransientError):  # The engine's own troubles are told anyway.
                await self.greet_named()
                await self._greet_known()
            await self.known.save()

    async def greet_named(self) -> None:
        """Makes sure that we and the hosts we were told of know each other, as far as they answer.

        A host that does not answer is no error. Raises TransportLost while the engine is down.
        """
        answers = await self._greet_all(self._named)
        for peer, answered in zip(self._named, answers, strict=True):
            if answered:
                self.known.saw(peer.key, [peer.text])

    def away(self) -> list[NodeKey]:
        """Hosts from before, and those that we were told of, that we have no connection with."""
        here = {peer.key for peer in self._live().connected}
        known = [key for key, _ in self.known.book.best()]
        return [k for k in dict.fromkeys((*self.named, *known)) if k not in here and k != self._own]

    async def _greet_known(self) -> None:
        """Some of those from before that are not connected, in turn."""
        self._round += 1
        self._tried = {key: at for key, at in self._tried.items() if key in self.known.book}
        away = set(self.away()) - set(self.named)
        places = [(key, texts) for key, texts in self.known.book.best() if key in away]
        places.sort(key=lambda place: self._tried.get(place[0], 0))
        chosen = [addresses.readable(texts)[:1] for _, texts in places[:KNOWN_AT_ONCE_MAX]]
        peers = [place for found in chosen for place in found]
        for peer, answered in zip(peers, await self._greet_all(peers), strict=True):
            self._tried[peer.key] = self._round
            if answered:
                self.known.saw(peer.key, [peer.text])
            else:
                self.known.book.failed(peer.key)

    async def _greet_all(self, peers: Sequence[PeerAddress]) -> list[bool]:
        """Which of them answered."""
        engine = self._live()
        answers = await asyncio.gather(*map(engine.greet, peers), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, TransientError):
                raise answer
        return [answer is None for answer in answers]
