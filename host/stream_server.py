"""What a host does with streams that peers open: bounds on their number, and a task for each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from host import addresses
from host.files import keystore
from host.network import streams
from host.network.engine import Engine
from host.network.slots import IsMember, Reserve, Slots
from host.network.streams import ControlStream, Traffic, Wire
from protocol import limits
from protocol.errors import RemoteError, ShoalError, TransportLost
from protocol.ids import NodeKey, short

INCOMING_PER_PEER_MAX: Final = (
    2 * limits.STREAMS_PER_PEER_MAX + streams.CONTROL_STREAMS_PER_PEER_MAX
)
"""A peer may already ask for its next blob while we have not yet seen that it closed the last one,
in every one of its slots."""

INCOMING_MAX: Final = streams.CONTROL_STREAMS_MAX + 4 * limits.STREAMS_SERVED_MAX
"""Streams of peers in any state, also those that were opened and then said nothing."""

INCOMING_FOR_MEMBERS: Final = 128
CONTROL_FOR_MEMBERS: Final = 64
CONTROL_PER_NETWORK_MAX: Final = streams.CONTROL_STREAMS_MAX // 2
"""What strangers leave to others. Members are not counted: a large site may train with hundreds."""

log = logging.getLogger("shoal.transport")

ControlHandler = Callable[[ControlStream], Awaitable[None]]
Accept = Callable[[Wire], Awaitable[None]]


class StreamServer:
    """All streams that peers have open with this host."""

    def __init__(
        self, counters: Callable[[NodeKey], tuple[Traffic, ...]], is_member: IsMember
    ) -> None:
        """counters: of one peer and of all."""
        self.faults: dict[str, int] = {}
        """Offences on streams before anybody above could see them, by reason."""
        self.tasks: asyncio.TaskGroup | None = None
        """What every stream's task belongs to; None: nothing is accepted."""
        self.handler: ControlHandler | None = None
        self._counters = counters
        self._is_member = is_member
        self._control_slots = Slots(
            streams.CONTROL_STREAMS_MAX,
            streams.CONTROL_STREAMS_PER_PEER_MAX,
            Reserve(CONTROL_FOR_MEMBERS, CONTROL_PER_NETWORK_MAX, is_member),
        )
        self._incoming_slots = Slots(
            INCOMING_MAX,
            INCOMING_PER_PEER_MAX,
            Reserve(INCOMING_FOR_MEMBERS, INCOMING_MAX, is_member),
        )
        self._incoming: dict[Wire, None] = {}
        """Those with a slot, oldest first."""

    async def accept(
        self, engine: Engine, serve: Accept, stream: Any, reader: Any, writer: Any
    ) -> None:
        """Called by hivemind for an incoming stream; hands it to a task of ours and returns."""
        try:
            key = keystore.key_of_peer_id(stream.peer_id.to_bytes())
            engine.loss.check()
        except ShoalError:
            writer.transport.abort()
            return
        wire = engine.wire(key, reader, writer, self._counters(key), str(stream.addr))
        if self.tasks is None or not self._take_in(wire):
            wire.abort("no room")  # not even a refusal for a peer that floods us
            return
        self.tasks.create_task(self._serve(serve, wire), name=f"serve {short(key)}")

    def _take_in(self, wire: Wire) -> bool:
        """Whether there is a slot for this stream, perhaps that of one which says nothing."""
        slots = self._incoming_slots
        if slots.held(wire.peer) >= INCOMING_PER_PEER_MAX:
            return False
        if not slots.try_take(wire.peer):
            self._drop_silent(wire.peer)
            if not slots.try_take(wire.peer):
                return False
        self._incoming[wire] = None
        return True

    def _drop_silent(self, newcomer: NodeKey) -> None:
        """Ends a stranger's stream that says nothing, unless the newcomer has the most of them."""
        silent = [one for one in self._incoming if one.is_silent and not self._is_member(one.peer)]
        by_peer = Counter(one.peer for one in silent)
        if by_peer[newcomer] >= max(by_peer.values(), default=1):
            return
        by_network = Counter(map(_network, silent))
        # Of the most crowded address and key; the first of equals is the oldest.
        dropped = max(
            silent, key=lambda one: (by_network[_network(one)], by_peer[one.peer]), default=None
        )
        if dropped is not None:
            dropped.abort("it said nothing, and others wait")
            self._let_go(dropped)

    def _let_go(self, wire: Wire) -> None:
        """Gives the slot of a stream back, once."""
        if wire in self._incoming:
            del self._incoming[wire]
            self._incoming_slots.release(wire.peer)

    async def _serve(self, serve: Accept, wire: Wire) -> None:
        try:
            await serve(wire)
        except ShoalError as error:
            wire.abort(str(error))
            if isinstance(error, RemoteError):
                self.note_fault(error)
            log.info("stream of host %s ended: %s", short(wire.peer), error)
        except Exception:
            # Root of the task: one stream's bug must not end the others, which share the group.
            wire.abort("this host failed over the stream")
            log.exception("serving host %s failed", short(wire.peer))
        finally:
            self._let_go(wire)

    async def control(self, wire: Wire) -> None:
        """Serves a control stream."""
        await streams.hear_hello(wire)
        has_room = self.handler is not None and self._control_slots.try_take(
            wire.peer, wire.address
        )
        try:
            await streams.answer_hello(wire, has_room=has_room)
            if not has_room:
                await wire.wait_ended(timeout_s=streams.HELLO_S)  # let the answer arrive
                wire.close()
                return
            assert self.handler is not None, "room means that there is a handler"
            stream = self.standing(wire, says_s=streams.SAYS_S)
            try:
                await self.handler(stream)
            finally:
                stream.close()
        finally:
            if has_room:
                self._control_slots.release(wire.peer)

    def note_fault(self, error: RemoteError) -> None:
        """Counts what a peer did wrong."""
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1

    def standing(self, wire: Wire, says_s: float | None = None) -> ControlStream:
        """A control stream upon an accepted wire, with a task that writes to it.

        says_s: within so many seconds the peer's first frame must come.
        """
        stream = ControlStream(wire, says_s)
        if self.tasks is None:
            raise TransportLost("this host is shutting down")
        self.tasks.create_task(_run_writer(stream), name=f"control {short(wire.peer)}")
        return stream


def _network(wire: Wire) -> str:
    return addresses.network_of(wire.address)


async def _run_writer(stream: ControlStream) -> None:
    try:
        await stream.run_writer()
    except Exception:
        # Root of the task: one stream's bug must not end the others, which share the group.
        stream.abort("this host failed over the stream")
        log.exception("writing to host %s failed", short(stream.peer))
