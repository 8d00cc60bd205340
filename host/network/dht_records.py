"""Signed pointers in the swarm's table: what may be stored there, and by whom.

Everything is refused but this: a known topic, whose subkey is a host's key, whose value is signed
by that key and is small, and whose expiry is near. The verdict depends on the record alone (and
slackly on the clock), because one record that a reader refuses costs it the whole
answer of that holder.
"""

from __future__ import annotations

import math
import struct
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from blake3 import blake3

from host.files.keystore import Identity
from host.network.dht_storage import OWN
from host.network.hivemind_parts import (
    DHTID,
    DHTNode,
    DHTRecord,
    DictionaryDHTValue,
    PeerID,
    RecordValidatorBase,
)
from protocol.ids import NodeKey
from protocol.signing import verify_ed25519

VALUE_BYTES_MAX = 4 << 10
"""With signature. The table's answers carry all values of a topic in one 4 MiB message."""

TTL_S_MAX = 300.0
TTL_SLACK_S = 60.0
"""Clocks differ and records age while they are checked; only a far future expiry is hostile."""

VERIFIED_MAX = 4096
"""Records known to be genuine: several hosts hand over the same ones, again and again."""

_MAGIC = b"SHOALREC"
_SIGNED_BYTES = len(_MAGIC) + 64
_DOMAIN = b"shoal 1 table record\0"
_SUBKEY_PREFIX = b"\xc4\x20"
"""MessagePack header of 32 bytes."""


class SignedRecords(RecordValidatorBase):  # type: ignore[misc]  # the engine ships no types
    """Signs our own values, and admits others' only when their owner signed them."""

    def __init__(self, identity: Identity, topics: Iterable[str]) -> None:
        self._identity = identity
        self._topics = {DHTID.generate(topic).to_bytes(): topic for topic in topics}
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self.verifications = 0
        """Signatures looked at so far."""

    def sign_value(self, record: DHTRecord) -> bytes:
        """The value with our signature behind it."""
        value: bytes = record.value
        statement = self._statement(record, value)
        if statement is None:
            return value  # not ours to sign; `validate` refuses it here and everywhere
        return value + _MAGIC + self._identity.sign(statement)

    def strip_value(self, record: DHTRecord) -> bytes:
        """The value without the signature that `validate` has accepted."""
        value: bytes = record.value
        return value[:-_SIGNED_BYTES]

    def validate(self, record: DHTRecord) -> bool:
        """Whether any honest host may hold this record."""
        if len(record.value) > VALUE_BYTES_MAX or len(record.value) <= _SIGNED_BYTES:
            return False
        if not math.isfinite(record.expiration_time):
            return False
        if record.expiration_time > time.time() + TTL_S_MAX + TTL_SLACK_S:
            return False
        value, trailer = record.value[:-_SIGNED_BYTES], record.value[-_SIGNED_BYTES:]
        statement = self._statement(record, value)
        owner = owner_of(record.subkey)
        if statement is None or owner is None or not trailer.startswith(_MAGIC):
            return False
        return _is_packed(value) and self._verify(owner, statement, trailer[len(_MAGIC) :])

    def _verify(self, owner: NodeKey, statement: bytes, signature: bytes) -> bool:
        seen = blake3(signature + statement).digest()
        if seen in self._verified:
            self._verified.move_to_end(seen)
            return True
        self.verifications += 1
        if not verify_ed25519(owner, statement, signature):
            return False
        self._verified[seen] = None
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)
        return True

    def _statement(self, record: DHTRecord, value: bytes) -> bytes | None:
        """The bytes that are signed, or None for an unknown topic or a subkey that is no key."""
        topic, owner = self._topics.get(record.key), owner_of(record.subkey)
        if topic is None or owner is None:
            return None
        name = topic.encode()
        head = struct.pack(">H", len(name)) + name + owner
        return _DOMAIN + head + struct.pack(">d", record.expiration_time) + value


def _is_packed(value: bytes) -> bool:
    """Whether it is the bytes of one host as MessagePack, as `store` writes them.

    The engine unpacks what it found, and a value that cannot be unpacked would end the search.
    """
    if value[0] == 0xC4:
        return len(value) >= 2 and len(value) == 2 + value[1]
    return value[0] == 0xC5 and len(value) == 3 + int.from_bytes(value[1:3], "big")


def subkey_of(owner: NodeKey) -> bytes:
    """What names a host in a record."""
    return _SUBKEY_PREFIX + owner


def owner_of(subkey: bytes) -> NodeKey | None:
    """The host named by a record's subkey, or None where it is not a key."""
    if len(subkey) != 34 or not subkey.startswith(_SUBKEY_PREFIX):
        return None
    return subkey[len(_SUBKEY_PREFIX) :]


async def store(
    node: DHTNode, topic: str, value: bytes, *, owner: NodeKey, expiry_s: float
) -> bool:
    """Whether a host, possibly only this one, took the value. `expiry_s` is Unix time.

    This host holds it from the first moment on, for those who `ask` it: other hosts may be slow.
    """
    is_kept = _keep(node, topic, value, owner, expiry_s)
    return bool(await node.store(topic, value, expiry_s, subkey=owner)) or is_kept


def _keep(node: DHTNode, topic: str, value: bytes, owner: NodeKey, expiry_s: float) -> bool:
    key, protocol = DHTID.generate(topic), node.protocol
    subkey, bare = protocol.serializer.dumps(owner), protocol.serializer.dumps(value)
    record = DHTRecord(key.to_bytes(), subkey, bare, expiry_s)
    signed = replace(record, value=protocol.record_validator.sign_value(record))
    if not protocol.record_validator.validate(signed):
        return False
    return bool(protocol.storage.store_subkey(key, owner, signed.value, expiry_s, OWN))


async def find(node: DHTNode, topic: str) -> dict[NodeKey, bytes]:
    """The newest value of every host that has one under `topic`; withdrawn ones are left out."""
    found = await node.get(topic, latest=True)
    entries = found.value if found is not None and isinstance(found.value, dict) else {}
    return _values((owner, entry.value) for owner, entry in entries.items())


async def ask(node: DHTNode, peer: PeerID, topic: str) -> dict[NodeKey, bytes]:
    """What one host holds under `topic`, asked directly; empty if it does not answer."""
    key, protocol = DHTID.generate(topic), node.protocol
    answer = await protocol.call_find(peer, [key])
    found = answer[key][0] if answer is not None else None
    if found is None or not isinstance(found.value, DictionaryDHTValue):
        return {}
    # The engine has validated every entry; what is missing is what a whole search does besides.
    return _values(
        (owner, protocol.serializer.loads(entry.value[:-_SIGNED_BYTES]))
        for owner, entry in found.value.items()
    )


def _values(entries: Iterable[tuple[object, object]]) -> dict[NodeKey, bytes]:
    return {
        owner: value
        for owner, value in entries
        if isinstance(owner, bytes) and isinstance(value, bytes) and value
    }
