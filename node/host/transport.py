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
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from node.host import addresses, blobs, channel, keystore, records, streams
from node.host.addresses import PeerAddress
from node.host.blobs import BlobLookup, PaceLookup, Slots
from node.host.bulk import BLOB_PROTOCOL, Bulk
from node.host.engine import ConnectedPeer, Engine, IncomingStream, Options
from node.host.keystore import Identity
from node.host.links import RoundTrips
from node.host.options import BulkAt
from node.host.seam import Loss, TransportState
from node.host.shaping import Shaper
from node.host.streams import ControlStream, Traffic, Wire
from protocol import limits
from protocol.errors import (
    InternalError,
    RemoteError,
    ShoalError,
    TransientError,
    TransportLost,
)
from protocol.ids import Digest, NodeKey, short

CONTROL_PROTOCOL = f"shoal.control.{limits.WIRE_VERSION}"

WITHDRAW_S = 2.0
STOP_TASKS_S = 5.0
GREET_EVERY_S = 15.0

PEERS_COUNTED_MAX = 4096
"""Hosts whose traffic is counted one by one; the oldest gives way."""

SEEN_MAX = 64  # peers remembered for rebuilding the engine
INCOMING_PER_PEER_MAX = 16
INCOMING_MAX = streams.CONTROL_STREAMS_MAX + 4 * limits.STREAMS_SERVED_MAX
"""Streams of peers in any state, also those that were opened and then said nothing."""

log = logging.getLogger("shoal.transport")

ControlHandler = Callable[[ControlStream], Awaitable[None]]
OnAttempt = Callable[[str, float], None]
"""Gets why the last try failed and the seconds until the next."""

_Accept = Callable[[Wire], Awaitable[None]]


class Transport:
    """A host in the swarm. Handlers may be set at any time and survive a rebuilt engine.

    Every method that talks to the network raises TransportLost while the engine is down, and
    TransientError or RemoteError otherwise; none waits for ever.
    """

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
        nat_port_map: bool = False,
        hints: Sequence[str] = (),
        bulk: BulkAt = BulkAt(),  # noqa: B008  # Frozen.
    ) -> None:
        """`bootstrap`: one of these must answer. `hints`: hosts known from before, which may.
        `bulk`: where direct channels are taken."""
        self.key = identity.key
        self.traffic = Traffic()
        self.faults: dict[str, int] = {}
        """Offences on streams before anybody above could see them, by reason."""
        self.traffic_by_peer: dict[NodeKey, Traffic] = {}
        self.round_trips = RoundTrips()
        self.shaper = Shaper()
        self._identity = identity
        self._listen_host = listen_host
        self._port = port
        self._announce = tuple(addresses.check_listen(text) for text in announce)
        self._topics = frozenset(topics)
        self._nat_port_map = nat_port_map
        self._bootstrap = addresses.parse_others(bootstrap, self.key)
        self._hints = addresses.parse_others(hints, self.key)
        self._seen: dict[NodeKey, ConnectedPeer] = {}
        self._on_state = on_state
        self._engine: Engine | None = None
        self._booting: Engine | None = None
        self._booted = asyncio.Event()
        self._is_closed = False
        self._down_reason = "the network engine has not been started"
        self._supervisor: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._serving: dict[str, _Accept] = {
            CONTROL_PROTOCOL: self._accept_control,
        }
        self._serve_control: ControlHandler | None = None
        self._control_slots = Slots(
            streams.CONTROL_STREAMS_MAX, streams.CONTROL_STREAMS_PER_PEER_MAX
        )
        self._incoming_slots = Slots(INCOMING_MAX, INCOMING_PER_PEER_MAX)
        self.bulk = self._make_bulk(bulk)
        self._serving[BLOB_PROTOCOL] = self.bulk.accept
        if bulk.is_on:
            self._serving[channel.PROTOCOL] = self.bulk.channels.answer
        self._expiry_s: dict[str, float] = {}

    def _make_bulk(self, at: BulkAt) -> Bulk:
        return Bulk(
            self._identity,
            at,
            self.shaper,
            self.round_trips,
            self._counters,
            self._dial,
            lambda key: self._live().where(key),
            self._note_fault,
        )

    # Life

    @property
    def port(self) -> int:
        """The TCP port, known after the first start even where 0 was asked for."""
        return self._port

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
            except TransientError as error:
                if self._is_closed:
                    raise
                pause_s = addresses.backoff_s(attempt)
                on_attempt(str(error), pause_s)
            await asyncio.sleep(pause_s)
            attempt += 1

    async def close(self) -> None:
        """Leaves the swarm for good; bounded steps, seconds at worst, nothing remains running."""
        engine = self._engine
        if engine is not None:
            await self._withdraw_all()
        self._is_closed = True
        self._down_reason = "this host is shutting down"
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
        assert self._engine is None, "the transport is already started"
        if self._is_closed:
            raise TransportLost(self._down_reason)
        await self._ensure_supervisor()
        self._port = addresses.claim_port(self._listen_host, self._port)
        options = Options(
            self._identity,
            self._listen_host,
            self._port,
            self._announce,
            self._topics,
            self._nat_port_map,
        )
        peers = self._peers_to_try(attempt)
        engine = self._booting = Engine(options, Loss())
        accept: dict[str, IncomingStream] = {
            protocol: functools.partial(self._accept, engine, protocol)
            for protocol in self._serving
        }
        is_up = False
        try:
            await self.bulk.channels.open(self._listen_host)
            await engine.boot(peers, accept)
            engine.loss.check()  # closed in the last moment
            is_up = True
        except TransientError as error:
            raise addresses.explained(peers, error) from error
        finally:
            self._booting = None
            if not is_up:
                await engine.close("the start failed", is_orderly=False)
        self._engine = engine
        self._booted.set()
        self._on_state(TransportState(is_up=True))

    def _peers_to_try(self, attempt: int) -> list[PeerAddress]:
        known = [*self._bootstrap, *self._hints]
        for peer in self._seen.values():
            known += addresses.readable(peer.addresses)
        # The first host of a swarm has nobody it must find: after one try it may begin alone.
        if not self._bootstrap and attempt > 0:
            return []
        return addresses.rotated(list(dict.fromkeys(known)), attempt)

    async def _ensure_supervisor(self) -> None:
        if self._supervisor is None:
            ready = asyncio.Event()
            self._supervisor = asyncio.create_task(self._supervise(ready), name="transport")
            await ready.wait()

    async def _supervise(self, ready: asyncio.Event) -> None:
        """Owns every task of the transport; `close` cancels and awaits it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
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
            self._tasks = None

    async def _watch_and_rebuild(self) -> None:
        engine = self._engine
        assert engine is not None, "booted means that there is an engine"
        greeting = asyncio.create_task(self._keep_greeting(), name="greeting")
        try:
            reason = await engine.watch()
        finally:
            greeting.cancel()
            await asyncio.wait([greeting])
        engine.lose(reason)
        if self._is_closed:
            return  # `close` ends the engine, and us after it
        for peer in engine.connected[:SEEN_MAX]:
            self._seen[peer.key] = peer
        while len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._booted.clear()
        self._engine = None
        self._report_down(reason)
        await engine.close(reason, is_orderly=False)
        while self._engine is None:
            try:
                await self.start_with_retry(self._report_retry)
            except ShoalError as error:
                # Another program took the port meanwhile: nobody is at the keyboard to be told.
                self._report_retry(str(error), addresses.BACKOFF_S[-1])
                await asyncio.sleep(addresses.BACKOFF_S[-1])

    async def _keep_greeting(self) -> None:
        """Hosts that we were told of may go and come back; they are greeted again and again."""
        while True:
            await asyncio.sleep(GREET_EVERY_S)
            with contextlib.suppress(TransientError):  # The engine's own troubles are told anyway.
                await self.greet_bootstrap()

    def _report_down(self, reason: str) -> None:
        self._down_reason = reason
        self._on_state(TransportState(is_up=False, reason=reason))

    def _report_retry(self, reason: str, pause_s: float) -> None:
        self._report_down(f"{reason}; next try in {pause_s:.0f} s")

    def _live(self) -> Engine:
        if self._engine is None or self._is_closed:
            raise TransportLost(self._down_reason)
        return self._engine

    # What this host serves

    def serve_control(self, handler: ControlHandler) -> None:
        """From now on `handler` runs for each control stream a peer opens; its return ends it."""
        self._serve_control = handler

    def serve_blobs(self, lookup: BlobLookup, pace: PaceLookup | None = None) -> None:
        """From now on peers may fetch what `lookup` finds, as fast as `pace` allows."""
        self.bulk.serve(lookup, pace)

    async def _accept(
        self, engine: Engine, protocol: str, stream: Any, reader: Any, writer: Any
    ) -> None:
        """Called by hivemind for an incoming stream; hands it to a task of ours and returns."""
        try:
            key = keystore.key_of_peer_id(stream.peer_id.to_bytes())
            engine.loss.check()
        except ShoalError:
            writer.transport.abort()
            return
        if self._tasks is None or not self._incoming_slots.try_take(key):
            writer.transport.abort()  # not even a refusal for a peer that floods us
            return
        wire = engine.wire(key, reader, writer, self._counters(key))
        self._tasks.create_task(
            self._serve(self._serving[protocol], wire), name=f"serve {short(key)}"
        )

    async def _serve(self, serve: _Accept, wire: Wire) -> None:
        try:
            await serve(wire)
        except ShoalError as error:
            wire.abort(str(error))
            if isinstance(error, RemoteError):
                self._note_fault(error)
            log.info("stream of host %s ended: %s", short(wire.peer), error)
        except Exception:
            # Root of the task: one stream's bug must not end the others, which share the group.
            wire.abort("this host failed over the stream")
            log.exception("serving host %s failed", short(wire.peer))
        finally:
            self._incoming_slots.release(wire.peer)

    async def _accept_control(self, wire: Wire) -> None:
        has_room = self._serve_control is not None and self._control_slots.try_take(wire.peer)
        try:
            if not await streams.accept_hello(wire, has_room=has_room):
                await wire.wait_ended(timeout_s=streams.HELLO_S)  # let the answer arrive
                wire.close()
                return
            assert self._serve_control is not None, "room means that there is a handler"
            stream = self._standing(wire)
            try:
                await self._serve_control(stream)
            finally:
                stream.close()
        finally:
            if has_room:
                self._control_slots.release(wire.peer)

    def _note_fault(self, error: RemoteError) -> None:
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1

    def _standing(self, wire: Wire) -> ControlStream:
        stream = ControlStream(wire)
        if self._tasks is None:
            raise TransportLost(self._down_reason)
        self._tasks.create_task(self._run_writer(stream), name=f"control {short(wire.peer)}")
        return stream

    async def _run_writer(self, stream: ControlStream) -> None:
        try:
            await stream.run_writer()
        except Exception:
            # Root of the task: one stream's bug must not end the others, which share the group.
            stream.abort("this host failed over the stream")
            log.exception("writing to host %s failed", short(stream.peer))

    # What this host asks of others

    async def open_control(self, key: NodeKey) -> ControlStream:
        """A standing stream to the host `key`, accepted by its handler.

        Raises PeerUnreachable, TransientError (no room there), MalformedMessage (another version).
        """
        wire = await self._live().dial(key, CONTROL_PROTOCOL, self._counters(key))
        asked_s = time.monotonic()
        try:
            await streams.offer_hello(wire)
            self.round_trips.note(key, time.monotonic() - asked_s)
        except BaseException:
            wire.abort("the control stream was not accepted")
            raise
        return self._standing(wire)

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
    ) -> memoryview:
        """The blob of `digest`, checked; in `into` where given, whose first `offset` bytes stay.

        `timeout_s` is per read. `on_progress` gets the bytes held so far: with it and `into` a
        broken transfer continues at another peer. Waits while too many transfers are under way.
        Raises what `blobs.Download.run` raises; LimitExceeded for a length over the bound.
        """
        self._live()
        return await self.bulk.fetch(peer, digest, length, timeout_s, into, offset, on_progress)

    async def _dial(self, peer: NodeKey, protocol: str) -> Wire:
        return await self._live().dial(peer, protocol, self._counters(peer))

    async def greet_bootstrap(self) -> None:
        """Makes sure that we and the hosts we were told of know each other, as far as they answer.

        A host that does not answer is no error. Raises TransportLost while the engine is down.
        """
        engine = self._live()
        answers = await asyncio.gather(
            *map(engine.greet, (*self._bootstrap, *self._hints)), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, TransientError):
                raise answer

    async def announce(self, topic: str, value: bytes, ttl_s: float) -> None:
        """Stores `value`, signed, under `topic` and our key; newer values replace older ones.

        `ttl_s` at most `records.TTL_S_MAX`; announce again before it is over. An expiry never moves
        back, so a shorter ttl takes effect only after the longer one. Raises TransientError when no
        host took it.
        """
        self._check_topic(topic)
        if not 0 < ttl_s <= records.TTL_S_MAX:
            raise InternalError(f"a time to live of {ttl_s} s is not within {records.TTL_S_MAX} s")
        # The table takes a newer value only with a strictly later expiry, also after a clock jump.
        expiry_s = max(time.time() + ttl_s, self._expiry_s.get(topic, 0.0) + 0.001)
        if not await self._live().store(topic, value, expiry_s):
            raise TransientError(
                f"nobody took our value for {topic}: it is too large, or our clock jumped"
            )
        self._expiry_s[topic] = expiry_s

    async def withdraw(self, topic: str) -> None:
        """Replaces our value under `topic` by an empty one, which `lookup` leaves out."""
        await self.announce(topic, b"", 1.0)

    async def lookup(self, topic: str, at: NodeKey | None = None) -> dict[NodeKey, bytes]:
        """The newest signed value of each host under `topic`; asks holders anew, or only `at`."""
        self._check_topic(topic)
        return await self._live().find(topic, at)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._topics:
            raise InternalError(f"{topic} is not among this transport's topics")

    async def _withdraw_all(self) -> None:
        now_s = time.time()
        live = [topic for topic, expiry_s in self._expiry_s.items() if expiry_s > now_s]
        with contextlib.suppress(TransientError, TimeoutError):
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
        if self._announce:
            return [f"{text}/p2p/{keystore.peer_id(self.key)}" for text in self._announce]
        listening = self._engine.listening if self._engine is not None else []
        reachable = [text for text in listening if not addresses.is_loopback(text)]
        return reachable or list(listening)

    def peers(self) -> list[ConnectedPeer]:
        """Hosts that we have a connection with, as of the last probe (every 10 s)."""
        return list(self._engine.connected) if self._engine is not None else []

    def _counters(self, peer: NodeKey) -> tuple[Traffic, Traffic]:
        if peer not in self.traffic_by_peer and len(self.traffic_by_peer) >= PEERS_COUNTED_MAX:
            del self.traffic_by_peer[next(iter(self.traffic_by_peer))]
        return self.traffic, self.traffic_by_peer.setdefault(peer, Traffic())
