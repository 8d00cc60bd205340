"""Sockets for datagrams that do not leave the network they are sent on.

One for each interface and family. Those that listen are bound to the group itself, so that a
datagram sent to this host alone, which may come from anywhere, never reaches them; and everything
is sent with a hop limit of 1.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from host.runtime import stand_ins

GROUP_4: Final = "239.255.83.72"
"""Of the range that is for private use (RFC 2365)."""

GROUP_6: Final = "ff12::5348:4f41:4c"
"""Link-local, and not one that is assigned (RFC 4291)."""

PORT: Final = 4109
INTERFACES_MAX: Final = 32
LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"

_IP_MULTICAST_ALL: Final = 49
_IPV6_MULTICAST_ALL: Final = 29
"""Of Linux, without names in Python: off, a socket gets only what came in on its interface.
Elsewhere that may be what came in on any interface whose group this host joined."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface, in one family."""

    index: int
    name: str
    family: socket.AddressFamily

    @property
    def group(self) -> tuple[Any, ...]:
        """Where everybody on it is spoken to."""
        if self.family == socket.AF_INET:
            return (GROUP_4, PORT)
        return (GROUP_6, PORT, 0, self.index)


def interfaces(*, only_loopback: bool = False) -> list[Interface]:
    """Those of this machine, for each family, whether or not they are up."""
    named = socket.if_nameindex()[:INTERFACES_MAX]
    families = (socket.AF_INET, socket.AF_INET6)
    return [
        Interface(index, name, family)
        for index, name in named
        for family in families
        if name == LOOPBACK or not only_loopback
    ]


def listening(interface: Interface) -> socket.socket:
    """A socket that gets what is sent to the group on this interface. OSError where none can."""
    found = _new(interface)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(interface.group)
        if interface.family == socket.AF_INET:
            if stand_ins.uses("multicast-all"):
                found.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            member = struct.pack("4s4si", socket.inet_aton(GROUP_4), bytes(4), interface.index)
            found.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        else:
            if stand_ins.uses("multicast-all"):
                found.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
            group = socket.inet_pton(socket.AF_INET6, GROUP_6)
            member = group + struct.pack("@I", interface.index)
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
    except BaseException:
        found.close()
        raise
    return found


def asking(interface: Interface) -> socket.socket:
    """A socket whose datagrams to the group go out on this interface. OSError where none can."""
    found = _new(interface)
    try:
        if interface.family == socket.AF_INET:
            place = struct.pack("4s4si", bytes(4), bytes(4), interface.index)
            found.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, place)
            # Else the kernel takes an address of another interface, where it has one.
            found.bind(("127.0.0.1" if interface.name == LOOPBACK else "", 0))
        else:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface.index)
            found.bind(("::1" if interface.name == LOOPBACK else "::", 0))
    except BaseException:
        found.close()
        raise
    return found


def opened(places: Sequence[Interface], make: Any) -> dict[Interface, socket.socket]:
    """The sockets that can be made; an interface that is down or lacks the family has none."""
    found = {}
    for place in places:
        with contextlib.suppress(OSError):
            found[place] = make(place)
    return found


def _new(interface: Interface) -> socket.socket:
    found = socket.socket(interface.family, socket.SOCK_DGRAM)
    try:
        found.setblocking(False)
        if interface.family == socket.AF_INET:
            found.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            found.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        else:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
    except BaseException:
        found.close()
        raise
    return found


def is_local(listen_host: str) -> bool:
    """Whether a daemon that listens there is for this machine alone."""
    try:
        return ipaddress.ip_address(listen_host).is_loopback
    except ValueError:
        return False  # A name, which whoever binds to it refuses.


def host_of(address: Sequence[Any]) -> str:
    """The IP address that a datagram came from, without its zone."""
    return str(address[0]).partition("%")[0]


def multiaddr_of(host: str, port: int) -> str:
    """Where a host listens, as /ip4/A/tcp/P; empty for an address that only one network knows."""
    ip = ipaddress.ip_address(host)
    if ip.version == 6 and ip.is_link_local:
        return ""  # It needs a zone, which has no place in addresses of hosts.
    return f"/ip{ip.version}/{ip}/tcp/{port}"
