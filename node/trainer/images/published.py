"""Published images: shards made of them by their owner, and images read from shards.

Each image is the number of its class, in two little-endian bytes, and its pixels, decoded and
scaled. Blocks are dealt out to shards at random, as those of text (`node.trainer.text.published`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from host.files.shard_files import ShardFiles, shards_root
from node.trainer.images.decoding import Pixels
from node.trainer.images.image_set import ImageSet, Labels
from node.trainer.own.interface import OwnData, Samples
from node.trainer.own.samples import OwnSamples
from node.trainer.text.published import (
    dealing_key,
    mapped,
    offered,
    required_table,
    shard_blocks_of,
    write_shards,
)
from protocol.errors import InternalError, UserError
from protocol.log.permutation import permuted
from protocol.project import Genesis, ImageSpec, PublishedSpec

LABEL_BYTES: Final = 2


def publish_images(images: ImageSet, genesis: Genesis, *, cache: Path) -> PublishedSpec:
    """Writes the shards of a project's images into the home's cache; what its genesis says of them.

    Images that were published before are not written again. UserError if a block is too large for
    a shard, there are too many, or the disk is too small.
    """
    data, spec = images.spec, images.images
    shard_blocks = shard_blocks_of(data, _record(spec).itemsize)
    held = images.heldout(spec.heldout)
    size = shard_blocks * data.block_sequences

    def write(folder: Path) -> None:
        write_shards(
            folder,
            _dealt(images, genesis.seed, shard_blocks),
            (_content(images, held[at : at + size]) for at in range(0, len(held), size)),
            heldout=len(held),
            shard_blocks=shard_blocks,
            token_bytes=LABEL_BYTES,
        )

    return offered(shards_root(cache, genesis), write)


def _dealt(images: ImageSet, seed: int, shard_blocks: int) -> Iterator[bytes]:
    """The content of each shard to train on."""
    blocks, size = images.spec.blocks, images.spec.block_sequences
    key = dealing_key(seed)
    for first in range(0, blocks, shard_blocks):
        places = range(first, min(first + shard_blocks, blocks))
        starts = np.array([permuted(at, blocks, key) for at in places]) * size
        yield _content(images, (starts[:, None] + np.arange(size)).ravel())


def _content(images: ImageSet, numbers: Samples) -> bytes:
    pixels, labels = images.look(numbers)
    records = np.empty(len(numbers), _record(images.images))
    records["label"], records["pixels"] = labels, pixels
    return records.tobytes()


def _record(images: ImageSpec) -> np.dtype[np.void]:
    shape = (images.channels, images.height, images.width)
    return np.dtype([("label", "<u2"), ("pixels", "u1", shape)])


class PublishedImages(ImageSet):
    """Images that lie in shards, by number: those to train on, in the order of the shards, then
    those held out. They are looked for as they are read."""

    def __init__(self, genesis: Genesis, files: ShardFiles) -> None:
        """UserError if the list of shards is not here."""
        images, data = genesis.images, genesis.data
        table = required_table(files)
        if images is None:
            raise InternalError("this project trains on no images")
        self.images = images
        self._first_heldout = data.blocks * data.block_sequences
        known = OwnData(self._first_heldout, table.heldout_sequences, data.digest)
        OwnSamples.__init__(self, data, known, seed=genesis.seed)
        self._files, self._table, self._dtype = files, table, _record(images)
        self._checked: set[int] = set()
        """Shards whose classes are known to be the project's."""

    def sequences(self, position: int) -> Samples:
        """The numbers of the images at a leased position, [block_sequences] int64."""
        first = self._table.order.block(position) * self.spec.block_sequences
        return np.arange(first, first + self.spec.block_sequences, dtype=np.int64)

    def look(self, numbers: Samples) -> tuple[Pixels, Labels]:
        """The images with these numbers: u8 [n, channels, height, width], and their classes.

        A number below 0 is a black image of the first class. UserError if a shard is not here, or
        has classes that the project does not have.
        """
        found = np.zeros(len(numbers), self._dtype)
        is_held = numbers >= self._first_heldout
        inside = np.where(is_held, numbers - self._first_heldout, numbers)
        shards, rows = np.divmod(inside, self._table.shard_sequences)
        shards = np.where(is_held, shards + self._table.train_shards, shards)
        shards[numbers < 0] = -1
        for shard in np.unique(shards[shards >= 0]).tolist():
            at = shards == shard
            found[at] = self._read(shard)[rows[at]]
        return found["pixels"], found["label"].astype(np.int64)

    def _read(self, number: int) -> NDArray[np.void]:
        one = self._table.shards[number]
        rows = mapped(self._files, one, self._dtype, (one.sequences,))
        if number not in self._checked:
            if int(rows["label"].max()) >= len(self.images.classes):
                raise UserError(
                    f"Shard {number} of this project has a class that the project does not have."
                    " Only the project's owner can put it right, by signing the project anew."
                )
            self._checked.add(number)
        return rows


def open_published_images(genesis: Genesis, *, cache: Path, owner: str) -> PublishedImages:
    """The published images of a project, as the folder of `owner` has them. UserError as above."""
    return PublishedImages(genesis, ShardFiles(cache, genesis, owner))
