"""Signed pointers in the swarm's table, between real hosts on loopback and a forging one."""

from __future__ import annotations

import time

import pytest

from host.files import keystore
from host.network import dht_records
from host.network.hivemind_parts import DHTNode, MSGPackSerializer
from protocol.errors import (
    TransientError,
)
from tests.net.hosts import TOPICS, run, swarm

pytestmark = pytest.mark.net


def test_values_in_the_table_are_found_replaced_and_withdrawn(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as hosts:
            one, two, three = hosts
            for number, host in enumerate(hosts):
                await host.transport.announce(TOPICS[1], b"first %d" % number, 60.0)
            found = await three.transport.lookup(TOPICS[1])
            assert found == {h.identity.key: b"first %d" % n for n, h in enumerate(hosts)}
            await one.transport.announce(TOPICS[1], b"second", 30.0)  # an earlier expiry would lose
            await two.transport.withdraw(TOPICS[1])
            found = await three.transport.lookup(TOPICS[1])
            assert found[one.identity.key] == b"second"
            assert two.identity.key not in found
            assert await three.transport.lookup(TOPICS[0]) == {}

    run(main())


def record(identity, *, topic=TOPICS[0], owner=None, value=b"v", ttl_s=60.0, topics=TOPICS):
    """A record as a host that signs with `identity` would send it."""
    owner = owner or identity.key
    unsigned = dht_records.DHTRecord(
        dht_records.DHTID.generate(topic).to_bytes(),
        dht_records.subkey_of(owner),
        MSGPackSerializer.dumps(value),
        time.time() + ttl_s,
    )
    signed = dht_records.SignedRecords(identity, topics).sign_value(unsigned)
    return dht_records.DHTRecord(unsigned.key, unsigned.subkey, signed, unsigned.expiration_time)


def test_forged_records_are_refused(tmp_path):
    mine, other = (keystore.load_or_create(tmp_path / name) for name in "ab")
    judge = dht_records.SignedRecords(other, TOPICS)
    honest = record(mine)
    assert judge.validate(honest)
    assert judge.strip_value(honest) == MSGPackSerializer.dumps(b"v")

    def changed(**fields):
        return dht_records.DHTRecord(**{**vars(honest), **fields})

    forged = {
        "wrong signer": record(mine, owner=other.key),
        "unknown topic": record(mine, topic="shoal/00/else", topics=("shoal/00/else",)),
        "moved topic": changed(key=dht_records.DHTID.generate(TOPICS[1]).to_bytes()),
        "oversize": record(mine, value=bytes(dht_records.VALUE_BYTES_MAX)),
        "too long": record(mine, ttl_s=dht_records.TTL_S_MAX + dht_records.TTL_SLACK_S + 5),
        "year 3000": changed(expiration_time=3.2e10),
        "endless": changed(expiration_time=float("inf")),
        "not a time": changed(expiration_time=float("nan")),
        "prolonged": changed(expiration_time=honest.expiration_time + 1),
        "no subkey": changed(subkey=b"\xc0"),
        "unsigned": changed(value=b"v"),
        "empty": changed(value=b""),
        "altered": changed(value=honest.value[:2] + b"w" + honest.value[3:]),
    }
    for name, bad in forged.items():
        assert not judge.validate(bad), name


def test_a_forging_host_reaches_nobody(tmp_path):
    """A host without the validator stores what it likes; the honest neither take nor return it."""

    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            await one.transport.announce(TOPICS[0], b"honest", 60.0)
            forger = await DHTNode.create(initial_peers=one.transport.addresses())
            try:
                for topic in (TOPICS[0], "shoal/00/else"):
                    await forger.store(topic, b"forged", time.time() + 90, one.identity.key)
                found = await two.transport.lookup(TOPICS[0])
                assert found == {one.identity.key: b"honest"}
            finally:
                await forger.shutdown()

    run(main())


def test_an_oversize_value_is_refused_at_home(tmp_path):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            with pytest.raises(TransientError, match="too large"):
                await one.transport.announce(TOPICS[0], bytes(dht_records.VALUE_BYTES_MAX), 60.0)

    run(main())


def test_a_host_says_what_it_announced_when_asked_directly(tmp_path):
    async def main():
        async with swarm(tmp_path, 3) as (one, two, three):
            key = three.identity.key
            await three.transport.announce(TOPICS[0], b"here", 60.0)
            assert (await one.transport.lookup(TOPICS[0], at=key))[key] == b"here"
            assert await one.transport.lookup(TOPICS[1], at=key) == {}
            await three.transport.announce(TOPICS[0], b"there", 60.0)
            assert (await two.transport.lookup(TOPICS[0], at=key))[key] == b"there"

    run(main())


def test_nobody_holds_a_forged_value_of_its_own(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            await one.transport.announce(TOPICS[0], b"x" * (dht_records.VALUE_BYTES_MAX // 2), 60.0)
            with pytest.raises(TransientError, match="no host accepted our value"):
                await one.transport.announce(TOPICS[0], b"x" * dht_records.VALUE_BYTES_MAX, 60.0)
            assert len(await two.transport.lookup(TOPICS[0], at=one.identity.key)) == 1

    run(main())
