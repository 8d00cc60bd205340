"""A host's place in the swarm: streams to peers, bulk transfers, and the table of pointers.

Keeps one `Engine` running: when it is lost, everything in flight fails at once with TransportLost,
and a new engine is started with the same key and port. Streams do not survive that, handlers do.
What the streams mean and what is worth storing is decided above.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import psutil

from host import addresses
from host.addresses import PeerAddress
from host.bulk import channels
from host.bulk.transfers import BLOB_PROTOCOL, Bulk
from host.files import keystore
from host.files.keystore import Identity
from host.nat import reachability, relay
from host.nat.dialer import Dialer
from host.nat.knocking import Knocking
from host.nat.peer_file import PeerFile
from host.nat.probe_messages import Inner
from host.nat.reachability import Reachability
from host.nat.relay import Relay
from host.nat.relay_tls import RelayTlsStream
from host.nat.router import Router, engine_sentence
from host.network import blobs, dht_records, own_network, round_trips, slots, streams
from host.network.blobs import BlobLookup, PaceLookup, SectionsLookup
from host.network.engine import Engine, IncomingStream, Options
from host.network.foreign_errors import Loss, TransportState
from host.network.neighbours import ConnectedPeer
from host.network.rate_limit import RateLimiter
from host.network.round_trips import RoundTrips
from host.network.slots import IsMember
from host.network.streams import ControlStream, Traffic, Wire
from host.options import BulkAt
from host.runtime import lifecycle
from host.stream_server import Accept, ControlHandler, StreamServer
from protocol import errors, limits
from protocol.backoff import Backoff
from protocol.ids import Digest, NodeKey

CONTROL_PROTOCOL: Final = f"shoal.control.{limits.WIRE_VERSION}"
INNER: Final[Mapping[Inner, str]] = {"control": CONTROL_PROTOCOL, "blob": BLOB_PROTOCOL}
"""What a relay may carry."""

START_AGAIN = Backoff((1.0, 2.0, 4.0, 8.0, 16.0, 30.0), jitter=0.25)
"""Quick for a restart, polite for a long outage."""

KNOWN_THROUGH_S: Final = 1.0
"""To ask relays for a host whose address is known, and which does not answer there."""

WITHDRAW_S = 2.0
FREE_PORT_TRIES = 5
STOP_TASKS_S = 5.0

PEERS_COUNTED_MAX = 4096
"""Hosts whose traffic is counted one by one; the oldest gives way."""

log = logging.getLogger("shoal.transport")

LOOK_AROUND_FROM = 2
"""Tries after which others are looked for: a host that restarts needs one or two itself."""

LookAround = Callable[[], Awaitable[Sequence[str]]]

OnAttempt = Callable[[str, float], None]
"""Gets why the last try failed and the seconds until the next."""


class Transport:
    """A host in the swarm. Handlers may be set at any time and survive a rebuilt engine.

    Every method that talks to the network raises TransportLost while the engine is down, and
    TransientError or RemoteError otherwise; none waits for ever.
    """

    look_around: LookAround | None = None
    """Finds more addresses once none of those that are known answers; the daemon may set it."""

    def __init__(
        self,
        identity: Identity,
        *,
        port: int,
        bootstrap: Sequence[str],
        topics: Iterable[str],
        on_state: Callable[[TransportState], None],
        announce: Sequence[str] = (),
        listen_host: str = "0.0.0.0",
        map_port: bool | None = False,
        hints: Sequence[str] = (),
        known: PeerFile | None = None,
        relay_bytes_per_s: int = 0,
        bulk: BulkAt = BulkAt(),  # noqa: B008  # Frozen.
    ) -> None:
        """`bootstrap`: one of these must answer, or one that is `known` from before. `hints`: may.

        `relay_bytes_per_s`: what is carried for others at most; 0 carries nothing. `bulk`: where
        direct channels are taken. `map_port`: the router is asked to forward our ports, once nobody
        can dial us (None), or by the engine from the start (True).
        """
        self.key = identity.key
        self.traffic = Traffic()
        self.traffic_by_peer: dict[NodeKey, Traffic] = {}
        self.round_trips = RoundTrips()
        self.rate_limiter = RateLimiter()
        announced = tuple(addresses.check_listen(text) for text in announce)
        self._is_port_asked_for = port != 0
        self._options = Options(
            identity, listen_host, port, announced, frozenset(topics), map_port is True
        )
        self.dialer = Dialer(self.key, bootstrap, hints, known or PeerFile(), self.live)
        self.knocking = Knocking(self.dialer.places, self.is_connected)
        self._on_state = on_state
        self._engine: Engine | None = None
        self._booting: Engine | None = None
        self._booted = asyncio.Event()
        self._is_closed = False
        self._down_reason = "the network engine has not been started"
        self._supervisor: asyncio.Task[None] | None = None
        self.is_member: IsMember = slots.NOBODY_KNOWN
        """For whom some of what this host serves is kept free; the daemon knows."""
        self._stream_server = StreamServer(self.counters, self._is_member)
        self.faults = self._stream_server.faults
        saw = self.dialer.known.saw
        reach = Reachability(self, saw, lambda: self.relay.is_offered, self._of_router)
        self.reachability = reach
        self.relay = Relay(
            self, identity, relay_bytes_per_s, own_addresses=lambda: reach.told_addresses()
        )
        self.bulk = self._make_bulk(bulk)
        self.router = self._make_router(map_port)
        self._serving = self._served(bulk)
        self._expiry_s: dict[str, float] = {}

    def _served(self, bulk: BulkAt) -> dict[str, Accept]:
        served: dict[str, Accept] = {
            CONTROL_PROTOCOL: self._stream_server.control,
            BLOB_PROTOCOL: self.bulk.accept,
            reachability.PROTOCOL: self.reachability.answer,
            relay.PROTOCOL: self.relay.carry,
            relay.OFFER_PROTOCOL: self.relay.accept,
        }
        if bulk.is_on:
            served[channels.PROTOCOL] = self.bulk.channels.answer
        return served

    def _make_router(self, map_port: bool | None) -> Router:
        listens = f"/ip4/{self._options.listen_host}/tcp/1"
        is_local = addresses.is_loopback(listens) or ":" in self._options.listen_host
        return Router(
            is_wanted=map_port is None and not is_local,  # Else the engine asks, or nobody.
            is_hidden=lambda: self.reachability.is_hidden,
            ports=lambda: [port for port in (self.port, self.bulk.channels.port) if port],
            on_mapped=self._forwarded,
        )

    def _forwarded(self) -> None:
        """The router begins to forward, or ends it: others are asked anew to dial us."""
        channels = self.bulk.channels
        bulk = self.router.mapping(channels.port)
        channels.port_outside = bulk.outside if bulk is not None else 0
        self.reachability.machine.moved()

    def _of_router(self) -> str:
        """What came of asking the router to forward our port; empty where nobody asked."""
        engine = self._engine
        if not self._options.nat_port_map or engine is None:
            return self.router.sentence(self.port)
        own = [one.address for those in psutil.net_if_addrs().values() for one in those]
        return engine_sentence(engine.listening, own)

    def _make_bulk(self, at: BulkAt) -> Bulk:
        return Bulk(
            self._options.identity,
            at,
            self.rate_limiter,
            self.round_trips,
            self.counters,
            self._dial,
            self.where,
            self._stream_server.note_fault,
            self._is_member,
        )

    def _is_member(self, key: NodeKey) -> bool:
        return self.is_member(key)

    # Life

    @property
    def port(self) -> int:
        """The TCP port, known after the first start even where 0 was asked for."""
        return self._options.port

    async def start(self) -> None:
        """Joins the swarm, in one try.

        Raises UserError (port), PeerUnreachable (no bootstrap address answers), TransientError
        (clock, engine).
        """
        await self._boot(attempt=0)

    async def start_with_retry(self, on_attempt: OnAttempt) -> None:
        """Joins the swarm, trying for ever with growing pauses and changing peers.

        Only a UserError (a busy port) ends it early; cancel it to give up.
        """
        attempt = 0
        while True:
            try:
                return await self._boot(attempt=attempt)
            except errors.TransientError as error:
                if self._is_closed:
                    raise
                pause_s = START_AGAIN.pause_s(attempt, random.uniform)
                on_attempt(str(error), pause_s)
            attempt += 1
            await self._rest(pause_s, attempt)

    async def _rest(self, pause_s: float, attempt: int) -> None:
        """Waits before a try, and looks for more addresses meanwhile."""
        if self.look_around is None or attempt < LOOK_AROUND_FROM:
            await asyncio.sleep(pause_s)
            return
        found, _ = await asyncio.gather(self.look_around(), asyncio.sleep(pause_s))
        self.dialer.told(found)

    async def close(self) -> None:
        """Leaves the swarm for good; bounded steps, seconds at worst, nothing remains running."""
        engine = self._engine
        if engine is not None:
            await self._withdraw_all()
        await self.dialer.known.save(is_last=True)
        self._is_closed = True
        self._down_reason = "this host is shutting down"
        await self.router.close()
        await self.bulk.channels.close()
        for running in (engine, self._booting):
            if running is not None:
                await running.close(self._down_reason, is_orderly=True)
        if self._supervisor is not None:
            self._supervisor.cancel()
            _, late = await asyncio.wait({self._supervisor}, timeout=STOP_TASKS_S)
            if late:
                log.error("a handler did not end within %g s of being cancelled", STOP_TASKS_S)
            self._supervisor = None
        self._engine = None

    async def _boot(self, *, attempt: int) -> None:
        for _ in range(FREE_PORT_TRIES - 1):
            try:
                return await self._boot_once(attempt)
            except addresses.PortTaken:
                if self._is_port_asked_for:
                    raise
                # Another program got the free port between our choice and the engine's start.
                self._options = replace(self._options, port=0)
        return await self._boot_once(attempt)

    async def _boot_once(self, attempt: int) -> None:
        assert self._engine is None, "the transport is already started"
        if self._is_closed:
            raise errors.TransportLost(self._down_reason)
        await self._ensure_supervisor()
        former = self._options
        port = addresses.kept_port(
            former.listen_host, former.port, is_asked_for=self._is_port_asked_for
        )
        options = replace(former, port=port)
        self._options = options
        peers = self.dialer.to_try(attempt)
        engine = self._booting = Engine(options, Loss())
        accept: dict[str, IncomingStream] = {
            protocol: functools.partial(
                self._stream_server.accept, engine, functools.partial(self._serve, protocol)
            )
            for protocol in self._serving
        }
        is_up = False
        try:
            await self.bulk.channels.open(options.listen_host)
            await engine.boot(peers, accept)
            engine.loss.check()  # closed in the last moment
            is_up = True
        except errors.TransientError as error:
            trouble = await own_network.trouble_of_names(peer.text for peer in peers)
            raise addresses.explained(peers, error, options.port, trouble) from error
        finally:
            self._booting = None
            if not is_up:
                await engine.close("the start failed", is_orderly=False)
        self._engine = engine
        self._booted.set()
        self._on_state(TransportState(is_up=True))

    async def _ensure_supervisor(self) -> None:
        if self._supervisor is None:
            ready = asyncio.Event()
            self._supervisor = asyncio.create_task(self._supervise(ready), name="transport")
            await ready.wait()

    async def _supervise(self, ready: asyncio.Event) -> None:
        """Owns every task of the transport; `close` cancels and awaits it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._stream_server.tasks = tasks
                ready.set()
                while not self._is_closed:
                    await self._booted.wait()
                    await self._watch_and_rebuild()
        except Exception as error:
            # Root of the task. A bug here would otherwise leave a host that looks alive and hears
            # nothing, so it is logged with its trace and told as a final "down".
            log.exception("the transport's supervisor failed")
            self._down_reason = f"the transport failed: {error!r}; restart the daemon"
            if self._engine is not None:
                await self._engine.close(self._down_reason, is_orderly=False)
                self._engine = None
            self._on_state(TransportState(is_up=False, reason=self._down_reason))
        finally:
            self._stream_server.tasks = None

    async def _watch_and_rebuild(self) -> None:
        engine = self._engine
        assert engine is not None, "booted means that there is an engine"
        looking = [
            asyncio.create_task(self.dialer.run(), name="greeting"),
            asyncio.create_task(self.reachability.run(), name="reach"),
            asyncio.create_task(self.router.run(), name="router"),
        ]
        watching = [
            asyncio.create_task(engine.watch(), name="watching"),
            asyncio.create_task(self.knocking.run(), name="knocking"),
        ]
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            reason = min(done, key=watching.index).result()
        finally:
            await lifecycle.end([*looking, *watching])
        engine.lose(reason)
        if self._is_closed:
            return  # `close` ends the engine, and us after it
        self.dialer.remember(engine.connected)
        self._booted.clear()
        self._engine = None
        self._report_down(reason)
        await engine.close(reason, is_orderly=False)
        while self._engine is None:
            try:
                await self.start_with_retry(self._report_retry)
            except errors.ShoalError as error:
                # Another program took the port meanwhile: nobody is at the keyboard to be told.
                pause_s = START_AGAIN.steps_s[-1]
                self._report_retry(str(error), pause_s)
                await asyncio.sleep(pause_s)

    def _report_down(self, reason: str) -> None:
        self._down_reason = reason
        self._on_state(TransportState(is_up=False, reason=reason))

    def _report_retry(self, reason: str, pause_s: float) -> None:
        self._report_down(f"{reason}; next try in {pause_s:.0f} s")

    def live(self) -> Engine:
        if self._engine is None or self._is_closed:
            raise errors.TransportLost(self._down_reason)
        return self._engine

    # What this host serves

    def serve_control(self, handler: ControlHandler) -> None:
        """From now on `handler` runs for each control stream a peer opens; its return ends it."""
        self._stream_server.handler = handler

    def serve_blobs(
        self,
        lookup: BlobLookup,
        pace: PaceLookup | None = None,
        sections: SectionsLookup | None = None,
    ) -> None:
        """From now on peers may fetch what `lookup` finds, as fast as `pace` allows; of what it
        does not find they hear which `sections` are here."""
        self.bulk.serve(lookup, pace, sections)

    async def serve_inner(self, inner: Inner, wire: Wire) -> None:
        """Serves a stream that a relay carried, as one that came by itself."""
        await self._serve(INNER[inner], wire)

    async def _serve(self, protocol: str, wire: Wire) -> None:
        await self._serving[protocol](wire)

    # What this host asks of others

    async def open_control(self, key: NodeKey) -> ControlStream:
        """A standing stream to the host `key`, accepted by its handler.

        Raises PeerUnreachable, TransientError (no room there), MalformedMessage (another version).
        """
        wire = await self._open(key, "control")
        asked_s = time.monotonic()
        try:
            await streams.offer_hello(wire)
            self.round_trips.note(key, time.monotonic() - asked_s)
        except BaseException:
            wire.abort("the control stream was not accepted")
            raise
        return self._stream_server.standing(wire)

    async def fetch(
        self,
        peer: NodeKey,
        digest: Digest,
        length: int,
        *,
        timeout_s: float = blobs.READ_S,
        into: bytearray | memoryview | None = None,
        offset: int = 0,
        on_progress: Callable[[int], None] | None = None,
        may_be_carried: bool = True,
        is_checked: bool = True,
    ) -> memoryview:
        """The blob of `digest`, checked; in `into` where given, whose first `offset` bytes stay.

        `is_checked`: where it is not, these may be any bytes of that length, and whoever asks
        compares their hash, off the event loop. `may_be_carried`: by a relay, where there can be
        no connection. `timeout_s` is per read. `on_progress` gets the bytes held so far: with it
        and `into` a broken transfer continues at another peer. Waits while too many transfers are
        under way. Raises what `blobs.Download.run` raises; LimitExceeded for a length over the
        bound.
        """
        self.live()
        dial = None if may_be_carried else self._dial_uncarried
        return await self.bulk.fetch(
            peer,
            digest,
            length,
            timeout_s,
            into,
            offset,
            on_progress,
            dial,
            is_checked=is_checked,
        )

    async def _dial(self, key: NodeKey, protocol: str) -> Wire:
        """A stream for bulk data; only blobs go by way of a relay."""
        if protocol == BLOB_PROTOCOL:
            return await self._open(key, "blob")
        return await self.dial_plain(key, protocol)

    async def _dial_uncarried(self, key: NodeKey, protocol: str) -> Wire:
        """A stream over a connection of the two alone, which a host that cannot be dialled may
        open itself. Raises PeerUnreachable or TransportLost."""
        is_called = self.relay.is_hidden(key) and not await self.is_connected(key)
        if not is_called:
            with contextlib.suppress(errors.PeerUnreachable):
                return await self.dial_plain(key, protocol)
        return await self.relay.through(key, "blob", carries=False)

    async def _open(self, key: NodeKey, inner: Inner) -> Wire:
        """A stream to a host: over a connection, or by way of a relay where there can be none."""
        is_hidden = self.relay.is_hidden(key) and not await self.is_connected(key)
        if is_hidden:
            with contextlib.suppress(errors.TransientError):
                return await self.relay.through(key, inner)
        try:
            return await self.dial_inner(key, inner)
        except errors.PeerUnreachable as error:
            if is_hidden:  # It was just tried.
                raise
            # One that others could dial before is most probably away: that costs a moment.
            is_known = key in self.dialer.named or key in self.dialer.known.book
            try:
                async with asyncio.timeout(KNOWN_THROUGH_S if is_known else None):
                    return await self.relay.through(key, inner)
            except (errors.TransientError, TimeoutError):
                raise error from None

    async def dial_plain(self, key: NodeKey, protocol: str) -> Wire:
        """A stream over a connection of our own. Raises PeerUnreachable or TransportLost."""
        return await self.live().dial(key, protocol, self.counters(key))

    async def dial_inner(self, key: NodeKey, inner: Inner) -> Wire:
        """As `dial_plain`, for what a relay could carry as well."""
        return await self.dial_plain(key, INNER[inner])

    async def connect(
        self, key: NodeKey, places: Sequence[PeerAddress], *, timeout_s: float
    ) -> None:
        """A connection to a host at one of these. Raises PeerUnreachable or TransportLost."""
        await self.live().connect(key, places, timeout_s)

    async def where(self, key: NodeKey) -> tuple[str, ...]:
        """At which addresses the connections with a host are. Raises TransientError."""
        return await self.live().where(key)

    async def is_connected(self, key: NodeKey) -> bool:
        """Whether there is a connection with a host at this moment."""
        await self.look_at_connections()
        return key in self.connected()

    async def look_at_connections(self) -> None:
        """Brings `peers` up to date. Raises TransportLost or TransientError."""
        await self.live().refresh()

    def wire_over(self, key: NodeKey, sealed: RelayTlsStream) -> Wire:
        """A stream that was sealed with a host, upon another one."""
        return self.live().wire(key, sealed, sealed, self.counters(key))

    def likely_relays(self) -> list[NodeKey]:
        """Hosts that may carry streams: those that say so, then those that we were told of."""
        here = self.connected()
        told = self.reachability.machine.relays(here)
        named = (key for key in self.dialer.named if key in here)
        return list(dict.fromkeys((*told, *named)))

    async def greet_bootstrap(self) -> None:
        """As `Dialer.greet_named`."""
        await self.dialer.greet_named()

    async def announce(self, topic: str, value: bytes, ttl_s: float) -> None:
        """Stores `value`, signed, under `topic` and our key; newer values replace older ones.

        `ttl_s` at most `records.TTL_S_MAX`; announce again before it is over. An expiry never moves
        back, so a shorter ttl takes effect only after the longer one. Raises TransientError when no
        host took it.
        """
        self._check_topic(topic)
        if not 0 < ttl_s <= dht_records.TTL_S_MAX:
            raise errors.InternalError(
                f"a time to live of {ttl_s} s is not within {dht_records.TTL_S_MAX} s"
            )
        # The table takes a newer value only with a strictly later expiry, also after a clock jump.
        expiry_s = max(time.time() + ttl_s, self._expiry_s.get(topic, 0.0) + 0.001)
        if not await self.live().store(topic, value, expiry_s):
            raise errors.TransientError(
                f"no host accepted our value for {topic}: it is too large, or our clock jumped"
            )
        self._expiry_s[topic] = expiry_s

    async def withdraw(self, topic: str) -> None:
        """Replaces our value under `topic` by an empty one, which `lookup` leaves out."""
        await self.announce(topic, b"", 1.0)

    async def lookup(self, topic: str, at: NodeKey | None = None) -> dict[NodeKey, bytes]:
        """The newest signed value of each host under `topic`; asks holders anew, or only `at`."""
        self._check_topic(topic)
        return await self.live().find(topic, at)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._options.topics:
            raise errors.InternalError(f"{topic} is not among this transport's topics")

    async def _withdraw_all(self) -> None:
        now_s = time.time()
        live = [topic for topic, expiry_s in self._expiry_s.items() if expiry_s > now_s]
        with contextlib.suppress(errors.TransientError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                for topic in live:
                    await self.withdraw(topic)

    # What people see

    @property
    def state(self) -> TransportState:
        """Whether the host is in the swarm now."""
        is_up = self._engine is not None
        return TransportState(is_up, "" if is_up else self._down_reason)

    def addresses(self) -> list[str]:
        """Whole addresses for a join link, best first; loopback only where all else lacks."""
        if announced := self._options.announce:
            return [f"{text}/p2p/{keystore.peer_id(self.key)}" for text in announced]
        listening = self._engine.listening if self._engine is not None else []
        forwarded = self.router.mapping(self.port)
        if forwarded is not None and forwarded.ip:
            place = f"/ip4/{forwarded.ip}/tcp/{forwarded.outside}"
            listening = [f"{place}/p2p/{keystore.peer_id(self.key)}", *listening]
        reachable = [text for text in listening if not addresses.is_loopback(text)]
        return reachable or list(listening)

    def connected(self) -> set[NodeKey]:
        """Keys of `peers`."""
        return {peer.key for peer in self.peers()}

    def paths(self) -> dict[NodeKey, str]:
        """How each host that we have to do with is reached: direct or relayed."""
        return {**dict.fromkeys(self.relay.used(), "relayed"), **round_trips.paths(self.peers())}

    @property
    def port_outside(self) -> int:
        """The port that others dial: an announced one, one that a router forwards, or ours."""
        forwarded = self.router.mapping(self.port)
        if forwarded is not None:
            return forwarded.outside
        listening = self._engine.listening if self._engine is not None else ()
        for text in (*self._options.announce, *filter(addresses.is_public, listening)):
            return int(text.partition("/p2p/")[0].rpartition("/")[2])
        return self.port

    def peers(self) -> list[ConnectedPeer]:
        """Hosts that we have a connection with, as of the last look (every 5 s)."""
        return list(self._engine.connected) if self._engine is not None else []

    def counters(self, peer: NodeKey) -> tuple[Traffic, Traffic]:
        if peer not in self.traffic_by_peer and len(self.traffic_by_peer) >= PEERS_COUNTED_MAX:
            del self.traffic_by_peer[next(iter(self.traffic_by_peer))]
        return self.traffic, self.traffic_by_peer.setdefault(peer, Traffic())
