"""Whether this machine has a network at all, so that nobody else is blamed for its absence."""

from __future__ import annotations

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


def trouble(addresses: Iterable[str]) -> str:
    """That this machine has no network, and what to do; empty if it knows a way to one of these."""
    return "" if has_way(addresses) else NO_NETWORK


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
