"""Looking for projects on the networks that this machine is on."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from host.files import keystore
from host.join_link import JoinLink, check_address
from host.nearby import lan_sockets
from protocol import limits
from protocol.errors import UserError
from protocol.ids import Digest
from protocol.peers.nearby import NearbyProject, NearbySearch
from protocol.signing import verify_ed25519

LINK_ADDRESSES_MAX: Final = min(8, limits.ADDRESSES_MAX)


class _Heard(asyncio.DatagramProtocol):
    """Hands what arrives to a search."""

    def __init__(self, search: NearbySearch, woken: asyncio.Event) -> None:
        self._search = search
        self._woken = woken

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._search.take(data, lan_sockets.host_of(addr))
        self._woken.set()

    def error_received(self, exc: Exception) -> None:
        """A network that is down: others may be up."""


async def search(
    wanted: Callable[[Digest], bool] | None = None, *, only_loopback: bool = False
) -> NearbySearch:
    """What hosts on this machine's networks answer within three seconds.

    wanted: ends the search early once such a project is found.
    """
    loop = asyncio.get_running_loop()
    look = NearbySearch(os.urandom(16), verify_ed25519, loop.time(), wanted)
    woken = asyncio.Event()
    places = lan_sockets.interfaces(only_loopback=only_loopback)
    made = lan_sockets.opened(places, lan_sockets.asking)
    lines: list[tuple[lan_sockets.Interface, asyncio.DatagramTransport]] = []
    try:
        for place, own in made.items():
            line, _ = await loop.create_datagram_endpoint(lambda: _Heard(look, woken), sock=own)
            lines.append((place, line))
        while not look.is_over(loop.time()):
            datagram = look.due(loop.time())
            if datagram is not None:
                for place, line in lines:
                    line.sendto(datagram, place.group)
            woken.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), look.pause_s(loop.time()))
    finally:
        _close(lines, made)
    return look


async def places_of(project: Digest, listen_host: str) -> tuple[str, ...]:
    """Addresses of hosts on this machine's networks that take part in a project."""
    only_loopback = lan_sockets.is_local(listen_host)
    look = await search(lambda one: one == project, only_loopback=only_loopback)
    link = link_to(look.found[project]) if project in look.found else None
    return link.addresses if link is not None else ()


def _close(
    lines: list[tuple[lan_sockets.Interface, asyncio.DatagramTransport]],
    made: dict[lan_sockets.Interface, socket.socket],
) -> None:
    taken = {place for place, _ in lines}
    for _, line in lines:
        line.abort()
    for place, own in made.items():
        if place not in taken:
            own.close()


def link_to(project: NearbyProject) -> JoinLink | None:
    """The join link to a project: where its hosts answered from, then what they say.

    None where no host of it can be dialled. Addresses that are none are left out.
    """
    hosts = list(project.hosts.values())
    places = [(*place, host.key) for host in hosts for place in host.places]
    texts = [
        f"{text}/p2p/{keystore.peer_id(key)}"
        for ip, port, key in sorted(
            places, key=lambda place: ipaddress.ip_address(place[0]).is_loopback
        )
        if (text := lan_sockets.multiaddr_of(ip, port))
    ]
    for host in hosts:
        texts += host.notice.addresses
    found = []
    for text in dict.fromkeys(texts):
        with contextlib.suppress(UserError):  # What a stranger says may be anything.
            check_address(text)
            found.append(text)
    if not found:
        return None
    notice = project.notice
    return JoinLink(
        project.project, notice.genesis_bytes, project.name, tuple(found[:LINK_ADDRESSES_MAX])
    )
