"""A tiny project that publishes its text, and its shards in memory."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from node.trainer.text.corpus import open_corpus
from node.trainer.text.published import publish
from protocol.project import PublishedSpec
from protocol.shards import ShardManifest, ShardTable
from tests.support.builders import project, rounds
from tests.support.tiny_project import tiny_genesis

SEQUENCES = 4
"""In a block."""


def published_project(folder):
    """The genesis of a project on text in `folder`, whose shards lie in its cache."""
    genesis, cache = tiny_genesis(folder), folder / "cache"
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=cache)
    spec = publish(corpus, genesis, cache=cache)
    return msgspec.structs.replace(genesis, published=spec)


def genesis_of(*, blocks, shard_blocks, heldout=SEQUENCES, change=lambda manifest: manifest):
    """A genesis with published data, and its list of shards. change: what is wrong with that."""
    full = shard_blocks * SEQUENCES
    counts = [-(-count // full) for count in (blocks * SEQUENCES, heldout)]
    named = [
        [blake3(f"{side} {at}".encode()).digest() for at in range(counts[side])] for side in (0, 1)
    ]
    manifest = ShardManifest(tuple(named[0]), tuple(named[1]), heldout)
    encoded = msgspec.msgpack.encode(change(manifest))
    genesis = project(rounds()).genesis
    data = msgspec.structs.replace(
        genesis.data, blocks=blocks, block_sequences=SEQUENCES, sequence_tokens=8
    )
    spec = PublishedSpec(blake3(encoded).digest(), len(encoded), shard_blocks, 2)
    return msgspec.structs.replace(genesis, data=data, published=spec), encoded


def table_of(**given):
    """The table of such a project's shards."""
    return ShardTable(*genesis_of(**given))
