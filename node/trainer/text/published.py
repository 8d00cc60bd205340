"""Published data: shards made of a corpus by its owner, and a corpus read from shards.

The owner's machine deals the blocks out to shards at random, so each shard is a fair sample of the
text, and reading one after the other is as good as reading here and there in all of it. Each
sequence is stored with the token behind it, as the corpus gives it, and so are answers and context
of chats: a reader needs neither the text nor what was done to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from blake3 import blake3

from host.files.shard_files import HOST, MANIFEST, ShardFiles, shard_name, shards_root
from node.trainer.data_cache import filled
from node.trainer.text.corpus import Corpus
from node.trainer.text.reader import STARTS, Sequences
from node.trainer.text.sources import CHATS
from node.trainer.text.token_files import CorpusFacts
from node.trainer.text.tokenizer import Vocabulary, load_vocabulary
from protocol import decoders, limits
from protocol.errors import CorruptState, InternalError, UserError
from protocol.ids import Digest
from protocol.log.permutation import permuted
from protocol.project import DataSpec, Genesis, PublishedSpec
from protocol.shards import Shard, ShardManifest, ShardTable, shards_for

SHARD_BYTES: Final = 512 << 10
"""About so much is in a shard: much beside the cost of asking for it, and little where a probe
reads a hundred sequences of it."""

SHARDS_MIN: Final = 64
"""A short text is cut smaller, so that each of several learners reads shards of its own."""

DEALING_CONTEXT: Final = "shoal 1 published blocks"

OFFER: Final = "offer"
"""File beside the shards: what the genesis says of them."""


def publish(corpus: Corpus, genesis: Genesis, *, cache: Path) -> PublishedSpec:
    """Writes the shards of a project's corpus into the home's cache; what its genesis says of them.

    A corpus that was published before is not written again. UserError if a block is too large for
    a shard, the text too large to be published, or the disk too small.
    """
    data, seed = corpus.spec, genesis.seed
    token_bytes: Literal[2, 4] = 2 if corpus.facts.token_bytes == 2 else 4
    shard_blocks = shard_blocks_of(data, token_bytes * (data.sequence_tokens + 1))
    count, dtype = corpus.heldout_sequences, _dtype(token_bytes)

    def write(folder: Path) -> None:
        sides = (
            _dealt(corpus, seed, shard_blocks),
            _heldout(corpus, count, shard_blocks * data.block_sequences),
        )
        contents = [(rows.astype(dtype).tobytes() for rows in shards) for shards in sides]
        write_shards(
            folder, *contents, heldout=count, shard_blocks=shard_blocks, token_bytes=token_bytes
        )

    return offered(shards_root(cache, genesis), write)


def offered(root: Path, write: Callable[[Path], None]) -> PublishedSpec:
    """What a genesis says of the shards below `root`; `write` writes them unless they are there."""
    folder = root / HOST
    filled(folder, _is_whole, write)
    return _offer(folder)


def write_shards(
    folder: Path,
    train: Iterable[bytes],
    held: Iterable[bytes],
    *,
    heldout: int,
    shard_blocks: int,
    token_bytes: Literal[2, 4],
) -> None:
    """Writes shards, to train on and held out, their list, and what a genesis says of them."""
    digests = [tuple(_kept(content, folder) for content in shards) for shards in (train, held)]
    manifest = msgspec.msgpack.encode(ShardManifest(digests[0], digests[1], heldout))
    (folder / MANIFEST).write_bytes(manifest)
    offer = PublishedSpec(blake3(manifest).digest(), len(manifest), shard_blocks, token_bytes)
    (folder / OFFER).write_bytes(msgspec.msgpack.encode(offer))


def shard_blocks_of(data: DataSpec, sample_bytes: int) -> int:
    """Blocks in a shard, of sequences or images of this size. UserError if there is no such
    number."""
    block_bytes = data.block_sequences * sample_bytes
    if block_bytes > limits.SHARD_BYTES_MAX:
        raise UserError(
            f"One block of this data has {block_bytes:,} bytes, and at most"
            f" {limits.SHARD_BYTES_MAX:,} are published in one piece. Lower block_sequences under"
            " [data]."
        )
    shard_blocks = max(1, min(SHARD_BYTES // block_bytes, data.blocks // SHARDS_MIN))
    if shards_for(data.blocks, shard_blocks) > limits.SHARDS_MAX:
        raise UserError(
            f"This data is too large to be published: it fills more than {limits.SHARDS_MAX:,}"
            " shards. Leave out `publish` under [data], and let every learner have a copy."
        )
    return shard_blocks


def dealing_key(seed: int) -> bytes:
    """What deals the blocks of a project to shards."""
    return blake3(seed.to_bytes(8, "little"), derive_key_context=DEALING_CONTEXT).digest()


def _dealt(corpus: Corpus, seed: int, shard_blocks: int) -> Iterator[Sequences]:
    """The sequences of each shard to train on."""
    blocks = corpus.spec.blocks
    key = dealing_key(seed)
    for first in range(0, blocks, shard_blocks):
        places = range(first, min(first + shard_blocks, blocks))
        numbers = places if corpus.is_shuffled else [permuted(at, blocks, key) for at in places]
        yield np.concatenate([corpus.block(number) for number in numbers])


def _heldout(corpus: Corpus, count: int, shard_sequences: int) -> Iterator[Sequences]:
    """The held-out sequences of each shard."""
    for first in range(0, count, shard_sequences):
        yield corpus.heldout_part(first, first + shard_sequences)


def _kept(content: bytes, folder: Path) -> Digest:
    digest = blake3(content).digest()
    (folder / shard_name(digest)).write_bytes(content)
    return digest


def _dtype(token_bytes: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    return np.dtype("<u2") if token_bytes == 2 else np.dtype("<i4")


def _offer(folder: Path) -> PublishedSpec:
    """CorruptState if it is not there."""
    try:
        content = (folder / OFFER).read_bytes()
        return decoders.msgpack_decoder(PublishedSpec).decode(content)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptState(f"{folder} holds no published data ({error}); delete it") from error


def _is_whole(folder: Path) -> bool:
    """Whether everything is there that the list of shards names; what it is, is checked later."""
    try:
        offer = _offer(folder)
        content = (folder / MANIFEST).read_bytes()
        manifest = decoders.msgpack_decoder(ShardManifest).decode(content)
    except (CorruptState, OSError, ValueError, msgspec.MsgspecError):
        return False  # Made anew by the caller, from the corpus.
    is_it = blake3(content).digest() == offer.manifest
    return is_it and all(
        (folder / shard_name(one)).is_file() for one in (*manifest.train, *manifest.heldout)
    )


def required_table(files: ShardFiles) -> ShardTable:
    """The list of shards. UserError if it is not here."""
    if files.table is None:
        raise UserError(
            f"The list of the project's shards is not in {files.folder}. A learner gets it from"
            " others as it joins; elsewhere, sign the project again or copy that folder here."
        )
    return files.table


def mapped(
    files: ShardFiles, one: Shard, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.memmap[tuple[int, ...], np.dtype[Any]]:
    """The content of a shard, which is looked for now. UserError if it is not here."""
    path = files.located(one)
    try:
        return np.memmap(path, dtype=dtype, mode="r", shape=shape)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The shard {path} cannot be read ({error}). A learner fetches it from others;"
            " elsewhere, sign the project again."
        ) from error


class PublishedCorpus(Corpus):
    """A corpus whose sequences lie in shards. They are looked for as they are read."""

    def __init__(self, genesis: Genesis, files: ShardFiles, vocabulary: Vocabulary) -> None:
        """UserError if the list of shards is not here."""
        table, pinned, data = required_table(files), genesis.published, genesis.data
        if pinned is None:
            raise InternalError("this project publishes no data")
        self.spec, self.vocabulary = data, vocabulary
        self.local_blocks = data.blocks
        self.heldout_sequences = table.heldout_sequences
        self.facts = CorpusFacts(
            train_tokens=data.blocks * data.block_sequences * data.sequence_tokens,
            heldout_tokens=table.heldout_sequences * data.sequence_tokens,
            train_documents=0,
            heldout_documents=0,
            token_bytes=pinned.token_bytes,
            digest=data.digest,
        )
        self._files, self._table = files, table
        self._dtype = _dtype(pinned.token_bytes)
        self._stores_marks = CHATS in genesis.kinds
        self._marks = STARTS if genesis.documents == "separate" else 0
        self._checked: set[int] = set()
        """Shards whose ids are known to be in the vocabulary."""

    def sequences(self, position: int) -> Sequences:
        """The sequences at a leased position, [block_sequences, sequence_tokens + 1] int64.

        UserError if the shard is not here, or has ids that the tokenizer does not have.
        """
        block = self._table.order.block(position)
        shard, inside = divmod(block, self._table.order.shard_blocks)
        first = inside * self.spec.block_sequences
        return self._read(shard, first, first + self.spec.block_sequences)

    def heldout(self, count: int) -> Sequences:
        """The first `count` held-out sequences, fewer if there are fewer, as in `sequences`."""
        found = [self._read(at, 0, None) for at in self._table.of_heldout(count)]
        return np.concatenate(found)[:count]

    def block(self, number: int) -> Sequences:
        """Published data are not published again."""
        raise AssertionError("the blocks of shards are read by their positions")

    def _read(self, number: int, first: int, last: int | None) -> Sequences:
        one = self._table.shards[number]
        rows = mapped(self._files, one, self._dtype, (one.sequences, self.spec.sequence_tokens + 1))
        if number not in self._checked:
            self._check(rows, number)
            self._checked.add(number)
        read: Sequences = rows[first:last].astype(np.int64)
        if not self._stores_marks:  # With chats they are: not all of those end with a token.
            read[read == self.vocabulary.eos] |= self._marks
        return read

    def _check(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]], number: int) -> None:
        """An id beyond the vocabulary would end the trainer, on a device without a word."""
        ids = np.maximum(rows, ~rows) & ~np.int32(self._marks) if self._stores_marks else rows
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary.size:
            raise UserError(
                f"Shard {number} of this project has tokens that its tokenizer does not have. Only"
                " the project's owner can put it right, by signing the project anew."
            )


def open_published(genesis: Genesis, *, cache: Path, owner: str) -> PublishedCorpus:
    """The published data of a project, as the folder of `owner` has them. UserError as above."""
    vocabulary = load_vocabulary(genesis.data.tokenizer, genesis.tokenizer, cache)
    return PublishedCorpus(genesis, ShardFiles(cache, genesis, owner), vocabulary)
