"""Finding out whether others can dial this host, and telling others the same about them.

A host that is asked opens a fresh TCP connection to the address that it sees the asker at, and to
nowhere else, so that nobody is made to knock at a third party's door. It waits for the engine's
first words there; who answers is not proven, which costs nothing but a wrong verdict.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from host import addresses
from host.nat import probe_messages
from host.nat.connections import Connections
from host.nat.probe_messages import ReachAsk, ReachTold
from host.network.streams import Wire
from protocol import limits
from protocol.errors import ShoalError, TransientError
from protocol.ids import NodeKey, short
from protocol.peers.reachability import Reach, Reaching

PROTOCOL: Final = f"shoal.reach.{limits.WIRE_VERSION}"
log = logging.getLogger("shoal.reach")

FIRST_LOOK_S: Final = 1.0
LOOK_EVERY_S: Final = 5.0
DIAL_BACK_S: Final = 4.0
"""A connection that is dropped on the way is not answered at all: two tries of TCP and a bit."""

ANSWER_S: Final = DIAL_BACK_S + probe_messages.NOTE_S
DIALS_AT_ONCE_MAX: Final = 8
DIAL_PAUSE_S: Final = 3.0
"""The same host is dialled back so often at most."""

PEERS_KEPT: Final = 1024
ADDRESSES_TOLD_MAX: Final = 8

FIRST_WORDS: Final = b"\x13/multistream/1.0.0\n"
"""Both ends of every connection of the engine begin with this.
https://github.com/multiformats/multistream-select"""

OnAddresses = Callable[[NodeKey, Sequence[str]], None]
"""Gets where a host says that it is reached."""


@dataclass(eq=False)
class Reachability:
    """The verdict on this host, kept up to date, and the service that others ask."""

    connections: Connections
    on_addresses: OnAddresses
    carries: Callable[[], bool]
    """Whether this host relays streams of others."""
    of_router: Callable[[], str] = lambda: ""
    """What came of asking the router for a port, as a sentence."""
    machine: Reaching = field(default_factory=lambda: Reaching(random.Random().random))
    _said: Reach = "unknown"
    _dialled_s: dict[NodeKey, float] = field(default_factory=dict)
    _dials: int = 0

    @property
    def verdict(self) -> Reach:
        """How this host is reached, for all that is known now."""
        return self.machine.verdict(self.connections.connected(), time.monotonic())

    @property
    def relays(self) -> tuple[NodeKey, ...]:
        """Hosts that carry streams to this one; empty where it can be dialled."""
        return self.machine.relays(self.connections.connected()) if self.is_hidden else ()

    @property
    def is_hidden(self) -> bool:
        """Whether nobody outside can dial this host."""
        return self.verdict in ("relayed", "outward")

    @property
    def count(self) -> tuple[int, int]:
        """How many hosts could dial this one, and how many tried."""
        return self.machine.count(time.monotonic())

    @property
    def sentence(self) -> str:
        """The verdict for people, what to do about it, and what the router did."""
        return " ".join(filter(None, (self._words(), self.of_router())))

    def _words(self) -> str:
        could, tried = self.count
        match self.verdict:
            case "unknown":
                return "Whether others can dial this host is not known yet."
            case "direct":
                return (
                    f"Others can dial this host{self._over()}: {could} of {tried} that tried "
                    "reached it."
                )
            case "relayed":
                names = ", ".join(short(key) for key in self.relays)
                return (
                    f"Nobody outside can dial this host; {names} carry streams to it. To be "
                    f"reached directly, forward TCP port {self.connections.port_outside} to it."
                )
        return (
            "Nobody outside can dial this host, and no host that it knows carries streams to it. "
            "It can dial others, but they cannot reach it. Forward TCP port "
            f"{self.connections.port_outside} to it."
        )

    def _over(self) -> str:
        """Over what, where it is not over everything that was tried."""
        now_s = time.monotonic()
        if not self.machine.closed_over(now_s):
            return ""
        return "".join(f" over IPv{one} alone" for one in self.machine.direct_over(now_s))

    async def run(self) -> None:
        """Asks whoever is due, for ever. For one run of the engine."""
        self.machine.moved()
        pause_s = FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = LOOK_EVERY_S
            try:
                await self.connections.look_at_connections()
            except TransientError:
                continue  # The engine's own troubles are told elsewhere.
            await self._ask_around()
            self._tell()

    async def _ask_around(self) -> None:
        connected = self.connections.connected()
        asked = self.machine.to_ask(connected, time.monotonic())
        await asyncio.gather(*map(self._ask, asked))

    async def _ask(self, peer: NodeKey) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                told = await self._answer_of(peer)
                places = await self.connections.where(peer)
        except (ShoalError, TimeoutError) as error:
            log.debug("%s does not dial us back: %s", short(peer), error or "no answer")
            self.machine.failed(peer, time.monotonic())
            return
        self.machine.told(
            peer,
            could_dial=told.could_dial,
            # Who is on the same line has not come through the router.
            is_public=addresses.is_public(told.seen)
            and addresses.network_of(told.seen) not in map(addresses.network_of, places),
            relays=told.relays,
            now_s=time.monotonic(),
            ip_version=addresses.ip_version_of(told.seen) or 4,
        )
        self.on_addresses(peer, told.addresses)

    async def _answer_of(self, peer: NodeKey) -> ReachTold:
        stream = await self.connections.dial_plain(peer, PROTOCOL)
        try:
            port = self.connections.port_outside
            await probe_messages.send(stream, ReachAsk(port, True, self.told_addresses()))
            return await probe_messages.receive(stream, ReachTold, timeout_s=ANSWER_S)
        finally:
            stream.close()

    def told_addresses(self) -> tuple[str, ...]:
        """Where others may dial this host, as far as it is known that they can."""
        if self.verdict != "direct":
            return ()
        closed = self.machine.closed_over(time.monotonic())
        open_ones = [
            text
            for text in self.connections.addresses()
            if addresses.ip_version_of(text) not in closed
        ]
        return tuple(open_ones[:ADDRESSES_TOLD_MAX])

    def _tell(self) -> None:
        verdict = self.verdict
        if verdict != self._said:
            self._said = verdict
            log.info("%s", self.sentence)

    # The other side.

    async def answer(self, stream: Wire) -> None:
        """Answers one question about the asker."""
        ask = await probe_messages.receive(stream, ReachAsk)
        seen = addresses.host_in(stream.address)
        could_dial: bool | None = None
        if ask.is_wanted and seen and self._may_dial(stream.peer):
            self._dials += 1
            try:
                could_dial = await dial_back(seen, ask.port)
            finally:
                self._dials -= 1
        relays = self.verdict == "direct" and self.carries()
        self.on_addresses(stream.peer, ask.addresses)
        told = ReachTold(could_dial, stream.address, relays, self.told_addresses())
        await probe_messages.reply(stream, told)

    def _may_dial(self, peer: NodeKey) -> bool:
        now_s = time.monotonic()
        if self._dials >= DIALS_AT_ONCE_MAX:
            return False
        if now_s - self._dialled_s.get(peer, -1e9) < DIAL_PAUSE_S:
            return False
        self._dialled_s.pop(peer, None)
        while len(self._dialled_s) >= PEERS_KEPT:
            del self._dialled_s[next(iter(self._dialled_s))]
        self._dialled_s[peer] = now_s
        return True


async def dial_back(host: str, port: int) -> bool:
    """Whether a network engine answers there."""
    try:
        async with asyncio.timeout(DIAL_BACK_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(FIRST_WORDS)
                return await reader.readexactly(len(FIRST_WORDS)) == FIRST_WORDS
            finally:
                writer.transport.abort()
    except (OSError, EOFError, TimeoutError):
        return False
