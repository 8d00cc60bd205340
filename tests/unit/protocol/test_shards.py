"""Published data as a genesis pins them: the list of shards, and the order of their blocks."""

from __future__ import annotations

import msgspec
import pytest

from protocol import limits
from protocol.errors import LimitExceeded, MalformedMessage, MalformedPayload
from protocol.log.permutation import TextOrder, block_at
from protocol.project import encode, project_id
from protocol.shards import ShardTable, order_of
from tests.support.builders import project, rounds
from tests.support.published import SEQUENCES, genesis_of, table_of


@pytest.mark.parametrize(("blocks", "shard_blocks"), [(1, 1), (7, 3), (96, 8), (101, 10), (5, 8)])
def test_each_pass_visits_every_block_once_and_always_in_the_same_order(blocks, shard_blocks):
    order = TextOrder(blocks, 11, shard_blocks)
    passes = [[order.block(at + turn * blocks) for at in range(blocks)] for turn in range(3)]
    assert all(sorted(one) == list(range(blocks)) for one in passes)
    again = TextOrder(blocks, 11, shard_blocks)
    assert [again.block(at) for at in range(blocks)] == passes[0]
    if blocks > 20:
        assert len({tuple(one) for one in passes}) == 3
        assert passes[0] != [TextOrder(blocks, 12, shard_blocks).block(at) for at in range(blocks)]


def test_positions_next_to_each_other_lie_in_one_shard():
    order, blocks, size = TextOrder(101, 3, 10), 101, 10
    for position in range(2 * blocks):
        start, stop = order.run(position)
        assert start <= position < stop <= start + size
        assert len({order.block(at) // size for at in range(start, stop)}) == 1


def test_the_order_of_text_that_is_not_published_is_what_it_was():
    order = order_of(project(rounds()).genesis)
    assert [order.block(at) for at in range(50)] == [
        block_at(at, order.blocks, order.seed) for at in range(50)
    ]


def test_a_project_that_publishes_nothing_keeps_its_id():
    genesis = project(rounds()).genesis
    fields = msgspec.msgpack.decode(encode(genesis))
    assert len(fields) == 8  # As they were before anything could be left out.
    assert project_id(encode(genesis)) == project_id(msgspec.msgpack.encode(fields))


def test_the_table_says_how_long_every_shard_is():
    table = table_of(blocks=23, shard_blocks=5, heldout=30)
    assert [one.sequences for one in table.shards] == [20, 20, 20, 20, 12, 20, 10]
    assert [one.bytes for one in table.shards[4:]] == [12 * 18, 20 * 18, 10 * 18]
    assert sum(one.sequences for one in table.shards[:5]) == 23 * SEQUENCES
    assert list(table.of_heldout(20)) == [5]
    assert list(table.of_heldout(10**9)) == [5, 6]
    assert {table.at(at) for at in range(23)} == {0, 1, 2, 3, 4}


def test_one_changed_byte_of_the_list_is_refused():
    genesis, manifest = genesis_of(blocks=23, shard_blocks=5)
    changed = bytearray(manifest)
    changed[40] ^= 1
    for wrong in (bytes(changed), manifest + b"\0", manifest[:-1], b""):
        with pytest.raises(MalformedPayload):
            ShardTable(genesis, wrong)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: msgspec.structs.replace(one, train=one.train[:-1]),
        lambda one: msgspec.structs.replace(one, heldout=one.heldout * 2),
        lambda one: msgspec.structs.replace(one, heldout_sequences=2**40),
        lambda one: msgspec.structs.replace(one, train=()),
        lambda one: msgspec.structs.replace(one, train=(b"short",)),
        lambda one: [1, 2, 3],
    ],
)
def test_a_list_that_an_owner_signed_wrong_is_refused_in_no_time(change):
    genesis, manifest = genesis_of(blocks=23, shard_blocks=5, change=change)
    with pytest.raises(MalformedMessage):
        ShardTable(genesis, manifest)


def test_a_shard_is_bounded_whatever_the_owner_signed():
    genesis, manifest = genesis_of(blocks=23, shard_blocks=5)
    large = msgspec.structs.replace(genesis.data, sequence_tokens=1 << 20, block_sequences=64)
    with pytest.raises(LimitExceeded):
        ShardTable(msgspec.structs.replace(genesis, data=large), manifest)


def test_the_longest_list_fits_its_bound():
    names = tuple(bytes(32) for _ in range(limits.SHARDS_MAX))
    longest = msgspec.msgpack.encode((names, names, 2**40))
    assert len(longest) <= limits.MANIFEST_BYTES_MAX
