"""Short questions and answers of hosts about hosts: one struct each, with its length in front."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from host.network.streams import Wire
from protocol import limits, wire
from protocol.errors import LimitExceeded
from protocol.ids import NodeKey

NOTE_BYTES_MAX = 8 << 10
NOTE_S = 10.0
"""A round trip and a busy event loop."""

T = TypeVar("T", bound=Struct)

Address = Annotated[str, Meta(max_length=256)]
Addresses = Annotated[tuple[Address, ...], Meta(max_length=limits.ADDRESSES_MAX)]
Inner = Literal["control", "blob"]
"""What a carried stream is for."""


class ReachAsk(Struct, frozen=True, array_like=True):
    """Dial me back: the address that you see, at this port."""

    port: Annotated[int, Meta(ge=1, le=65_535)]
    is_wanted: bool
    """Whether a dial is wanted, or only to know whether you are a relay."""
    addresses: Addresses
    """Where we listen, empty while nobody is known to reach us there."""


class ReachTold(Struct, frozen=True, array_like=True):
    """What became of it."""

    could_dial: bool | None
    """None: not tried."""
    seen: Address
    """The address that your connection comes from."""
    relays: bool
    """Whether we carry streams for others."""
    addresses: Addresses
    """Where we listen, empty while nobody is known to reach us there."""


class RelayAsk(Struct, frozen=True, array_like=True):
    """Carry a stream to this host."""

    to: NodeKey
    inner: Inner
    addresses: Addresses
    """Where the asker can be dialled instead; empty if nowhere."""


class RelayOffer(Struct, frozen=True, array_like=True):
    """A stream of this host is offered to you."""

    of: NodeKey
    inner: Inner
    addresses: Addresses


class RelayTold(Struct, frozen=True, array_like=True):
    """Open: the stream begins. Come: I have dialled you, dial me. The others say why not."""

    status: Literal["open", "come", "busy", "absent", "off"]


async def send(stream: Wire, note: Struct) -> None:
    """Writes one. Raises what the stream raises."""
    content = wire.encode(note)
    await stream.write(len(content).to_bytes(4, "big") + content, timeout_s=NOTE_S)


async def reply(stream: Wire, note: Struct) -> None:
    """Writes the last one, and ends the stream once the other end has. Raises what it raises."""
    await send(stream, note)
    await stream.wait_ended(timeout_s=NOTE_S)
    stream.close()


async def receive(stream: Wire, kind: type[T], *, timeout_s: float = NOTE_S) -> T:
    """Reads one of a kind. Raises LimitExceeded, MalformedMessage and what the stream raises."""
    size = int.from_bytes(await stream.read_exactly(4, timeout_s=timeout_s), "big")
    if size > NOTE_BYTES_MAX:
        raise LimitExceeded(f"a note of {size} bytes; {NOTE_BYTES_MAX} is the limit")
    return wire.decode(await stream.read_exactly(size, timeout_s=timeout_s), kind)
