"""Whether this machine has a network at all, so that nobody else is blamed for its absence."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable

from host.addresses import host_in, ip_version_of
from protocol.peers.reachability import IpVersion

NO_NETWORK = (
    "this machine has no network: no host of the swarm can be reached from it. Check its cable, "
    "wifi or VPN; Shoal goes on by itself once it is back"
)

ELSEWHERE: dict[IpVersion, str] = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Of no machine anywhere: what they tell is whether there is a way out."""


def _one_version(here: IpVersion, there: IpVersion) -> str:
    return (
        f"this machine's network has IPv{here} alone, and all addresses of the swarm that it knows "
        f"are of IPv{there}. Ask the project's host for one of IPv{here}, or use a network with "
        f"IPv{there}"
    )


ONE_VERSION: dict[IpVersion, str] = {4: _one_version(4, 6), 6: _one_version(6, 4)}
"""By the version that this machine has."""

RESOLVE_S = 2.0
"""A name whose address is not told within this leads nowhere for now."""

_NAMES: dict[str, tuple[IpVersion, ...]] = {"dns4": (4,), "dns6": (6,)}

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
    """That this machine has no network, or one of another version of the Internet protocol, and
    what to do; empty if it knows a way to one of these."""
    texts = list(addresses)
    if has_way(texts, way):
        return ""
    theirs = {version for text in texts for version in versions_of(text)}
    ways = [version for version in ELSEWHERE if version not in theirs and way(ELSEWHERE[version])]
    return ONE_VERSION[ways[0]] if ways else NO_NETWORK


def is_of_this_machine(words: str) -> bool:
    """Whether what `trouble` says stands in there, so that nobody else can help."""
    return any(one in words for one in (NO_NETWORK, *ONE_VERSION.values()))


def versions_of(text: str) -> tuple[IpVersion, ...]:
    """The versions that an address may be of: both, where a name or a relay does not say."""
    version = ip_version_of(text)
    if version is not None:
        return (version,)
    return next((found for kind, found in _NAMES.items() if text.startswith(f"/{kind}/")), (4, 6))


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
    hosts: dict[str, None] = {}
    for text in addresses:
        # Of a name it is not known where it leads, and asking may take long.
        found = [host_in(text)] if host_in(text) else [ELSEWHERE[v] for v in versions_of(text)]
        hosts |= dict.fromkeys(found)
    return not hosts or any(way(host) for host in hosts)
