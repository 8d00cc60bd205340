"""How many streams each host may have with us, and what is kept free for those who belong here.

Keys are free. So strangers leave some slots to members, and those of one network address leave some
to other strangers; both only matter where many slots are taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from host import addresses
from protocol.ids import NodeKey

IsMember = Callable[[NodeKey], bool]
"""Whether a host votes, or something of it was merged. A session alone costs nothing."""

NOBODY_KNOWN: Final[IsMember] = lambda _: False  # noqa: E731  # A default, said once.


@dataclass(frozen=True, slots=True)
class Reserve:
    """What strangers leave to others."""

    members: int
    """Slots that only members take."""
    per_network_max: int
    """Slots that strangers of one network address take. This machine's own is not bounded: whoever
    is on it has better ways to disturb; and several homes may share an address, so it is many."""
    is_member: IsMember


class Slots:
    """Counts streams in all and per peer against two bounds, those of strangers against more."""

    def __init__(self, total_max: int, per_peer_max: int, reserve: Reserve | None = None) -> None:
        self._total_max = total_max
        self._per_peer_max = per_peer_max
        self._reserve = reserve
        self._held: dict[NodeKey, list[str]] = {}
        """By peer, where each of its streams comes from."""
        self._used = 0
        self._freed = asyncio.Event()

    @property
    def used(self) -> int:
        """Slots taken now."""
        return self._used

    def held(self, peer: NodeKey) -> int:
        """Slots that this peer has."""
        return len(self._held.get(peer, ()))

    def try_take(self, peer: NodeKey, address: str = "") -> bool:
        """Takes a slot if there is one; pair with `release`. address: of the connection."""
        if self.held(peer) >= self._per_peer_max or self._used >= self._total_max:
            return False
        is_own = addresses.is_loopback(address)
        network = addresses.network_of(address)
        if not self._leaves_enough(peer, None if is_own else network):
            return False
        self._held.setdefault(peer, []).append(network)
        self._used += 1
        return True

    def _leaves_enough(self, peer: NodeKey, network: str | None) -> bool:
        """Whether others still find a slot; network: None for one that is not bounded."""
        reserve = self._reserve
        if reserve is None or self._used < min(
            reserve.per_network_max, self._total_max - reserve.members
        ):
            return True
        if reserve.is_member(peer):
            return True
        strangers = Counter(
            where
            for key, networks in self._held.items()
            if not reserve.is_member(key)
            for where in networks
        )
        if strangers.total() >= self._total_max - reserve.members:
            return False
        return network is None or strangers[network] < reserve.per_network_max

    async def take(self, peer: NodeKey, address: str = "") -> None:
        """Takes a slot, waiting for one; pair with `release`."""
        while not self.try_take(peer, address):
            self._freed.clear()
            await self._freed.wait()

    def release(self, peer: NodeKey) -> None:
        """Gives a taken slot back."""
        held = self._held[peer]
        held.pop()
        self._used -= 1
        if not held:
            del self._held[peer]
        self._freed.set()
