"""Whether this machine has a network at all, so that nobody else is blamed for its absence."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable

from host.addresses import host_in

NO_NETWORK = (
    "this machine has no network: no host of the swarm can be reached from it. Check its cable, "
    "wifi or VPN; Shoal goes on by itself once it is back"
)

ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Of no machine anywhere: what they tell is whether there is a way out."""

RESOLVE_S = 2.0
"""A name whose address is not told within this leads nowhere for now."""

_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def leads_to(host: str) -> bool:
    """Whether the system knows a way to this IP address. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
    except OSError as error:
        return error.errno not in (*_NO_WAY, errno.EAFNOSUPPORT)
    return True


def trouble(addresses: Iterable[str], way: Callable[[str], bool] = leads_to) -> str:
    """That this machine has no network, and what to do; empty if it knows a way to one of these."""
    return "" if has_way(addresses, way) else NO_NETWORK


async def trouble_of_names(addresses: Iterable[str], way: Callable[[str], bool] = leads_to) -> str:
    """The same, where it may take a moment: names are looked up before it is said that there is
    none. A network without a way out of it may have hosts that are known by name."""
    texts = list(addresses)
    found = trouble(texts, way)
    return found and trouble([*texts, *await _led_to(texts)], way)


async def _led_to(addresses: Iterable[str]) -> list[str]:
    """Where the names in these addresses lead."""
    loop, found = asyncio.get_running_loop(), list[str]()
    names = {text.split("/")[2] for text in addresses if text.startswith("/dns")}
    with contextlib.suppress(TimeoutError):  # Those that were told by then count.
        async with asyncio.timeout(RESOLVE_S):
            for name in sorted(names):
                # A name that is none at all is a UnicodeError.
                with contextlib.suppress(OSError, UnicodeError):
                    told = await loop.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
                    found += [_place(family, place[0]) for family, *_, place in told]
    return found


def _place(family: int, host: str | int) -> str:
    return f"/{'ip6' if family == socket.AF_INET6 else 'ip4'}/{host}/udp/9"


def has_way(addresses: Iterable[str], way: Callable[[str], bool] = leads_to) -> bool:
    """Whether this machine knows a way to one of these hosts at least; True where there are none.

    A way is no answer: a cable that is broken further off shows here as hosts that do not answer.
    """
    hosts, is_named = [], False
    for text in addresses:
        host = host_in(text)
        is_named = is_named or not host
        hosts += [host] if host else []
    # Of a name it is not known where it leads, and asking may take long.
    hosts += ELSEWHERE if is_named else []
    return not hosts or any(way(host) for host in hosts)
