"""How much strangers get of the page's process: requests, streams and connections, each and in all.

Pure: the time is an argument. What is asked beyond it is refused, and costs next to nothing.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

CONNECTIONS_MAX: Final = 320
CONNECTIONS_EACH_MAX: Final = 16
STREAMS_MAX: Final = 256
STREAMS_EACH_MAX: Final = 8
"""Tabs of one household."""

REQUESTS_PER_S: Final = 2.0
REQUESTS_AT_ONCE: Final = 40
"""A page, its pictures and its stream, some times over."""

ADDRESSES_MAX: Final = 4096
"""Whose rate is remembered; of more, those are forgotten that asked longest ago."""


def whose(address: str) -> str:
    """Who is counted as one: an IPv4 address, or the /64 that one line has of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False).network_address)
    return str(found)


def forwarded(header: str, peer: str) -> str:
    """Who asked a reverse proxy, by its X-Forwarded-For; the proxy itself where that says nothing.

    The last entry is the proxy's own word; those before it are whatever the asker wrote.
    """
    last = header.rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(last))
    except ValueError:
        return peer


@dataclass(slots=True)
class Gate:
    """Counts what is open, and what each address asked for lately."""

    _connections: Counter[str] = field(default_factory=Counter)
    _streams: Counter[str] = field(default_factory=Counter)
    _spent: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Until when, by the clock of the caller, each address has used up what it was given."""
    refused: Counter[str] = field(default_factory=Counter)
    """By what it was refused for."""

    @property
    def streams(self) -> int:
        """Open now."""
        return self._streams.total()

    @property
    def remembered(self) -> int:
        """Addresses whose rate is kept in mind."""
        return len(self._spent)

    def connect(self, address: str, *, is_proxy: bool = False) -> bool:
        """Whether one more connection of this address is taken; if so, `disconnect` ends it.

        is_proxy: it speaks for many, and is bounded by the whole alone.
        """
        who = whose(address)
        is_full = self._connections.total() >= CONNECTIONS_MAX
        if is_full or (not is_proxy and self._connections[who] >= CONNECTIONS_EACH_MAX):
            self.refused["connections"] += 1
            return False
        self._connections[who] += 1
        return True

    def disconnect(self, address: str) -> None:
        _less(self._connections, whose(address))

    def ask(self, address: str, now_s: float) -> float:
        """Seconds until this address may ask again; 0 where it may ask now, and has."""
        who = whose(address)
        full_s = REQUESTS_AT_ONCE / REQUESTS_PER_S
        until_s = max(self._spent.get(who, 0.0), now_s) + 1.0 / REQUESTS_PER_S
        if until_s - now_s > full_s:
            self.refused["requests"] += 1
            return until_s - now_s - full_s
        self._spent[who] = until_s
        self._spent.move_to_end(who)
        while len(self._spent) > ADDRESSES_MAX:
            self._spent.popitem(last=False)
        return 0.0

    def open_stream(self, address: str) -> bool:
        """Whether one more stream of this address is taken; if so, `close_stream` ends it."""
        who = whose(address)
        if self.streams >= STREAMS_MAX or self._streams[who] >= STREAMS_EACH_MAX:
            self.refused["streams"] += 1
            return False
        self._streams[who] += 1
        return True

    def close_stream(self, address: str) -> None:
        _less(self._streams, whose(address))


def _less(counts: Counter[str], who: str) -> None:
    counts[who] -= 1
    if counts[who] <= 0:
        del counts[who]
