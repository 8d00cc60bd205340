"""Asking this machine's router to forward our ports, once nobody outside can dial them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host import addresses
from protocol.peers.port_mapping import ROUTER_PORT, Mapping, PortMapper

ROUTES: Final = Path("/proc/net/route")
ROUTES_BYTES_MAX: Final = 1 << 20
LOOK_EVERY_S: Final = 2.0
GOODBYE_S: Final = 0.5
"""How long the router may take to say that it forwards no more; it has heard it either way."""

log = logging.getLogger("shoal.reach")


def default_gateway(routes: str) -> str:
    """The IPv4 address of the router in a table of routes as /proc/net/route has it; or empty.

    The one with the lowest metric, of several.
    """
    found = []
    for line in routes.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or words[1] != "00000000" or words[7] != "00000000":
            continue
        with contextlib.suppress(ValueError):
            gateway = ipaddress.IPv4Address(bytes.fromhex(words[2])[::-1])
            if not gateway.is_unspecified and int(words[3], 16) & 0x2:
                found.append((int(words[6]), str(gateway)))
    return min(found)[1] if found else ""


def this_gateway() -> str:
    """That of this machine; empty where it has none, or says nothing of it."""
    try:
        with ROUTES.open() as file:
            return default_gateway(file.read(ROUTES_BYTES_MAX))
    except OSError:
        return ""


def engine_sentence(listening: Iterable[str], own_ips: Collection[str]) -> str:
    """What came of the network engine's asking, by where it says that it listens."""
    for text in listening:
        if addresses.is_public(text) and addresses.host_in(text) not in own_ips:
            port = text.partition("/p2p/")[0].rpartition("/")[2]
            return (
                f"Its router forwards TCP port {port}, as the network engine asked (UPnP, NAT-PMP)."
            )
    return (
        "The network engine asked its router to forward the port (UPnP, NAT-PMP), and nothing came "
        "of it so far."
    )


@dataclass(eq=False)
class Router:
    """What became of asking; empty until then."""

    is_wanted: bool
    is_hidden: Callable[[], bool]
    """Whether nobody outside can dial this host."""
    ports: Callable[[], list[int]]
    """Ours: of the engine, and of direct channels if there is one."""
    on_mapped: Callable[[], None]
    """Called when the router begins to forward, or ends it."""
    mapper: PortMapper | None = None
    gateway: str = ""
    _said: str = ""
    _line: socket.socket | None = None

    def mapping(self, port: int) -> Mapping | None:
        """How the router forwards to a port of ours, if it does."""
        return self.mapper.mappings.get(port) if self.mapper is not None else None

    @property
    def may_ask(self) -> bool:
        """Whether there is a router, and its owner lets us ask it."""
        return self.is_wanted and bool(self.gateway)

    @property
    def is_settled(self) -> bool:
        """Whether it was asked, and no answer is awaited."""
        return self.mapper is not None and not self.mapper.is_asking

    def sentence(self, port: int) -> str:
        """What came of it, as a sentence; empty where nobody was asked."""
        mapper = self.mapper
        if mapper is None or (mapper.is_asking and not mapper.mappings):
            return ""
        one = mapper.mappings.get(port)
        if one is None:
            return f"Its router ({self.gateway}) was asked to forward it, but {mapper.refusal}."
        words = f"Its router ({self.gateway}) forwards TCP port {one.outside} ({mapper.dialect})"
        if self.is_hidden() and one.ip and not ipaddress.ip_address(one.ip).is_global:
            return f"{words}, but its own address there is {one.ip}: another router is behind it."
        return f"{words}."

    async def run(self) -> None:
        """Asks once nobody can dial this host, keeps what is granted, and begins anew behind
        another router. For one run of the engine."""
        while self.is_wanted:
            gateway = this_gateway()
            if self.mapper is not None and (gateway, self.ports()) != (
                self.gateway,
                list(self.mapper.ports),
            ):
                await self.close()
            self.gateway = gateway
            if self.mapper is None and self.gateway and self.is_hidden():
                await self._begin()
            if self.mapper is not None:
                await self._talk(self.mapper)
            await asyncio.sleep(LOOK_EVERY_S)

    async def close(self) -> None:
        """Gives back what the router forwards."""
        mapper, line = self.mapper, self._line
        if mapper is not None and line is not None and mapper.mappings:
            goodbyes = mapper.end()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    loop = asyncio.get_running_loop()
                    for datagram in goodbyes:
                        await loop.sock_sendall(line, datagram)
                    for _ in goodbyes:
                        await loop.sock_recv(line, 1200)
        self._forget()

    def _forget(self) -> None:
        line, self._line, self.mapper = self._line, None, None
        if line is not None:
            line.close()

    async def _begin(self) -> None:
        line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            line.setblocking(False)
            line.connect((self.gateway, ROUTER_PORT))  # Only what comes from there is heard.
            own_ip = line.getsockname()[0]
        except OSError as error:
            line.close()
            log.debug("the router cannot be asked: %s", error)
            return
        self._line = line
        self.mapper = PortMapper(own_ip, self.ports(), os.urandom(12))
        self.mapper.begin(asyncio.get_running_loop().time())

    async def _talk(self, mapper: PortMapper) -> None:
        """Sends and hears what there is, until nothing is awaited."""
        loop, line, before = asyncio.get_running_loop(), self._line, dict(mapper.mappings)
        assert line is not None, "there is one as long as there is a mapper"
        while True:
            with contextlib.suppress(OSError):  # A network that is down; asked again later.
                for datagram in mapper.due(loop.time()):
                    await loop.sock_sendall(line, datagram)
            if not mapper.is_asking:
                break
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(max(0.05, mapper.pause_s(loop.time()))):
                    mapper.take(await loop.sock_recv(line, 1200), loop.time())
        if before.keys() != mapper.mappings.keys():
            self.on_mapped()
        said = self.sentence(mapper.ports[0])
        if said != self._said:
            self._said = said
            log.info("%s", said)
