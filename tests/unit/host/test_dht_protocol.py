"""What strangers can put into the swarm's table, and what it costs."""

from __future__ import annotations

import asyncio
import time

import pytest

from host.network import dht_protocol, dht_storage, hivemind_parts
from host.network.dht_protocol import Allowances
from host.network.dht_storage import BROUGHT, OWN, PASSED_ON, BoundedDictionary
from host.network.hivemind_parts import DHTID, DHTNode, dht_node, dht_pb2
from protocol import limits
from tests.support import table_entries
from tests.support.table_entries import TOPIC, context, holder, identity, signed, whole_topic

KEY = DHTID.generate(TOPIC)


def store_of(owners, expiry_s, values=None):
    """The message by which a host stores one entry of each owner."""
    values = values or [signed(owner, expiry_s) for owner in owners]
    return dht_pb2.StoreRequest(
        keys=[KEY.to_bytes()] * len(owners),
        subkeys=[b"\xc4\x20" + owner.key for owner in owners],
        values=values,
        expiration_time=[expiry_s] * len(owners),
        in_cache=[False] * len(owners),
    )


def whole_store(owners, expiry_s):
    """The message by which a host hands over a whole topic."""
    return dht_pb2.StoreRequest(
        keys=[KEY.to_bytes()],
        subkeys=[b""],
        values=[whole_topic(owners, expiry_s)],
        expiration_time=[expiry_s],
        in_cache=[False],
    )


def held(protocol):
    found = protocol.storage.get(KEY)
    return {} if found is None else dict(found.value.items())


def stopped(protocol):
    """The clock that meters strangers stands still."""
    protocol.allowances = Allowances(lambda: 0.0)
    return protocol


@pytest.mark.slow
def test_of_six_thousand_entries_in_one_message_few_are_verified():
    async def main():
        protocol, expiry_s = stopped(await holder()), time.time() + 60
        owners = [identity(number) for number in range(1, 6001)]
        with pytest.raises(ValueError, match="6000 values in one message"):
            await protocol.rpc_store(store_of(owners, expiry_s), context(owners[0]))
        assert protocol.record_validator.verifications == 0
        for _ in range(3):
            await protocol.rpc_store(whole_store(owners, expiry_s), context(owners[0]))
        assert protocol.record_validator.verifications == dht_protocol.PEER_BURST
        assert len(held(protocol)) <= limits.TOPIC_ENTRIES_MAX

    asyncio.run(main())


def test_others_get_their_turn_while_a_topic_is_verified():
    async def main():
        protocol, expiry_s = await holder(), time.time() + 60
        owners = [identity(number) for number in range(1, 201)]
        message = whole_store(owners, expiry_s)
        task = asyncio.ensure_future(protocol.rpc_store(message, context(owners[0])))
        seen = []
        while not task.done():
            await asyncio.sleep(0)
            seen.append(protocol.record_validator.verifications)
        steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
        assert max(steps) <= dht_protocol.SLICE
        assert seen[-1] == len(owners) == len(held(protocol))
        assert task.result().store_ok == [True]

    asyncio.run(main())


def test_hosts_are_metered_one_by_one_and_together():
    now_s = 0.0
    allowances = Allowances(lambda: now_s)
    one, two, many = b"one", b"two", [b"%d" % number for number in range(99)]
    assert sum(allowances.take(one, PASSED_ON) for _ in range(9999)) == dht_protocol.PEER_BURST
    assert sum(allowances.take(two, PASSED_ON) for _ in range(9999)) == dht_protocol.PEER_BURST
    assert not any(allowances.take(peer, PASSED_ON) for peer in many)
    assert all(allowances.take(peer, BROUGHT) for peer in many), "of their own there is room"
    now_s = 10.0
    assert sum(allowances.take(one, BROUGHT) for _ in range(9999)) == 40


def test_what_is_held_already_costs_nothing():
    async def main():
        protocol, expiry_s = await holder(), time.time() + 60
        owner, other = identity(1), identity(2)
        for _ in range(3):
            await protocol.rpc_store(store_of([owner], expiry_s), context(owner))
            await protocol.rpc_store(store_of([owner], expiry_s - 5), context(other))
        assert protocol.record_validator.verifications == 1

    asyncio.run(main())


def test_who_brings_its_own_entry_finds_room_among_passed_on_ones():
    async def main():
        protocol, expiry_s = stopped(await holder()), time.time() + 60
        crowd = [identity(number) for number in range(1, limits.TOPIC_ENTRIES_MAX + 1)]
        await protocol.rpc_store(whole_store(crowd, expiry_s), context(crowd[0]))
        late, other = identity(9001), identity(9002)
        answer = await protocol.rpc_store(store_of([late], expiry_s), context(other))
        assert answer.store_ok == [False], "passed on by somebody else, it is one of many"
        answer = await protocol.rpc_store(store_of([late], expiry_s), context(late))
        assert answer.store_ok == [True]
        assert late.key in held(protocol)
        assert len(held(protocol)) == limits.TOPIC_ENTRIES_MAX

    asyncio.run(main())


def test_a_full_topic_gives_up_what_wants_to_stay_longest_and_never_our_own():
    now_s = time.time()
    topic = BoundedDictionary()
    assert topic.store(b"own", b"", now_s + 350, OWN)
    for number in range(limits.TOPIC_ENTRIES_MAX - 1):
        assert topic.store(b"greedy %d" % number, b"", now_s + 300, BROUGHT)
    assert not topic.store(b"greedier", b"", now_s + 310, BROUGHT)
    assert topic.store(b"modest", b"", now_s + 60, BROUGHT)
    assert {b"own", b"modest"} <= set(topic.data)
    assert len(topic) == limits.TOPIC_ENTRIES_MAX


def tiny_entries(count):
    """A dictionary of nothing, again and again."""
    entries = b"\xdd" + count.to_bytes(4, "big") + b"\x93\xc4\x00\xc4\x00\x00" * count
    packed = b"\x93\x00\x00" + entries
    return b"\xc9" + len(packed).to_bytes(4, "big") + b"\x50" + packed


def test_only_a_topic_is_decoded():
    expiry_s = time.time() + 60
    raw = whole_topic([identity(1)], expiry_s)
    assert dht_storage.decode_entries(raw) == [
        (identity(1).key, signed(identity(1), expiry_s), expiry_s)
    ]
    hostile = {
        "many small objects": b"\xdd\x00\x10\x00\x00" + b"\xc0" * (1 << 20),
        "another extension": b"\xc7\x01\x51\xc0",
        "no entries": b"\xc7\x01\x50\xc0",
        "tiny entries": tiny_entries(100_000),
        "too long": raw + bytes(dht_storage.TOPIC_BYTES_MAX),
        "cut": raw[:-1],
        "nothing": b"",
    }
    for bad in hostile.values():
        with pytest.raises(ValueError, match="topic"):
            dht_storage.decode_entries(bad)


def test_a_value_that_cannot_be_unpacked_is_never_stored():
    async def main():
        protocol, owner, expiry_s = await holder(), identity(1), time.time() + 60
        for packed in (b"\xc1", b"\xa1x", b"\xc4\x05x", b"\xc5\x00", b"\x90"):
            value = table_entries.signed_raw(owner, expiry_s, packed)
            answer = await protocol.rpc_store(store_of([owner], expiry_s, [value]), context(owner))
            assert answer.store_ok == [False], packed
        assert held(protocol) == {}

    asyncio.run(main())


class Answering:
    """Another host's stub, which answers every question with one result."""

    def __init__(self, result):
        self.result = result

    async def rpc_find(self, request, timeout):
        return dht_pb2.FindResponse(results=[self.result])

    rpc_ping = rpc_store = None


def bounded(protocol, result):
    stub = dht_protocol.BoundedStub(Answering(result), protocol)
    return asyncio.wait_for(
        stub.rpc_find(dht_pb2.FindRequest(keys=[KEY.to_bytes()]), timeout=1.0), 5.0
    )


def test_an_overfull_topic_is_read_within_bounds():
    async def main():
        protocol, expiry_s = await holder(), time.time() + 60
        owners = [identity(number) for number in range(1, 2001)]
        result = dht_pb2.FindResult(
            type=dht_pb2.FOUND_DICTIONARY,
            value=whole_topic(owners, expiry_s),
            nearest_node_ids=[b"x"] * 5000,
            nearest_peer_ids=[b"x"] * 5000,
        )
        answer = (await bounded(protocol, result)).results[0]
        entries = dht_storage.decode_entries(answer.value)
        assert len(entries) == limits.TOPIC_ENTRIES_MAX
        assert protocol.record_validator.verifications == limits.TOPIC_ENTRIES_MAX
        assert len(answer.nearest_node_ids) == dht_protocol.NEAREST_MAX
        again = (await bounded(protocol, result)).results[0]
        assert len(dht_storage.decode_entries(again.value)) == limits.TOPIC_ENTRIES_MAX
        assert protocol.record_validator.verifications == limits.TOPIC_ENTRIES_MAX

    asyncio.run(main())


def test_one_bad_entry_costs_a_reader_that_entry_only():
    async def main():
        protocol, expiry_s = await holder(), time.time() + 60
        topic = dht_storage.BoundedDictionary()
        topic.store(identity(1).key, signed(identity(1), expiry_s), expiry_s)
        topic.store(identity(2).key, signed(identity(1), expiry_s), expiry_s)
        result = dht_pb2.FindResult(
            type=dht_pb2.FOUND_DICTIONARY, value=protocol.serializer.dumps(topic)
        )
        answer = (await bounded(protocol, result)).results[0]
        assert [entry[0] for entry in dht_storage.decode_entries(answer.value)] == [identity(1).key]

    asyncio.run(main())


def test_a_question_for_many_topics_is_refused():
    async def main():
        protocol = await holder()
        with pytest.raises(ValueError, match="topics in one question"):
            await protocol.rpc_find(
                dht_pb2.FindRequest(keys=[KEY.to_bytes()] * 1000), context(identity(1))
            )

    asyncio.run(main())


def test_the_protocol_answers_under_the_name_that_other_hosts_call():
    assert DHTNode.create.__func__.__globals__ is vars(dht_node)
    assert dht_protocol.DHTProtocol.__name__ == hivemind_parts.DHTProtocol.__name__
