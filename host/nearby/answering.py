"""A host that answers those who look for projects on its network."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from host import addresses
from host.files.keystore import Identity
from host.nearby import lan_sockets
from host.nearby.lan_sockets import Interface
from protocol.errors import RemoteError
from protocol.ids import Digest
from protocol.peers.nearby import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_TOLD_MAX,
    NearbyAnswering,
    NearbyNotice,
    answer,
)

LOOK_EVERY_S: Final = 5.0
"""A laptop is carried to another network; a cable is plugged in; its owner thinks again."""

WAITING_MAX: Final = 64

log = logging.getLogger("shoal.nearby")

MakeNotice = Callable[[bytes], NearbyNotice | None]
"""What to say now to a question with this nonce; None: nothing."""


def addresses_to_tell(texts: Iterable[str]) -> tuple[str, ...]:
    """Those of a host that go into a notice."""
    return tuple(text for text in texts if len(text) <= ADDRESS_CHARS_MAX)[:ADDRESSES_TOLD_MAX]


class NearbyAnswerer:
    """Answers questions on every network of this machine, or on loopback alone where its daemon
    listens nowhere else."""

    def __init__(
        self,
        project: Digest,
        identity: Identity,
        listen_host: str,
        notice: MakeNotice,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """is_wanted: asked again and again; while it says no, nothing is listened to."""
        self._project = project
        self._identity = identity
        places = [ipaddress.ip_address(place) for place in addresses.places_of(listen_host)]
        self._only_loopback = all(place.is_loopback for place in places)
        self._listens_on = {
            place.version for place in places if place.is_unspecified or place.is_loopback
        }
        """The families in which this host listens at every address that it may answer from."""
        self._notice = notice
        self._is_wanted = is_wanted
        self._rule = NearbyAnswering(random.Random().random)
        self._lines: dict[Interface, asyncio.DatagramTransport] = {}
        self._waiting: set[asyncio.TimerHandle] = set()
        self.refused = 0
        """Datagrams that were no question."""

    @property
    def interfaces(self) -> set[str]:
        """Where questions are heard now."""
        return {place.name for place in self._lines}

    async def run(self) -> None:
        """Answers for ever."""
        try:
            while True:
                await self._listen()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for handle in self._waiting:
                handle.cancel()
            for line in self._lines.values():
                line.abort()
            self._lines.clear()

    async def _listen(self) -> None:
        """On interfaces that are new, and no more on those that are gone."""
        loop = asyncio.get_running_loop()
        places: list[Interface] = []
        if self._is_wanted():
            places = lan_sockets.interfaces(only_loopback=self._only_loopback)
        for place in [place for place in self._lines if place not in places]:
            self._lines.pop(place).abort()
        new = [place for place in places if place not in self._lines]
        for place, own in lan_sockets.opened(new, lan_sockets.listening).items():
            line, _ = await loop.create_datagram_endpoint(lambda: _Asked(self), sock=own)
            self._lines[place] = line

    def asked(self, datagram: bytes, asker: tuple[Any, ...], line: Any) -> None:
        """Answers after a moment, if this is a question that deserves it."""
        loop = asyncio.get_running_loop()
        try:
            due = self._rule.delay_s(datagram, lan_sockets.host_of(asker), loop.time())
        except RemoteError:
            self.refused += 1
            return
        if due is None or len(self._waiting) >= WAITING_MAX:
            return
        pause_s, nonce = due

        def say() -> None:
            self._waiting.discard(handle)
            self._say(nonce, asker, line)

        handle = loop.call_later(pause_s, say)
        self._waiting.add(handle)

    def _say(self, nonce: bytes, asker: tuple[Any, ...], line: Any) -> None:
        notice = self._notice(nonce)
        if notice is None or line.is_closing():
            return
        if ipaddress.ip_address(lan_sockets.host_of(asker)).version not in self._listens_on:
            notice = msgspec.structs.replace(notice, port=0)
        try:
            line.sendto(answer(self._project, notice, self._identity), asker)
        except RemoteError as error:
            log.warning("this host cannot be found by --nearby: %s", error)


class _Asked(asyncio.DatagramProtocol):
    """Hands questions to the host, with the line that they came on."""

    def __init__(self, host: NearbyAnswerer) -> None:
        self._host = host
        self._line: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._line = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._host.asked(data, addr, self._line)

    def error_received(self, exc: Exception) -> None:
        """The asker is gone, or the network is down."""
