"""Whom the network engine has connections with.

Asked every few seconds, and in a large swarm the answer names everybody: two hundred and fifty
peers took hivemind 40 ms to read, again and again the same. So each is read once, and as bytes
after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from host.files import keystore
from host.network.hivemind_parts import (
    Multiaddr,
    p2pd_pb2,
    raise_if_failed,
    read_message,
    write_message,
)
from protocol.errors import ShoalError
from protocol.ids import NodeKey


@dataclass(frozen=True, slots=True)
class ConnectedPeer:
    """A host that the engine has a connection with, and the addresses it is reached at."""

    key: NodeKey
    addresses: tuple[str, ...]


class Named(Protocol):
    """A peer in the engine's answer: its libp2p id, and addresses in libp2p's own bytes."""

    @property
    def id(self) -> bytes: ...

    @property
    def addrs(self) -> Iterable[bytes]: ...


class Neighbours:
    """Those of the last answer. Remembers no more than what that answer said."""

    def __init__(self) -> None:
        self._read: dict[tuple[bytes, tuple[bytes, ...]], ConnectedPeer | None] = {}

    async def ask(self, connector: Any) -> list[ConnectedPeer]:
        """As the engine says now. connector: hivemind's way to the engine; raises what it does."""
        reader, writer = await connector.open_connection()
        try:
            await write_message(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
            answer = p2pd_pb2.Response()
            await read_message(reader, answer)
        finally:
            writer.close()
        raise_if_failed(answer)
        return self.read(answer.peers)

    def read(self, named: Iterable[Named]) -> list[ConnectedPeer]:
        """Those named, without programs that are no hosts of ours."""
        known, self._read = self._read, {}
        for one in named:
            said = (one.id, tuple(one.addrs))
            self._read[said] = known[said] if said in known else _peer(*said)
        return [peer for peer in self._read.values() if peer is not None]


def _peer(peer_id: bytes, places: tuple[bytes, ...]) -> ConnectedPeer | None:
    try:
        key = keystore.key_of_peer_id(peer_id)
    except ShoalError:
        return None  # A foreign libp2p program; Shoal hosts have Ed25519 ids.
    name = keystore.peer_id(key)
    return ConnectedPeer(key, tuple(f"{Multiaddr(place)}/p2p/{name}" for place in places))
