"""hivemind's DHT protocol within bounds: how many entries a message may bring, and how fast.

Verifying a signature takes 0.1 ms, so a message of thousands would hold up everything that this
host does. Entries beyond the bounds are refused and nothing is lost by it: their owners
announce them again within seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from host.files import keystore
from host.network import dht_records, dht_storage, hivemind_parts
from host.network.dht_storage import BROUGHT, PASSED_ON, BoundedDictionary, BoundedStorage, Entry
from host.network.hivemind_parts import DHTID, DHTNode, dht_pb2
from protocol import limits
from protocol.ids import NodeKey

FIND_KEYS_MAX: Final = 1
"""Topics in one question; the engine asks for one at a time, and the answer carries it whole."""

NEAREST_MAX: Final = 64
"""Neighbours in one answer; honest hosts name 20."""

SLICE: Final = 16
"""Signatures verified in one turn of the event loop."""

PEER_BURST, PEER_PER_S = 512, 4.0
"""Entries of one host that are verified: a whole topic once, and then what a host announces."""

PASSED_ON_BURST, PASSED_ON_PER_S = 1024, 32.0
"""Of all hosts together, entries that somebody else owns."""

BROUGHT_BURST, BROUGHT_PER_S = 512, 128.0
"""Of all hosts together, entries of their own: 256 learners announce theirs every few seconds."""

PEERS_MAX: Final = 1024
"""Hosts whose allowance is remembered; the one that was heard longest ago gives way."""


@dataclass(slots=True)
class Allowance:
    """How many entries may be verified: a burst, filled up again over time."""

    burst: float
    per_s: float
    left: float
    seen_s: float

    def take(self, now_s: float) -> bool:
        """Whether one more may be."""
        passed_s = max(0.0, now_s - self.seen_s)
        self.left = min(self.burst, self.left + passed_s * self.per_s)
        self.seen_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Allowances:
    """Those of all hosts together and of each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        now_s = clock()
        self._of_all = {
            PASSED_ON: Allowance(PASSED_ON_BURST, PASSED_ON_PER_S, PASSED_ON_BURST, now_s),
            BROUGHT: Allowance(BROUGHT_BURST, BROUGHT_PER_S, BROUGHT_BURST, now_s),
        }
        self._by_peer: OrderedDict[bytes, Allowance] = OrderedDict()

    def take(self, peer: bytes, rank: int) -> bool:
        """Whether one more entry of this host may be verified. peer: its binary PeerID."""
        now_s = self._clock()
        own = self._by_peer.get(peer)
        if own is None:
            own = self._by_peer[peer] = Allowance(PEER_BURST, PEER_PER_S, PEER_BURST, now_s)
            if len(self._by_peer) > PEERS_MAX:
                self._by_peer.popitem(last=False)
        self._by_peer.move_to_end(peer)
        return own.take(now_s) and self._of_all[rank].take(now_s)


class DHTProtocol(hivemind_parts.DHTProtocol):  # type: ignore[misc]  # the engine ships no types
    """The name is a part of what hosts call each other by, so it is hivemind's."""

    storage: Any
    cache: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.allowances = Allowances()
        self._tasks: set[asyncio.Future[Any]] = set()

    @classmethod
    async def create(cls, *args: Any, **options: Any) -> DHTProtocol:
        """As hivemind's, with bounded storage."""
        protocol: DHTProtocol = await super().create(*args, **options)
        protocol._bound_storage()
        return protocol

    async def add_p2p_handlers(self, *args: Any, **options: Any) -> None:
        """As hivemind's; others may store here from now on."""
        self._bound_storage()
        await super().add_p2p_handlers(*args, **options)

    def _bound_storage(self) -> None:
        if not isinstance(self.storage, BoundedStorage):
            self.storage, self.cache = BoundedStorage(), BoundedStorage(self.cache.maxsize)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: Any) -> dht_pb2.StoreResponse:
        """Which of the values were taken. ValueError for a message that no host would send."""
        lists = (request.subkeys, request.values, request.expiration_time, request.in_cache)
        count = len(request.keys)
        if any(len(one) != count for one in lists):
            raise ValueError("the lists of a store differ in length")
        if count > limits.TABLE_STORES_MAX:
            raise ValueError(
                f"{count} values in one message, {limits.TABLE_STORES_MAX} are allowed"
            )
        self._spawn(self.rpc_ping(dht_pb2.PingRequest(peer=request.peer), context))
        response = dht_pb2.StoreResponse(peer=self.node_info)
        peer = context.remote_id.to_bytes()
        for key, subkey, value, expiry_s, in_cache in zip(request.keys, *lists, strict=True):
            storage = self.cache if in_cache else self.storage
            entries = self._entries(subkey, value, expiry_s)
            response.store_ok.append(await self._take(peer, storage, key, entries))
        return response

    def _entries(self, subkey: bytes, value: bytes, expiry_s: float) -> list[Entry]:
        """What a value brings: a whole topic, or one entry of it. ValueError if malformed."""
        if subkey == self.IS_DICTIONARY:
            return dht_storage.decode_entries(value)
        owner = dht_records.owner_of(subkey)
        return [] if owner is None else [(owner, value, expiry_s)]

    async def _take(
        self, peer: bytes, storage: BoundedStorage, key: bytes, entries: list[Entry]
    ) -> bool:
        """Whether all of them were taken; those within the bounds are."""
        topic, is_whole, verified = DHTID.from_bytes(key), bool(entries), 0
        for owner, value, expiry_s in entries:
            rank = BROUGHT if peer == keystore.peer_id_bytes(owner) else PASSED_ON
            is_taken = False
            if _is_news(storage, topic, owner, expiry_s):
                if not self.allowances.take(peer, rank):
                    return False
                verified = await self._breathe(verified)
                is_taken = self._is_valid(key, owner, value, expiry_s)
                is_taken = is_taken and storage.store_subkey(topic, owner, value, expiry_s, rank)
            is_whole = is_whole and is_taken
        return is_whole

    def _is_valid(self, key: bytes, owner: NodeKey, value: bytes, expiry_s: float) -> bool:
        subkey = dht_records.subkey_of(owner)
        return bool(self._validate_record(key, subkey, value, expiry_s))

    async def _breathe(self, verified: int) -> int:
        """One more signature is verified; others get their turn between slices."""
        if verified and verified % SLICE == 0:
            await asyncio.sleep(0)
        return verified + 1

    async def rpc_find(self, request: dht_pb2.FindRequest, context: Any) -> dht_pb2.FindResponse:
        """As hivemind's, for one topic. ValueError for more, which no answer could hold."""
        if len(request.keys) > FIND_KEYS_MAX:
            raise ValueError(f"{len(request.keys)} topics in one question, one is allowed")
        return await super().rpc_find(request, context)

    def get_stub(self, peer: Any) -> Any:
        """What calls the other host, with its answers cut to bounds before hivemind reads them."""
        return BoundedStub(super().get_stub(peer), self)

    async def within_bounds(self, key: bytes, value: bytes) -> bytes:
        """A topic as another host gave it, without what is not valid or too much. ValueError."""
        kept, verified = BoundedDictionary(), 0
        entries = dht_storage.decode_entries(value)[: limits.TOPIC_ENTRIES_MAX]
        for owner, signed, expiry_s in entries:
            verified = await self._breathe(verified)
            if self._is_valid(key, owner, signed, expiry_s):
                kept.store(owner, signed, expiry_s)
        return bytes(self.serializer.dumps(kept))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_news(storage: BoundedStorage, topic: Any, owner: NodeKey, expiry_s: float) -> bool:
    """Whether nothing is held of this owner that lives as long."""
    found = storage.get(topic)
    held = None if found is None else found.value.get(owner)
    return held is None or held.expiration_time < expiry_s


class BoundedStub:
    """Calls one other host. What it answers is a stranger's word."""

    def __init__(self, stub: Any, protocol: DHTProtocol) -> None:
        self._stub = stub
        self._protocol = protocol
        self.rpc_ping = stub.rpc_ping
        self.rpc_store = stub.rpc_store

    async def rpc_find(self, request: dht_pb2.FindRequest, timeout: float) -> dht_pb2.FindResponse:
        """The answer within bounds. ValueError where it cannot be brought there."""
        response = await self._stub.rpc_find(request, timeout=timeout)
        for key, result in zip(request.keys, response.results, strict=True):
            del result.nearest_node_ids[NEAREST_MAX:]
            del result.nearest_peer_ids[NEAREST_MAX:]
            if result.type == dht_pb2.FOUND_DICTIONARY:
                result.value = await self._protocol.within_bounds(key, result.value)
        return response


async def create_node(**options: Any) -> DHTNode:
    """A node whose protocol keeps to the bounds."""
    hivemind_parts.dht_node.DHTProtocol = DHTProtocol
    return await DHTNode.create(**options)
