"""What one host holds of the swarm's table: so many entries of a topic, and whose go first.

Keys are free, so whoever wants can sign any number of entries. An entry that its owner brought
itself took a connection of its own, and stays before one that somebody else passed on.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from host.network.hivemind_parts import DHTLocalStorage, DictionaryDHTValue, MSGPackSerializer
from protocol import decoders, limits
from protocol.ids import NodeKey

TOPIC_BYTES_MAX: Final = 3 << 20
"""Serialised; a longer dictionary is not even decoded."""

PASSED_ON, BROUGHT, OWN = range(3)
"""How an entry came: from a third host, from its owner, from this host itself."""

_DICTIONARY_CODE: Final = 0x50
"""hivemind's MessagePack extension type of a dictionary."""

Entry = tuple[
    Annotated[bytes, Meta(min_length=32, max_length=32)],
    Annotated[bytes, Meta(min_length=64)],
    float,
]
"""Owner, signed value, and Unix time of its expiry. None is short, so a message holds few."""


def decode_entries(raw: bytes) -> list[Entry]:
    """The entries of a serialised dictionary, in its order. ValueError for anything else.

    A hostile host can put a million objects into one message, so only this one shape is decoded.
    """
    if len(raw) > TOPIC_BYTES_MAX:
        raise ValueError(f"a topic of {len(raw)} bytes, {TOPIC_BYTES_MAX} are allowed")
    packed = _decode(raw, msgspec.msgpack.Ext)
    if packed.code != _DICTIONARY_CODE:
        raise ValueError(f"MessagePack extension {packed.code} is no topic")
    return _entries(bytes(packed.data))


def _entries(packed: bytes) -> list[Entry]:
    entries: list[Entry] = _decode(packed, tuple[float, float, list[Entry]])[2]
    return entries


def _decode(raw: bytes, kind: Any) -> Any:
    try:
        return decoders.msgpack_decoder(kind).decode(raw)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a topic: {error}") from error


class BoundedDictionary(DictionaryDHTValue):  # type: ignore[misc]  # the engine ships no types
    """The entries of one topic by owner, `TOPIC_ENTRIES_MAX` at most."""

    def __init__(self, maxsize: float | None = None) -> None:
        """maxsize: hivemind's bound, which would drop those that expire first; not heeded."""
        super().__init__()
        self._ranks: dict[NodeKey, int] = {}

    def store(
        self, key: NodeKey, value: bytes, expiration_time: float, rank: int = PASSED_ON
    ) -> bool:
        """Whether the entry was taken: it is newer than what is there, and there is room for it."""
        found = self.get(key)
        if found is not None and found.expiration_time >= expiration_time:
            return False
        if found is None and len(self.data) >= limits.TOPIC_ENTRIES_MAX:
            weakest = min(self.data, key=self._strength)
            if (rank, -expiration_time) <= self._strength(weakest):
                return False
            del self[weakest]
        if not super().store(key, value, expiration_time):
            return False
        self._ranks[key] = max(rank, self._ranks.get(key, PASSED_ON))
        if len(self._ranks) > 2 * limits.TOPIC_ENTRIES_MAX:
            self._ranks = {owner: self._ranks[owner] for owner in self.data}
        return True

    def _strength(self, owner: NodeKey) -> tuple[int, float]:
        """Whoever wants to be kept longest goes first among equals: honest entries are brief."""
        return self._ranks.get(owner, PASSED_ON), -self.data[owner].expiration_time

    @classmethod
    def unpackb(cls, raw: bytes) -> BoundedDictionary:
        """The dictionary in the data of its MessagePack extension. ValueError if malformed."""
        dictionary = cls()
        with dictionary.freeze():
            for owner, value, expiry_s in _entries(raw):
                dictionary.store(owner, value, expiry_s)
        return dictionary


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # the engine ships no types
    """Topics by id, each with a bounded number of entries."""

    def store_subkey(
        self, key: Any, subkey: NodeKey, value: bytes, expiration_time: float, rank: int = PASSED_ON
    ) -> bool:
        """Whether the entry of owner `subkey` was taken."""
        found = self.get(key)
        is_there = found is not None and isinstance(found.value, BoundedDictionary)
        topic = found.value if is_there else BoundedDictionary()
        if not topic.store(subkey, value, expiration_time, rank):
            return False
        if not is_there or expiration_time > found.expiration_time:
            self.store(key, topic, expiration_time)
        return True


MSGPackSerializer._ext_types[BoundedDictionary] = _DICTIONARY_CODE
MSGPackSerializer._ext_type_codes[_DICTIONARY_CODE] = BoundedDictionary
