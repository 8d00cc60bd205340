"""Knocking at the doors of syncers that are missed, so that their return is noticed at once.

The network engine tries an address that did not answer ever more seldom, whoever asks for it: 5 s
after the first failure, then longer by the square of the failures, 5 minutes at last. A learner
behind a router, which nobody else can dial, would so come back minutes after its syncer. A plain
TCP connection of our own finds out in between, and costs a packet. Where the engine does not dial
a syncer that is back, it is started anew: a new one knows of no failures.

https://github.com/libp2p/go-libp2p/blob/master/p2p/net/swarm/swarm.go (BackoffBase)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from host.addresses import PeerAddress
from protocol.errors import TransientError
from protocol.ids import NodeKey, short

EVERY_S: Final = 2.0
LATER_EVERY_S: Final = 5.0
SOON_S: Final = 120.0
"""A syncer that is away for longer is knocked at as often as `LATER_EVERY_S` says."""

ANSWERING_EVERY_S: Final = 1.0
"""While one answers that the engine does not dial yet."""

GRACE_S: Final = 3.0
"""What the engine gets for its own dial, which is due where the host was away for a moment only."""

ANEW_EVERY_S: Final = 60.0
"""The engine is not started anew more often: a syncer may come and go."""

KNOCK_S: Final = 3.0
HOSTS_MAX: Final = 8
PLACES_MAX: Final = 4

ENGINE_SAYS: Final = b"\x13/multistream/1.0.0\n"
"""The first bytes of every engine. A router that takes connections for a host that is off does not
say them. https://github.com/multiformats/multistream-select"""

log = logging.getLogger("shoal.transport")


class Returns:
    """Which of the missed hosts were silent, and answer again. No IO."""

    def __init__(self) -> None:
        self._silent: dict[NodeKey, float | None] = {}
        """Those that did not answer; since when they do answer, in seconds, or None."""

    def only(self, missed: Collection[NodeKey]) -> None:
        """Forgets those that nobody misses any more."""
        self._silent = {key: at for key, at in self._silent.items() if key in missed}

    def knocked(self, key: NodeKey, *, is_answered: bool, now_s: float) -> bool:
        """Takes in what came of a knock; True where a host answers that had been silent."""
        if not is_answered:
            self._silent[key] = None
            return False
        if key not in self._silent or self._silent[key] is not None:
            return False
        self._silent[key] = now_s
        return True

    @property
    def is_any_back(self) -> bool:
        """Whether a host answers, and is missed nevertheless."""
        return any(at is not None for at in self._silent.values())

    def undialled(self, now_s: float) -> list[NodeKey]:
        """Hosts that have answered for `GRACE_S`: the engine should have dialled them."""
        return [key for key, at in self._silent.items() if at is not None and now_s - at >= GRACE_S]

    def forget(self) -> None:
        """Of all hosts nothing is known any more."""
        self._silent.clear()


class Knocking:
    """Knocks at missed syncers for as long as the host runs, over all runs of its engine."""

    missed: Callable[[], Collection[NodeKey]] = staticmethod(lambda: ())
    """Hosts without which this one is of no use; empty while it is in touch with one. The daemon
    says it."""
    on_return: Callable[[], None] = staticmethod(lambda: None)
    """Called when one of them answers again."""

    def __init__(
        self,
        places: Callable[[NodeKey], Sequence[PeerAddress]],
        is_connected: Callable[[NodeKey], Awaitable[bool]],
        knock: Callable[[PeerAddress], Awaitable[bool]] | None = None,
    ) -> None:
        self._places = places
        self._is_connected = is_connected
        self._knock = knock or answers
        self._returns = Returns()
        self._missing_since_s: float | None = None
        self._anew_s = float("-inf")

    async def run(self) -> str:
        """Knocks until the engine should be started anew; returns why."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.pause_s(loop.time()))
            with contextlib.suppress(TransientError):  # The engine's own troubles are told anyway.
                if reason := await self.look(loop.time()):
                    return reason

    def pause_s(self, now_s: float) -> float:
        """Until the next knock."""
        if self._returns.is_any_back:
            return ANSWERING_EVERY_S
        since_s = self._missing_since_s
        return LATER_EVERY_S if since_s is not None and now_s - since_s > SOON_S else EVERY_S

    async def look(self, now_s: float) -> str:
        """Knocks once at all that are missed; why the engine should be started anew, or "".

        Raises TransportLost or TransientError.
        """
        missed = await self._missed()
        self._returns.only(missed)
        if not missed:
            self._missing_since_s = None
            return ""
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        found = await asyncio.gather(*map(self._is_answering, missed))
        for key, is_answered in zip(missed, found, strict=True):
            if self._returns.knocked(key, is_answered=is_answered, now_s=now_s):
                log.info("host %s answers again", short(key))
                self.on_return()
        undialled = self._returns.undialled(now_s)
        if not undialled or now_s - self._anew_s < ANEW_EVERY_S:
            return ""
        # The knocks took a while, and what they are for may have come about.
        still = [key for key in await self._missed() if key in undialled]
        if not still:
            return ""
        self._anew_s = now_s
        self._returns.forget()
        return f"it does not dial host {short(still[0])}, which is back"

    async def _missed(self) -> list[NodeKey]:
        keys = [key for key in self.missed() if self._places(key)][:HOSTS_MAX]
        return [key for key in keys if not await self._is_connected(key)]

    async def _is_answering(self, key: NodeKey) -> bool:
        return any(await asyncio.gather(*map(self._knock, self._places(key)[:PLACES_MAX])))


async def answers(place: PeerAddress) -> bool:
    """Whether a network engine listens at an address, within `KNOCK_S`. Whose it is, is not asked.

    place: /ip4/A/tcp/P, /ip6/A/tcp/P or /dns.../NAME/tcp/P, with the host's id behind it.
    """
    _, _, name, _, port, *_ = place.text.split("/")
    # A name that is none at all is a UnicodeError.
    with contextlib.suppress(OSError, EOFError, TimeoutError, UnicodeError):
        async with asyncio.timeout(KNOCK_S):
            reader, writer = await asyncio.open_connection(name, int(port))
            try:
                return await reader.readexactly(len(ENGINE_SAYS)) == ENGINE_SAYS
            finally:
                writer.transport.abort()
    return False
