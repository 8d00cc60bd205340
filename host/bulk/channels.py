"""Direct TLS channels to peers, beside the network engine: who has one, and how it comes about.

They are agreed on over a stream of the engine, which has proven both keys. The asker says its
certificate and port, the other answers with its own; the asker dials the address where the engine
has its connection, and where that fails the other dials back. Only ports are believed: a peer that
could name addresses could aim us at others. What a connection carries is in `connection`, when
one is wanted in `channel_choice`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from host.bulk import channel_policy, frames, handshake, tls_context
from host.bulk.bulk_loop import BulkLoop
from host.bulk.connection import Connection, tune
from host.bulk.connection_io import Found, Lacking, Shares
from host.bulk.handshake import ASK_S, DECLINE, DIAL_BACK, DONE, FAILED, OFFER, REACHED, Offer
from host.bulk.tls_context import Contexts
from host.bulk.tls_socket import open_pipe
from host.files.keystore import Identity
from host.network.foreign_errors import translated
from host.network.rate_limit import RateLimiter
from host.network.streams import Traffic, Wire
from host.options import BulkAt
from protocol.errors import (
    MalformedMessage,
    PeerUnreachable,
    RemoteError,
    ShoalError,
    TransientError,
)
from protocol.ids import Digest, NodeKey, short

PROTOCOL: Final = f"shoal.channel.{frames.CHANNEL_VERSION}"
"""A host without it refuses the stream, and stays on streams."""

CONNECTIONS_PER_PEER_MAX: Final = 8
CONNECTIONS_MAX: Final = 256
"""Half a megabyte each of memory that a hostile peer can hold."""

HANDSHAKES_MAX: Final = 64
HANDSHAKES_PER_ADDRESS_MAX: Final = 8
"""Connections that have not proven a key yet."""

HANDSHAKE_S: Final = 5.0
DIAL_S: Final = 3.0
"""A port that is filtered does not answer at all; streams carry everything meanwhile."""

ADDRESSES_MAX: Final = 3
CHECK_EVERY_S: Final = 1.0
PEERS_COUNTED_MAX: Final = 4096

log = logging.getLogger("shoal.channel")

Find = Callable[[NodeKey, Digest], Found | Lacking]


class Channels:
    """All direct channels of one host. Every method but `close` returns at once or is bounded."""

    def __init__(
        self,
        identity: Identity,
        at: BulkAt,
        *,
        rate_limiter: RateLimiter,
        counters: Callable[[NodeKey], tuple[Traffic, ...]],
        dial: Callable[[NodeKey, str], Awaitable[Wire]],
        where: Callable[[NodeKey], Awaitable[tuple[str, ...]]],
        find: Find,
        on_fault: Callable[[RemoteError], None],
    ) -> None:
        """dial: a stream of the engine. where: addresses of the engine's connections with a peer.
        find: blobs that a peer may have."""
        self.find = find
        self.traffic: dict[NodeKey, Traffic] = {}
        """Bytes over direct connections, by peer; the oldest gives way."""
        self._identity = identity
        self._at = at
        self._all_counters = counters
        self._dial_stream = dial
        self._where = where
        self._on_fault = on_fault
        self._choice = channel_policy.ChannelPolicy(is_on=at.is_on)
        self._shares = Shares(rate_limiter)
        self._loop: BulkLoop | None = None
        self._tls: Contexts | None = None
        self._listeners: list[socket.socket] = []
        self._connections: dict[NodeKey, list[Connection]] = {}
        self._greeted: dict[Connection, asyncio.Future[None]] = {}
        self._places: dict[NodeKey, tuple[str, int]] = {}
        """Where those that we dialled were reached, while they are connected."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: Counter[str] = Counter()

    # Life

    port_outside: int = 0
    """Where others reach it, if a router forwards another port; 0: it does not."""

    @property
    def port(self) -> int:
        """Where direct connections are taken; 0: nowhere."""
        return self._listeners[0].getsockname()[1] if self._listeners else 0

    async def open(self, host: str) -> None:
        """Begins to listen, at a host as `--listen` has it. Raises UserError when the wanted port
        is not free."""
        if not self._at.is_on or self._listeners:
            return
        self._listeners = handshake.listening(host, self._at.port)
        self._loop = BulkLoop.of_this_loop()
        self._tls = await asyncio.to_thread(Contexts, self._identity)
        for listener in self._listeners:
            self._spawn(self._accept_all(listener), "bulk listener")
        self._spawn(self._check_all(), "bulk connections")

    async def close(self) -> None:
        """Ends everything."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for connection in self._all():
            connection.abort(PeerUnreachable("this host is shutting down"))
        if tasks:
            await asyncio.wait(tasks, timeout=HANDSHAKE_S)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        loop, self._loop = self._loop, None
        if loop is not None:
            await loop.give_back()

    # What the owner asks

    def wanted(self, peer: NodeKey, count: int, rtt_s: float | None) -> None:
        """So much is about to be fetched: the channel to the peer may be worth having."""
        if self._tls is not None:
            self._tell(channel_policy.Wanted(peer, count, rtt_s))

    def to(self, peer: NodeKey) -> list[Connection]:
        """The connections that can carry something now."""
        return [one for one in self._connections.get(peer, ()) if one.is_open]

    def carried(self, peer: NodeKey) -> None:
        """A whole transfer came over the channel."""
        self._tell(channel_policy.Carried(peer))

    def stalled(self, peer: NodeKey, silent_s: float) -> None:
        """A transfer got nothing for so long: connections that bring nothing at all are ended."""
        now_s = time.monotonic()
        for connection in list(self._connections.get(peer, ())):
            connection.check(now_s, silent_s)

    def reason(self, peer: NodeKey) -> str:
        """Why the peer is not on a direct channel; empty if it is, or was never asked."""
        return self._choice.reason(peer)

    @property
    def known(self) -> list[NodeKey]:
        """Peers with which there are direct connections, or with which that was tried."""
        return list(dict.fromkeys((*self._connections, *self._choice.peers)))

    @property
    def peers(self) -> dict[NodeKey, int]:
        """How many connections there are with whom."""
        return {peer: len(open) for peer in self._connections if (open := self.to(peer))}

    # What connections ask (`connection.Host`)

    def counters(self, peer: NodeKey) -> tuple[Traffic, ...]:
        """Where the bytes of this peer are counted."""
        if peer not in self.traffic and len(self.traffic) >= PEERS_COUNTED_MAX:
            del self.traffic[next(iter(self.traffic))]
        return (*self._all_counters(peer), self.traffic.setdefault(peer, Traffic()))

    def on_ready(self, connection: Connection) -> None:
        """It counts from now on, where there is room."""
        peer = connection.peer
        mine = self._connections.setdefault(peer, [])
        if len(mine) >= CONNECTIONS_PER_PEER_MAX or not self._make_room():
            connection.abort(PeerUnreachable("no room for one more direct connection"))
            return
        mine.append(connection)
        self._tell(channel_policy.Opened(peer))
        if (greeted := self._greeted.get(connection)) is not None and not greeted.done():
            greeted.set_result(None)

    def on_closed(self, connection: Connection, error: ShoalError | None) -> None:
        """Forget it, and say why."""
        greeted = self._greeted.get(connection)
        if greeted is not None and not greeted.done():
            greeted.set_exception(error or PeerUnreachable("the connection was closed"))
        peer = connection.peer
        mine = self._connections.get(peer, [])
        was_counted = connection in mine
        if was_counted:
            mine.remove(connection)
        if not mine:
            self._connections.pop(peer, None)
            self._places.pop(peer, None)
        if was_counted:
            self._tell(channel_policy.Closed(peer, str(error or ""), is_broken=error is not None))
        if isinstance(error, RemoteError):
            log.info("direct connection of host %s ended: %s", short(peer), error)
            self._on_fault(error)
            if peer:
                self._tell(channel_policy.Offended(peer, str(error)))

    # Negotiation

    async def answer(self, wire: Wire) -> None:
        """Serves a peer's question over a stream of the engine; ends the stream."""
        theirs = await handshake.read_offer(wire)
        if self._tls is None:
            await handshake.write_offer(wire, Offer(DECLINE, 0, b""))
        else:
            handshake.check(theirs, wire.peer)
            self._tls.trust(theirs.certificate)
            await handshake.write_offer(
                wire, Offer(OFFER, self.port_outside or self.port, self._tls.certificate)
            )
            wish = await wire.read_exactly(1, timeout_s=ASK_S)
            if wish[0] == DIAL_BACK and theirs.port:
                is_reached = await self._reach(wire.peer, theirs.port) == ""
                await wire.write(bytes([REACHED if is_reached else FAILED]), timeout_s=ASK_S)
        await wire.wait_ended(timeout_s=ASK_S)
        wire.close()

    async def _negotiate(self, peer: NodeKey) -> None:
        reason, is_away = "the negotiation failed", True
        try:
            async with asyncio.timeout(ASK_S + 3 * (DIAL_S + HANDSHAKE_S)):
                wire = await self._dial_stream(peer, PROTOCOL)
                is_away = False
                reason = await self._ask(peer, wire)
        except TimeoutError:
            reason = "no answer in time"
        except RemoteError as error:
            self._on_fault(error)
            self._tell(channel_policy.Offended(peer, str(error)))
            reason = str(error)
        except TransientError as error:
            reason = str(error)
        finally:
            if reason:
                log.debug("no direct channel to host %s: %s", short(peer), reason)
                self._tell(channel_policy.Declined(peer, reason, is_away=is_away))

    async def _ask(self, peer: NodeKey, wire: Wire) -> str:
        """Asks for a channel and opens the first connection; why there is none, or nothing."""
        assert self._tls is not None, "asked only where direct connections are wanted"
        try:
            await handshake.write_offer(
                wire, Offer(OFFER, self.port_outside or self.port, self._tls.certificate)
            )
            theirs = await handshake.read_offer(wire)
            if theirs.status != OFFER:
                return "the other host has direct channels turned off"
            handshake.check(theirs, peer)
            self._tls.trust(theirs.certificate)
            failure = await self._reach(peer, theirs.port) if theirs.port else "it has no port"
            await wire.write(bytes([DIAL_BACK if failure else DONE]), timeout_s=ASK_S)
            if not failure:
                self._tell(channel_policy.Agreed(peer, is_dialler=True))
                return ""
            verdict = await wire.read_exactly(1, timeout_s=ASK_S + DIAL_S + HANDSHAKE_S)
            if verdict[0] != REACHED:
                return f"{failure}, nor can it reach this one"
            self._tell(channel_policy.Agreed(peer, is_dialler=False))
            return ""
        finally:
            wire.abort("the negotiation is over")

    async def _reach(self, peer: NodeKey, port: int) -> str:
        """Opens one connection; why that failed, or nothing."""
        hosts = handshake.hosts_of(await self._where(peer))
        failure = "it is reachable only through a relay"
        for host in hosts[:ADDRESSES_MAX]:
            try:
                await self._connect(peer, host, port)
            except ShoalError as error:
                failure = f"port {port} cannot be reached ({error})"
                continue
            self._places[peer] = (host, port)
            return ""
        return failure

    async def _connect(self, peer: NodeKey, host: str, port: int) -> None:
        """One more connection to the peer. Raises TransientError or RemoteError."""
        loop = asyncio.get_running_loop()
        connection = self._new_connection(peer)
        greeted = self._greeted[connection]
        assert self._tls is not None, "dialled only where direct connections are wanted"
        try:
            with translated(f"dialling host {short(peer)} directly", (ssl.SSLError,)):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as plain:
                    plain.setblocking(False)
                    async with asyncio.timeout(DIAL_S):
                        await loop.sock_connect(plain, (host, port))
                    tune(plain)
                    async with asyncio.timeout(HANDSHAKE_S):
                        await self._shake(plain, connection, self._tls.client)
                        # The other side has seen our key only when it has greeted.
                        await greeted
        except BaseException:
            connection.abort(PeerUnreachable("the connection was given up"))
            raise
        finally:
            self._forget_greeting(connection)

    def _new_connection(self, peer: NodeKey | None) -> Connection:
        """One to be made, with a place for its greeting."""
        assert self._loop is not None, "made only where direct connections are wanted"
        connection = Connection(self, self._loop, self._shares, self._expecting(peer))
        self._greeted[connection] = asyncio.get_running_loop().create_future()
        return connection

    def _forget_greeting(self, connection: Connection) -> None:
        greeted = self._greeted.pop(connection)
        if greeted.done() and not greeted.cancelled():
            greeted.exception()  # Seen: not to be logged.

    async def _shake(
        self, plain: socket.socket, connection: Connection, context: ssl.SSLContext
    ) -> None:
        """Shakes hands on a connected socket, which is the bulk loop's from then on."""
        assert self._loop is not None, "made only where direct connections are wanted"
        link, is_server = connection.link, context.protocol is ssl.PROTOCOL_TLS_SERVER
        await self._loop.do(open_pipe(plain, context, link, link.lock, is_server=is_server))

    def _expecting(self, peer: NodeKey | None) -> Callable[[asyncio.BaseTransport], NodeKey]:
        def proven(transport: asyncio.BaseTransport) -> NodeKey:
            found = tls_context.key_of_connection(transport.get_extra_info("ssl_object"))
            if found == self._identity.key or (peer is not None and found != peer):
                raise MalformedMessage(f"the other end has proven to be host {short(found)}")
            return found

        return proven

    async def _grow(self, peer: NodeKey, count: int) -> None:
        try:
            place = self._places.get(peer)
            for _ in range(count if place is not None else 0):
                assert place is not None
                await self._connect(peer, *place)
        except ShoalError as error:
            log.debug("no further connection to host %s: %s", short(peer), error)
        finally:
            self._tell(channel_policy.Grown(peer))

    # Listening

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                plain, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("a direct connection could not be taken: %s", error.strerror)
                await asyncio.sleep(CHECK_EVERY_S)
                continue
            host = str(address[0])
            is_crowded = self._handshakes.total() >= HANDSHAKES_MAX
            if is_crowded or self._handshakes[host] >= HANDSHAKES_PER_ADDRESS_MAX:
                plain.close()
                continue
            self._handshakes[host] += 1
            self._spawn(self._take(plain, host), "bulk handshake")

    async def _take(self, plain: socket.socket, host: str) -> None:
        assert self._tls is not None, "listening only with keys"
        connection = self._new_connection(None)
        try:
            with translated("taking a direct connection", (ssl.SSLError,)):
                async with asyncio.timeout(HANDSHAKE_S):
                    tune(plain)
                    await self._shake(plain, connection, self._tls.server)
                    await self._greeted[connection]
        except ShoalError as error:
            log.debug("a direct connection from %s failed: %s", host, error)
            connection.abort(PeerUnreachable("the handshake did not end in time"))
        finally:
            plain.close()  # Where it is still ours.
            self._forget_greeting(connection)
            self._handshakes[host] -= 1
            if not self._handshakes[host]:
                del self._handshakes[host]

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            now_s = time.monotonic()
            for connection in self._all():
                connection.check(now_s)

    def _make_room(self) -> bool:
        standing = self._all()
        if len(standing) < CONNECTIONS_MAX:
            return True
        idle = [one for one in standing if one.is_idle]
        if not idle:
            return False
        min(idle, key=lambda one: one.used_s).close()
        return True

    # Inside

    def _all(self) -> list[Connection]:
        return [one for several in self._connections.values() for one in several]

    def _tell(self, event: channel_policy.Event) -> None:
        for effect in self._choice.handle(event, asyncio.get_running_loop().time()):
            match effect:
                case channel_policy.Negotiate(peer):
                    self._spawn(self._negotiate(peer), f"channel to {short(peer)}")
                case channel_policy.Dial(peer, count):
                    self._spawn(self._grow(peer, count), f"channel to {short(peer)}")
                case channel_policy.CloseAll(peer, reason):
                    for connection in list(self._connections.get(peer, ())):
                        connection.abort(PeerUnreachable(reason))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Root of the task: bulk data goes over streams; the host lives on.
            log.error("%s failed", task.get_name(), exc_info=error)
