"""Published data as everybody sees them: shards by their content hashes, and which block is where.

A shard is nothing but sequences, one after the other: `sequence_tokens + 1` little-endian integers
each; or images, each as the number of its class and its pixels. So its length says how many there
are, and its bytes are checked against a hash that the owner signed before anything is made of them.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from blake3 import blake3
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import InternalError, LimitExceeded, MalformedMessage, MalformedPayload
from protocol.ids import Digest
from protocol.log.permutation import TextOrder
from protocol.project import Genesis, PublishedSpec

RUNS_KEPT = 65_536


class ShardManifest(Struct, frozen=True, array_like=True):
    """The list of shards, whose hash the genesis pins."""

    train: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=limits.SHARDS_MAX)]
    """In the order of their blocks."""
    heldout: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=limits.SHARDS_MAX)]
    heldout_sequences: Annotated[int, Meta(ge=1, le=2**40)]


class Shard(NamedTuple):
    """A blob of published data."""

    number: int
    """Those to train on come first."""
    sequences: int
    bytes: int
    digest: Digest


def order_of(genesis: Genesis) -> TextOrder:
    """Which block lies at which position."""
    shard_blocks = genesis.published.shard_blocks if genesis.published is not None else 0
    return TextOrder(genesis.data.blocks, genesis.seed, shard_blocks)


def sample_bytes(genesis: Genesis) -> int:
    """Of one sequence and the token behind it, or of one image and its class, as published."""
    spec, images = genesis.published, genesis.images
    if spec is None:
        raise InternalError("this project publishes no data")
    if images is not None:
        return spec.token_bytes + images.channels * images.height * images.width
    return spec.token_bytes * (genesis.data.sequence_tokens + 1)


class ShardTable:
    """The shards of one project."""

    def __init__(self, genesis: Genesis, manifest: bytes | memoryview) -> None:
        """Raises MalformedPayload (not what the genesis pins), MalformedMessage (not a list of
        shards, or not of this data) or LimitExceeded."""
        spec, data = genesis.published, genesis.data
        if spec is None:
            raise MalformedMessage("this project publishes no data")
        check_manifest(spec, manifest)
        said = wire.decode(bytes(manifest), ShardManifest, bytes_max=limits.MANIFEST_BYTES_MAX)
        self.order = order_of(genesis)
        self.heldout_sequences = said.heldout_sequences
        self.shard_sequences = spec.shard_blocks * data.block_sequences
        """In a shard that is full."""
        self.sequence_bytes = sample_bytes(genesis)
        if self.shard_sequences * self.sequence_bytes > limits.SHARD_BYTES_MAX:
            raise LimitExceeded(f"a shard has more than {limits.SHARD_BYTES_MAX} bytes")
        whole = data.blocks * data.block_sequences
        self.train_shards = len(said.train)
        self._at: dict[int, int] = {}
        """Shards of runs, by the first position of each: asked for again and again."""
        self.shards: list[Shard] = []
        for named, sequences in ((said.train, whole), (said.heldout, said.heldout_sequences)):
            needed = shards_for(sequences, self.shard_sequences)
            if needed != len(named):
                raise MalformedMessage(f"{len(named)} shards where {sequences} need {needed}")
            for digest in named:
                count = min(sequences, self.shard_sequences)
                sequences -= count
                self.shards.append(
                    Shard(len(self.shards), count, count * self.sequence_bytes, digest)
                )

    def at(self, position: int) -> int:
        """The number of the shard that the block at this position lies in."""
        start, _ = self.order.run(position)
        if start not in self._at:
            if len(self._at) >= RUNS_KEPT:
                self._at.clear()
            self._at[start] = self.order.block(start) // self.order.shard_blocks
        return self._at[start]

    def of_heldout(self, sequences: int) -> range:
        """Numbers of the shards that have the first so many held-out sequences."""
        wanted = min(sequences, self.heldout_sequences)
        first = self.train_shards
        return range(first, first + shards_for(wanted, self.shard_sequences))


def check_manifest(spec: PublishedSpec, content: bytes | memoryview) -> None:
    """MalformedPayload if this is not the list of shards that a genesis pins."""
    if len(content) != spec.manifest_bytes or blake3(content).digest() != spec.manifest:
        raise MalformedPayload("this is not the list of shards that the project pins")


def shards_for(sequences: int, most: int) -> int:
    """How many shards of at most `most` sequences hold so many."""
    return -(-sequences // most)
