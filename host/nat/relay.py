"""Streams to hosts that cannot be dialled, carried by one that both sides are connected with.

The engine's own relay cuts a carried connection after 128 KiB, which no option changes; so streams
are carried here, over connections that stand. A relay only joins two hosts that are connected with
it: it dials nobody on behalf of a stranger. What it carries is sealed from end to end, waits its
turn like all bulk data of this host, and has a ceiling of its own.

A host that could be dialled itself says so when it asks: the other side then dials it, and nothing
needs to be carried.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from host import addresses
from host.files.keystore import Identity
from host.nat import probe_messages
from host.nat.connections import Connections
from host.nat.probe_messages import Inner, RelayAsk, RelayOffer, RelayTold
from host.nat.relay_tls import RelayTls
from host.network.rate_limit import wait_turn
from host.network.slots import Slots
from host.network.streams import Wire
from host.network.token_bucket import PIECE_BYTES, TokenBucket
from host.runtime import lifecycle
from protocol import limits
from protocol.errors import PeerBusy, PeerUnreachable, RemoteError, TransientError
from protocol.ids import NodeKey, short

PROTOCOL: Final = f"shoal.relay.{limits.WIRE_VERSION}"
"""Asks a host to carry a stream."""

OFFER_PROTOCOL: Final = f"shoal.relayed.{limits.WIRE_VERSION}"
"""Offers a carried stream to the host that it is for."""

log = logging.getLogger("shoal.relay")

CIRCUITS_MAX: Final = 64
CIRCUITS_PER_ASKER_MAX: Final = 12
IDLE_S: Final = 120.0
"""A carried stream on which nothing moves for so long is ended; heartbeats are far more frequent.
"""

WRITE_S: Final = 60.0
COME_S: Final = 4.0
"""To dial a host that says it can be dialled; carrying takes over after this."""

ASK_S: Final = COME_S + 2 * probe_messages.NOTE_S
THROUGH_S: Final = 30.0
"""For all relays that are tried for one stream."""

RELAYS_TRIED_MAX: Final = 4
WAYS_KEPT: Final = 2048
SHOWN_S: Final = 60.0
"""A host that was reached through a relay so recently is shown as relayed."""


@dataclass(slots=True)
class _Circuit:
    """One carried stream."""

    ceiling: TokenBucket
    moved_s: float
    """When a byte moved last, in either direction."""


class Relay:
    """All three parts: asking for a relay, being one, and being reached through one."""

    def __init__(
        self,
        connections: Connections,
        identity: Identity,
        bytes_per_s: int,
        *,
        own_addresses: Callable[[], tuple[str, ...]],
    ) -> None:
        """own_addresses: where others can dial this host, for all that is known."""
        self.carried_bytes = 0
        """For others, so far."""
        self.open = 0
        """Streams carried now."""
        self._connections = connections
        self._own_addresses = own_addresses
        self._sealer = RelayTls(identity)
        self._ceiling = TokenBucket(bytes_per_s) if bytes_per_s > 0 else None
        self._slots = Slots(CIRCUITS_MAX, CIRCUITS_PER_ASKER_MAX)
        self._relays_of: dict[NodeKey, tuple[NodeKey, ...]] = {}
        self._used_s: dict[NodeKey, float] = {}

    @property
    def is_offered(self) -> bool:
        """Whether this host carries anything for others."""
        return self._ceiling is not None

    def limit(self, bytes_per_s: int) -> None:
        """The ceiling from now on, 0 for carrying nothing new; what is under way keeps to it."""
        if bytes_per_s <= 0:
            self._ceiling = None
        elif self._ceiling is None:
            self._ceiling = TokenBucket(bytes_per_s)
        else:
            self._ceiling.bytes_per_s = bytes_per_s

    # Asking for one.

    def tell_relays(self, key: NodeKey, relays: Iterable[NodeKey]) -> None:
        """A host says who carries streams to it; nobody, where it can be dialled."""
        found = tuple(relays)[:RELAYS_TRIED_MAX]
        self._relays_of.pop(key, None)
        if found:
            while len(self._relays_of) >= WAYS_KEPT:
                del self._relays_of[next(iter(self._relays_of))]
            self._relays_of[key] = found

    def is_hidden(self, key: NodeKey) -> bool:
        """Whether a host is known not to be dialled."""
        return key in self._relays_of

    def used(self) -> list[NodeKey]:
        """Hosts that we reached through a relay a moment ago, or were reached by."""
        now_s = time.monotonic()
        self._used_s = {k: at_s for k, at_s in self._used_s.items() if now_s - at_s < SHOWN_S}
        return list(self._used_s)

    async def through(self, key: NodeKey, inner: Inner, *, carries: bool = True) -> Wire:
        """A stream to a host by way of others. Raises PeerUnreachable, PeerBusy, RemoteError.

        carries: otherwise they only ask it to dial us.
        """
        if not carries and not self._own_addresses():
            raise PeerUnreachable(f"neither {short(key)} nor this host can be dialled")
        known = self._relays_of.get(key, ())
        guesses = [one for one in self._connections.likely_relays() if one not in known]
        trouble: TransientError = PeerUnreachable(f"nobody is known who reaches {short(key)}")
        ends_s = time.monotonic() + THROUGH_S
        for relay in [*known, *guesses][: max(len(known), RELAYS_TRIED_MAX)]:
            left_s = ends_s - time.monotonic()
            if relay in (key, self._connections.key) or left_s <= 0:
                continue
            try:
                async with asyncio.timeout(min(ASK_S, left_s)):
                    return await self._through(relay, key, inner, carries=carries)
            except TransientError as error:
                trouble = error
            except (RemoteError, TimeoutError) as error:
                trouble = PeerUnreachable(f"{short(relay)} does not carry: {error or 'no answer'}")
            log.debug("no way to %s by %s: %s", short(key), short(relay), trouble)
        raise trouble

    async def _through(self, relay: NodeKey, key: NodeKey, inner: Inner, *, carries: bool) -> Wire:
        stream = await self._connections.dial_plain(relay, PROTOCOL)
        try:
            await probe_messages.send(stream, RelayAsk(key, inner, self._own_addresses()))
            told = await probe_messages.receive(stream, RelayTold, timeout_s=ASK_S)
            if told.status == "open" and not carries:
                raise PeerUnreachable(f"{short(key)} does not dial this host")
            if told.status == "open":
                sealed = await self._sealed(stream, key, is_server=False)
                self._note_used(key)
                return sealed
        except BaseException:
            stream.abort("the stream through a relay did not come about")
            raise
        stream.close()
        if told.status == "come":
            return await self._connections.dial_inner(key, inner)
        if told.status == "busy":
            raise PeerBusy(f"relay {short(relay)} carries as much as it may")
        raise PeerUnreachable(f"relay {short(relay)} does not reach {short(key)}")

    async def _sealed(self, stream: Wire, key: NodeKey, *, is_server: bool) -> Wire:
        sealed = await self._sealer.seal(*stream.ends, peer=key, is_server=is_server)
        return self._connections.wire_over(key, sealed)

    def _note_used(self, key: NodeKey) -> None:
        self._used_s.pop(key, None)
        while len(self._used_s) >= WAYS_KEPT:
            del self._used_s[next(iter(self._used_s))]
        self._used_s[key] = time.monotonic()

    # Being reached through one.

    async def accept(self, stream: Wire) -> None:
        """Takes a stream that a relay offers, or dials its asker instead."""
        offer = await probe_messages.receive(stream, RelayOffer)
        if offer.addresses and await self._come(offer):
            return await probe_messages.reply(stream, RelayTold("come"))
        await probe_messages.send(stream, RelayTold("open"))
        sealed = await self._sealed(stream, offer.of, is_server=True)
        self._note_used(offer.of)
        await self._connections.serve_inner(offer.inner, sealed)

    async def _come(self, offer: RelayOffer) -> bool:
        """Whether we are now connected with the asker, at one of the addresses that it names."""
        there = [one for one in addresses.readable(offer.addresses) if one.key == offer.of]
        if not there:
            return False
        try:
            await self._connections.connect(offer.of, there, timeout_s=COME_S)
        except TransientError as error:
            log.debug("%s cannot be dialled instead: %s", short(offer.of), error)
            return False
        return True

    # Being one.

    async def carry(self, stream: Wire) -> None:
        """Joins the asker's stream to one of ours, if its target is connected with us."""
        ask = await probe_messages.receive(stream, RelayAsk)
        if self._ceiling is None:
            return await probe_messages.reply(stream, RelayTold("off"))
        if not self._slots.try_take(stream.peer):
            return await probe_messages.reply(stream, RelayTold("busy"))
        try:
            if not await self._connections.is_connected(ask.to):
                return await probe_messages.reply(stream, RelayTold("absent"))
            try:
                onward = await self._offer(stream.peer, ask)
            except (TransientError, RemoteError) as error:
                log.debug("%s takes no carried stream: %s", short(ask.to), error)
                return await probe_messages.reply(stream, RelayTold("absent"))
            await self._join(stream, onward, self._ceiling)
        finally:
            self._slots.release(stream.peer)

    async def _offer(self, asker: NodeKey, ask: RelayAsk) -> Wire:
        onward = await self._connections.dial_plain(ask.to, OFFER_PROTOCOL)
        try:
            await probe_messages.send(onward, RelayOffer(asker, ask.inner, ask.addresses))
        except BaseException:
            onward.abort("the offer did not arrive")
            raise
        return onward

    async def _join(self, one: Wire, other: Wire, ceiling: TokenBucket) -> None:
        """Carries bytes both ways until either side ends, or nothing moves for long."""
        self.open += 1
        circuit = _Circuit(ceiling, time.monotonic())
        ways = [
            asyncio.create_task(self._pump(source, target, circuit), name="carrying")
            for source, target in ((one, other), (other, one))
        ]
        try:
            async with lifecycle.ending(ways):
                ended: set[asyncio.Task[None]] = set()
                while not ended and time.monotonic() - circuit.moved_s < IDLE_S:
                    ended, _ = await asyncio.wait(
                        ways, timeout=IDLE_S / 4, return_when=asyncio.FIRST_COMPLETED
                    )
        finally:
            self.open -= 1
            one.close()
            other.close()

    async def _pump(self, source: Wire, target: Wire, circuit: _Circuit) -> None:
        rate_limiter = self._connections.rate_limiter
        try:
            while part := await source.read_some(PIECE_BYTES, timeout_s=None):
                await wait_turn(rate_limiter.down, len(part))
                await wait_turn(rate_limiter.up, len(part), circuit.ceiling)
                await target.write(part, timeout_s=WRITE_S)
                circuit.moved_s = time.monotonic()
                self.carried_bytes += len(part)
        except TransientError as error:
            log.debug("carrying for %s ended: %s", short(source.peer), error)
