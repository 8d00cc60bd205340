"""One run of the network engine: hivemind's `P2P`, whose child process p2pd does the work, and an
in-process `DHTNode`.

Only this file and the `dht_` ones use hivemind. The child can die or hang, and then hivemind's
calls never return: so each one has a time limit here, which also ends at once when the engine is
lost. The few private names of hivemind that this needs (its child process, its client) stay in
this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from host import addresses
from host.addresses import PeerAddress
from host.files import keystore
from host.files.keystore import Identity
from host.network import dht_protocol, dht_records, hivemind_parts, stale_sockets
from host.network.foreign_errors import Loss, translated
from host.network.neighbours import ConnectedPeer, Neighbours
from host.network.streams import Traffic, Wire
from host.runtime.descriptor_limit import allow_descriptors
from protocol.errors import TransientError
from protocol.ids import NodeKey, short

BOOT_S = 60.0
"""The engine's own start limit; its default of 15 s is too short on loaded machines."""

TABLE_BOOT_S = 30.0
TABLE_S = 15.0
"""Reads and writes of the table: a few hosts that do not answer cost it 2.5 s each."""

TABLE_PEER_S = 2.5
DIAL_S = 15.0
ENGINE_CALL_S = 5.0
PROBE_EVERY_S = 10.0
"""An engine that answered nothing for so long is asked whether it lives."""
LISTENING_EVERY_S = 30.0
"""Where it listens changes with the machine's network, and the engine takes a while to say so."""
GREET_S = 5.0
STOP_TABLE_S = 3.0
STOP_ENGINE_S = 5.0

PROCESSORS = ("GOMAXPROCS", "1")
"""As many as the engine uses at once, unless the environment says otherwise. With several, its
threads wake and wait for each other for every message: on two cores that costs a quarter more
processor time per byte, and an idle engine a sixth more. Payloads have connections of their own."""

DESCRIPTORS = 16_384
"""Each stream costs one here."""

_FOREIGN: tuple[type[Exception], ...] = (
    hivemind_parts.P2PDaemonError,
    hivemind_parts.P2PHandlerError,
    hivemind_parts.ValidationError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
)
"""What hivemind raises for failures of peers and of its child; blocks that catch these hold nothing
but a call of hivemind."""

IncomingStream = Callable[[Any, Any, Any], Awaitable[None]]
"""Gets hivemind's stream description, a reader and a writer."""


@dataclass(frozen=True, slots=True)
class Options:
    """What stays the same over all runs of the engine."""

    identity: Identity
    listen_host: str
    port: int
    announce: tuple[str, ...]
    topics: frozenset[str]
    nat_port_map: bool


_private_depth = 0
_umask_before = 0


@contextlib.contextmanager
def _sessions_of_their_own() -> Iterator[None]:
    """Child processes started inside are in a session of their own.

    Ctrl-C in a terminal reaches every process of the foreground group. The engine must outlive it
    for the moment that our goodbyes take, and hivemind offers no way to ask for that.
    """
    module = asyncio.subprocess
    start = module.create_subprocess_exec
    module.create_subprocess_exec = partial(start, start_new_session=True)
    try:
        yield
    finally:
        module.create_subprocess_exec = start


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Files and sockets made inside are for this user only: who can write to the engine's sockets
    in /tmp speaks with our identity. Several hosts of one process may start at the same time."""
    global _private_depth, _umask_before
    if not _private_depth:
        _umask_before = os.umask(0o077)
    _private_depth += 1
    try:
        yield
    finally:
        _private_depth -= 1
        if not _private_depth:
            os.umask(_umask_before)


class _Awaited(dict[Any, "asyncio.Future[Any]"]):
    """hivemind's calls under way. One that was cancelled a moment ago awaits no answer any more:
    hivemind would give it the one that comes just then, fail at that, and never read again."""

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


def _peer_id(key: NodeKey) -> Any:
    return hivemind_parts.PeerID(keystore.peer_id_bytes(key))


def _place(peer: PeerAddress) -> Any:
    return hivemind_parts.Multiaddr(peer.text.rpartition("/p2p/")[0])


class Engine:
    """One run of the network engine, from `boot` until it is lost or closed."""

    def __init__(self, options: Options, loss: Loss) -> None:
        self.loss = loss
        self.listening: list[str] = []
        self.connected: list[ConnectedPeer] = []
        self._answered_s = 0.0
        """When it last said whom it is connected with."""
        self._options = options
        self._neighbours = Neighbours()
        self._p2p: Any = None
        self._node: Any = None
        self._limits: set[asyncio.Timeout] = set()
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()

    async def boot(
        self, peers: Sequence[PeerAddress], accept: Mapping[str, IncomingStream]
    ) -> None:
        """Starts the child, registers the handlers, then joins the table. On failure: `close`."""
        allow_descriptors(DESCRIPTORS)
        await asyncio.to_thread(stale_sockets.sweep)
        texts = [peer.text for peer in peers]
        with _private_files():
            async with self.limited("starting the network engine", BOOT_S + ENGINE_CALL_S):
                with _sessions_of_their_own():
                    await self._create_child(texts)
            self._p2p._client.control._pending_calls = _Awaited()
            for protocol, handler in accept.items():
                async with self.limited("registering a protocol", ENGINE_CALL_S):
                    await self._p2p.add_binary_stream_handler(protocol, handler)
            # The engine makes its socket for incoming streams in a task of its own.
            await asyncio.sleep(0)
        validator = dht_records.SignedRecords(self._options.identity, self._options.topics)
        async with self.limited("joining the swarm's table", TABLE_BOOT_S):
            self._node = await dht_protocol.create_node(
                p2p=self._p2p,
                initial_peers=texts,
                record_validator=validator,
                wait_timeout=TABLE_PEER_S,
            )
        await self.refresh()
        await self._find_listening()

    async def _create_child(self, peers: list[str]) -> None:
        engine, options = self, self._options

        class Caught(hivemind_parts.P2P):  # type: ignore[misc]  # the engine ships no types
            """Known to us from its first moment, so that a failed start leaves no child behind."""

            def __init__(self) -> None:
                super().__init__()
                engine._p2p = self

        hosts = addresses.places_of(options.listen_host)
        os.environ.setdefault(*PROCESSORS)  # What hivemind starts inherits it.
        await Caught.create(
            initial_peers=peers,
            host_maddrs=[addresses.listen_address(host, options.port) for host in hosts],
            announce_maddrs=list(options.announce) or None,
            identity_path=str(options.identity.path),
            check_if_identity_free=False,
            startup_timeout=BOOT_S,
            auto_nat=False,
            nat_port_map=options.nat_port_map,
            use_relay=False,  # It cuts carried connections after 128 KiB; see `relay`.
        )

    @asynccontextmanager
    async def limited(self, doing: str, timeout_s: float) -> AsyncIterator[None]:
        """For calls of hivemind: a time limit, ended early by loss; foreign errors translated."""
        self.loss.check()
        try:
            with translated(doing, _FOREIGN):
                async with asyncio.timeout(timeout_s) as limit:
                    self._limits.add(limit)
                    try:
                        yield
                    finally:
                        self._limits.discard(limit)
        except TransientError:
            await self.loss.settle()
            raise

    async def dial(self, key: NodeKey, protocol: str, counters: tuple[Traffic, ...]) -> Wire:
        """A new stream to a peer. Raises PeerUnreachable or TransportLost."""
        async with self.limited(f"dialling host {short(key)}", DIAL_S):
            peer = _peer_id(key)
            _, reader, writer = await self._p2p.call_binary_stream_handler(peer, protocol)
        return self.wire(key, reader, writer, counters)

    def wire(
        self,
        key: NodeKey,
        reader: Any,
        writer: Any,
        counters: tuple[Traffic, ...],
        address: str = "",
    ) -> Wire:
        """Wraps an open stream, so that it ends when the engine is lost."""
        wire = Wire(key, reader, writer, loss=self.loss, counters=counters, address=address)
        self._wires.add(wire)
        return wire

    async def store(self, topic: str, value: bytes, expiry_s: float) -> bool:
        """Whether the table took our value."""
        async with self.limited(f"announcing {topic}", TABLE_S):
            owner = self._options.identity.key
            return await dht_records.store(self._node, topic, value, owner=owner, expiry_s=expiry_s)

    async def find(self, topic: str, at: NodeKey | None = None) -> dict[NodeKey, bytes]:
        """The table's values under a topic, or those that one host holds of it."""
        async with self.limited(f"looking up {topic}", TABLE_S):
            if at is None:
                return await dht_records.find(self._node, topic)
            return await dht_records.ask(self._node, _peer_id(at), topic)

    async def greet(self, peer: PeerAddress) -> None:
        """Connects to a host at its known address, and puts it back into our part of the table.

        A host that was away long enough has been dropped from everybody's routing table; without
        this it would come back to a table of its own. Raises PeerUnreachable or TransportLost.
        """
        peer_id = _peer_id(peer.key)
        address = _place(peer)
        async with self.limited(f"greeting host {short(peer.key)}", GREET_S):
            await self._p2p._client.connect(peer_id, [address])
            if await self._node.protocol.call_ping(peer_id) is not None:
                self._node.blacklist.register_success(peer_id)

    async def where(self, key: NodeKey) -> tuple[str, ...]:
        """The far ends of our connections with a peer; empty without any."""
        if all(peer.key != key for peer in self.connected):
            await self.refresh()
        return tuple(text for peer in self.connected if peer.key == key for text in peer.addresses)

    async def connect(self, key: NodeKey, places: Sequence[PeerAddress], timeout_s: float) -> None:
        """A connection to a host at one of these places. PeerUnreachable or TransportLost."""
        known = [_place(place) for place in places]
        async with self.limited(f"connecting to host {short(key)}", timeout_s):
            await self._p2p._client.connect(_peer_id(key), known)

    async def watch(self) -> str:
        """Why the engine was lost; returns when it is."""
        control = self._p2p._client.control
        talking = {control._read_task, control._write_task}
        clock = asyncio.get_running_loop().time
        listening_s = clock()
        while True:
            ending = asyncio.ensure_future(self._p2p._child.wait())
            try:
                await asyncio.wait(
                    {ending, *talking}, timeout=PROBE_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                ending.cancel()
            if ending.done() and not ending.cancelled():
                return f"the network engine exited unexpectedly (exit code {ending.result()})"
            if any(task.done() for task in talking):
                return "the connection to the network engine broke"
            try:
                if clock() >= self._answered_s + PROBE_EVERY_S:
                    await self.refresh()
                if clock() >= listening_s + LISTENING_EVERY_S:
                    listening_s = clock()
                    await self._find_listening()
            except TransientError as error:
                return f"the network engine does not answer ({error})"

    async def refresh(self) -> None:
        """Asks the child whom it is connected with."""
        async with self.limited("asking the network engine", ENGINE_CALL_S):
            connector = self._p2p._client.control.daemon_connector
            self.connected = await self._neighbours.ask(connector)
            self._answered_s = asyncio.get_running_loop().time()

    async def _find_listening(self) -> None:
        async with self.limited("asking the network engine", ENGINE_CALL_S):
            try:
                visible = await self._p2p.get_visible_maddrs(latest=True)
            except ValueError:
                visible = []  # nothing to listen on is a state, not a failure
        self.listening = [text for text in map(str, visible) if addresses.is_tcp(text)]

    def lose(self, reason: str) -> None:
        """Ends everything in flight at once with TransportLost(reason)."""
        self.loss.declare(reason)
        now_s = asyncio.get_running_loop().time()
        for limit in list(self._limits):
            if not limit.expired():
                limit.reschedule(now_s)
        for wire in list(self._wires):
            wire.abort(reason)
        # Calls that hivemind itself has under way (its routing tasks) would wait for ever.
        control = getattr(getattr(self._p2p, "_client", None), "control", None)
        for future in list(getattr(control, "_pending_calls", {}).values()):
            if not future.done():
                future.set_exception(hivemind_parts.P2PDaemonError(reason))

    async def close(self, reason: str, *, is_orderly: bool) -> None:
        """Ends the run in bounded steps; afterwards neither the child nor its sockets exist.

        `is_orderly` is for an engine that still answers: it leaves the table first.
        """
        if is_orderly and self._node is not None:
            with contextlib.suppress(TransientError):
                async with self.limited("leaving the swarm's table", STOP_TABLE_S):
                    await self._node.shutdown()
        self.lose(reason)
        if self._p2p is None:
            return
        if not is_orderly:
            self._kill_child()  # one that hangs would not hear a polite request
        with contextlib.suppress(TransientError), translated("stopping the engine", _FOREIGN):
            async with asyncio.timeout(STOP_ENGINE_S):
                await self._p2p.shutdown()
        self._kill_child()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENGINE_CALL_S):
                if self._p2p._child is not None:
                    await self._p2p._child.wait()
        await self._collect_tasks()
        for socket_address in (self._p2p._daemon_listen_maddr, self._p2p._client_listen_maddr):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(socket_address["unix"])

    def _kill_child(self) -> None:
        child = self._p2p._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    async def _collect_tasks(self) -> None:
        """Takes the outcomes of hivemind's own tasks, which would be logged as never retrieved."""
        control = getattr(self._p2p._client, "control", None)
        mine = (self._p2p._reader_task, self._p2p._listen_task)
        theirs = (getattr(control, "_read_task", None), getattr(control, "_write_task", None))
        tasks = {task for task in (*mine, *theirs) if task is not None}
        if tasks:
            ended, _ = await asyncio.wait(tasks, timeout=ENGINE_CALL_S)
            for task in ended:
                if not task.cancelled():
                    task.exception()
