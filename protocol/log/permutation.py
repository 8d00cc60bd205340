"""Which block of the training data comes at which position, without a table.

A leader may lease any position at any time and a successor must name the same block, so the order
is a keyed bijection computed from the position alone: a small Feistel network over the next power
of four, stepped again while it lands outside the range. Not cryptography: it spreads, and hides
nothing.

Published data lie in shards, and whoever reads a few blocks here and a few there would need all of
them. So in each pass the shards come one after the other, in an order of their own, and the blocks
of each are shuffled among themselves. Which block lies in which shard was drawn as they were made.
"""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

from protocol.errors import InternalError

ROUNDS = 6
"""Four suffice for wide halves; those of a range of a few blocks have one or two bits."""


def permuted(position: int, length: int, key: bytes) -> int:
    """The place of `position` in the order of range(length) that `key` names: a bijection.

    `key` is 32 bytes. Raises: InternalError if `position` is outside range(length).
    Cost: fewer than four passes through the network on average, whatever the length.
    """
    if not 0 <= position < length:
        raise InternalError(f"position {position} is outside range({length})")
    half_bits = ((length - 1).bit_length() + 1) // 2
    place = _network(position, half_bits, key)
    # The network permutes a range that contains ours, so the walk returns into it at the latest
    # when it has gone once round the cycle on which `position` lies.
    while place >= length:
        place = _network(place, half_bits, key)
    return place


def block_at(position: int, blocks: int, seed: int) -> int:
    """The block at `position`, counted over all passes: each pass visits every block once.

    Every pass has an order of its own, made from `seed` and the number of the pass.
    Raises: InternalError if `position` is negative or there are no blocks.
    """
    if position < 0 or blocks < 1:
        raise InternalError(f"no block at position {position} of {blocks}")
    epoch, offset = divmod(position, blocks)
    material = seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    key = blake3(material, derive_key_context="shoal 1 block order").digest()
    return permuted(offset, blocks, key)


class TextOrder(NamedTuple):
    """Which block lies at which position of one project."""

    blocks: int
    seed: int
    shard_blocks: int = 0
    """Blocks in each shard but the last, if the data are published."""

    def block(self, position: int) -> int:
        """The block there: each pass visits every one once. InternalError as `block_at`."""
        if not self.shard_blocks:
            return block_at(position, self.blocks, self.seed)
        if position < 0 or self.blocks < 1:
            raise InternalError(f"no block at position {position} of {self.blocks}")
        epoch, offset = divmod(position, self.blocks)
        turn, inside = divmod(offset, self.shard_blocks)
        full, rest = divmod(self.blocks, self.shard_blocks)
        shard, length = full, rest  # The last one, which is not full, is the last of each pass.
        if turn < full:
            shard = permuted(turn, full, self._key("shard order", epoch))
            length = self.shard_blocks
        within = permuted(inside, length, self._key("order in a shard", epoch, shard))
        return shard * self.shard_blocks + within

    def run(self, position: int) -> tuple[int, int]:
        """Positions [start, stop) around this one whose blocks lie in one shard."""
        epoch, offset = divmod(position, self.blocks)
        size = self.shard_blocks or self.blocks
        start = offset - offset % size
        first = epoch * self.blocks
        return first + start, first + min(start + size, self.blocks)

    def _key(self, what: str, *numbers: int) -> bytes:
        material = b"".join(one.to_bytes(8, "little") for one in (self.seed, *numbers))
        return blake3(material, derive_key_context=f"shoal 1 {what}").digest()


def _network(value: int, half_bits: int, key: bytes) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for turn in range(ROUNDS):
        noise = blake3(turn.to_bytes(1, "little") + right.to_bytes(8, "little"), key=key)
        word = int.from_bytes(noise.digest(length=8), "little")
        left, right = right, left ^ (word & mask)
    return (left << half_bits) | right
