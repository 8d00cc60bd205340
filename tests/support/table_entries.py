"""Hosts of the swarm's table in memory, and what they would store there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.files.keystore import Identity, peer_id_bytes
from host.network import dht_protocol, dht_records
from host.network.dht_protocol import DHTProtocol
from host.network.hivemind_parts import DHTID, DictionaryDHTValue, MSGPackSerializer, PeerID

TOPIC = "shoal/00/learners"


def identity(number: int) -> Identity:
    """One of any number of hosts."""
    secret = number.to_bytes(4, "big") * 8
    return Identity(Ed25519PrivateKey.from_private_bytes(secret), Path("unused"))


def context(of: Identity) -> SimpleNamespace:
    """What a handler learns of the host that calls it."""
    return SimpleNamespace(remote_id=PeerID(peer_id_bytes(of.key)))


def signed(of: Identity, expiry_s: float, value: bytes = b"here", topic: str = TOPIC) -> bytes:
    """A value as its owner signs it; value: packed as the table wants it."""
    packed = MSGPackSerializer.dumps(value)
    return signed_raw(of, expiry_s, packed, topic)


def signed_raw(of: Identity, expiry_s: float, packed: bytes, topic: str = TOPIC) -> bytes:
    """Any bytes, signed by their owner."""
    subkey, key = dht_records.subkey_of(of.key), DHTID.generate(topic).to_bytes()
    record = dht_records.DHTRecord(key, subkey, packed, expiry_s)
    return dht_records.SignedRecords(of, (topic,)).sign_value(record)


def whole_topic(owners: list[Identity], expiry_s: float) -> bytes:
    """Entries of so many hosts, as one host hands them to another."""
    entries = DictionaryDHTValue()
    for owner in owners:
        entries.store(owner.key, signed(owner, expiry_s), expiry_s)
    return MSGPackSerializer.dumps(entries)


async def holder(number: int = 0, topic: str = TOPIC) -> DHTProtocol:
    """The real protocol of one host, without a network."""
    protocol = await DHTProtocol.create(
        p2p=None,
        node_id=DHTID.generate(),
        bucket_size=20,
        depth_modulo=5,
        num_replicas=5,
        wait_timeout=1.0,
        client_mode=True,
        record_validator=dht_records.SignedRecords(identity(number), (topic,)),
    )
    assert isinstance(protocol, dht_protocol.DHTProtocol)
    return protocol
