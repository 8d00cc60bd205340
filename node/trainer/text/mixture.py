"""Several sources of text as one corpus, each by its weight, the same for everybody.

A mixture is an endless row of sequences. Which source each comes from is said by a table of `SLOTS`
slots that is repeated over and over and follows from the weights alone: every source has its share
of the slots, spread evenly with a jitter, so that any stretch of the row has the shares, to about a
sequence, and learners who take turns do not each get one source. The n-th sequence of a source is
the n-th of its own passes over its own text, so nothing of it comes twice before all of it came
once, however often it is repeated. A block is the next `block_sequences` of the row: leases,
cursors, probes and shards know blocks, and nothing of mixtures.

What is held out is mixed by the same table, as far as every source has something.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node.trainer.text.corpus import Corpus, open_corpus
from node.trainer.text.reader import Sequences
from node.trainer.text.token_files import CorpusFacts
from protocol.errors import UserError
from protocol.ids import Digest
from protocol.project import (
    DataSpec,
    DocumentRule,
    Genesis,
    MixedSource,
    TokenizerSpec,
    is_files,
)

SLOTS: Final = 1 << 16
"""A share is exact to one in so many."""
SHARE_MIN: Final = 0.001
"""A smaller one would be off by more than a hundredth of itself."""
SIZES_MAX: Final = 4
"""A pass reads at most as many sequences as so many times all sources have."""

MIXTURE_CONTEXT: Final = "shoal 1 mixture"
SPREAD_CONTEXT: Final = "shoal 1 order of a mixture"
PASSES_CONTEXT: Final = "shoal 1 passes of a mixture"

Mixture = tuple[MixedSource, ...]
Numbers = NDArray[np.int64]


class Described(NamedTuple):
    """What goes into a genesis when a project is signed."""

    mixture: Mixture
    """Counted."""
    blocks: int
    digest: Digest
    notes: tuple[str, ...]
    """What of the sources could not be used, in words."""


class SourceOrder:
    """Which source each sequence of a mixture comes from."""

    def __init__(self, weights: Sequence[float]) -> None:
        """UserError if a weight is too small beside the others."""
        self.slots = _shares(weights)
        """How many of `SLOTS` each source has."""
        keys = np.concatenate([_spread(at, count) for at, count in enumerate(self.slots)])
        owners = np.repeat(np.arange(len(weights)), self.slots)
        self._owner: Numbers = owners[np.lexsort((owners, keys))]
        self._places = [np.flatnonzero(self._owner == at) for at in range(len(weights))]
        self._rank: Numbers = np.empty(SLOTS, np.int64)
        for places in self._places:
            self._rank[places] = np.arange(len(places))

    def at(self, number: int) -> tuple[int, int]:
        """The source of a sequence, and how many of that source come before it."""
        turn, slot = divmod(number, SLOTS)
        source = int(self._owner[slot])
        return source, turn * self.slots[source] + int(self._rank[slot])

    def number_of(self, source: int, rank: int) -> int:
        """The sequence that is the one of this source before which so many of it come."""
        turn, at = divmod(rank, self.slots[source])
        return turn * SLOTS + int(self._places[source][at])


def _shares(weights: Sequence[float]) -> list[int]:
    """Slots of each source, which add up: what is left of rounding down goes to the largest rests.

    UserError if one would get next to nothing.
    """
    whole = sum(weights)
    for at, weight in enumerate(weights, 1):
        if weight < SHARE_MIN * whole:
            raise UserError(
                f"Source {at} of the mixture has a share of {weight / whole:.2g}, and the smallest"
                f" is {SHARE_MIN:g}. Raise its weight, or leave it out."
            )
    exact = [weight / whole * SLOTS for weight in weights]
    slots = [int(one) for one in exact]
    rests = sorted(range(len(slots)), key=lambda at: (slots[at] - exact[at], at))
    for at in rests[: SLOTS - sum(slots)]:
        slots[at] += 1
    return slots


def _spread(source: int, count: int) -> NDArray[np.uint64]:
    """Where the slots of a source lie on one common line: each at random in its part of it."""
    material = source.to_bytes(8, "little") + count.to_bytes(8, "little")
    drawn = blake3(material, derive_key_context=SPREAD_CONTEXT).digest(4 * count)
    jitter = np.frombuffer(drawn, "<u4").astype(np.uint64)
    # Below 2 ** 63, and divided in whole numbers: every machine finds the same order.
    places = (np.arange(count, dtype=np.uint64) << np.uint64(32)) | jitter
    found: NDArray[np.uint64] = (places << np.uint64(15)) // np.uint64(count)
    return found


class MixedCorpus(Corpus):
    """The sources of a project on this host as one text."""

    is_shuffled = True

    def __init__(self, spec: DataSpec, mixture: Mixture, parts: list[Corpus]) -> None:
        """parts: the corpus of each source, in blocks of one sequence."""
        self.spec, self.mixture, self.vocabulary = spec, mixture, parts[0].vocabulary
        self._parts = parts
        self._order = SourceOrder([one.weight for one in mixture])
        self.local_blocks = spec.blocks
        self.train_sequences = sum(one.train_sequences for one in parts)
        self.heldout_sequences = min(
            self._order.number_of(at, one.heldout_sequences) for at, one in enumerate(parts)
        )
        self.facts = _facts(parts, self._order.slots)

    def counted(self) -> Mixture:
        """The sources, with what this host has of each."""
        return tuple(
            msgspec.structs.replace(one, sequences=part.train_sequences, digest=part.facts.digest)
            for one, part in zip(self.mixture, self._parts, strict=True)
        )

    def source_of(self, number: int) -> int:
        """Which source a sequence of the row comes from."""
        return self._order.at(number)[0]

    def sequences(self, position: int) -> Sequences:
        """The sequences at a leased position, [block_sequences, sequence_tokens + 1] int64.

        Where this host's copy of a source is shorter, its sequences are read modulo what it has.
        """
        first = position * self.spec.block_sequences
        row = range(first, first + self.spec.block_sequences)
        places = [self._order.at(number) for number in row]
        return np.concatenate([self._parts[source].sequences(rank) for source, rank in places])

    def block(self, number: int) -> Sequences:
        """The sequences of a block of the first pass, as in `sequences`."""
        return self.sequences(number)

    def heldout_part(self, first: int, last: int) -> Sequences:
        """Held-out sequences [first, last), fewer if there are fewer, as in `sequences`."""
        row = range(first, min(last, self.heldout_sequences))
        places = [self._order.at(number) for number in row]
        return np.concatenate(
            [self._parts[source].heldout_part(rank, rank + 1) for source, rank in places]
        )


def _facts(parts: list[Corpus], slots: list[int]) -> CorpusFacts:
    facts = [one.facts for one in parts]
    hasher = blake3(derive_key_context=MIXTURE_CONTEXT)
    for one, count, part in zip(facts, slots, parts, strict=True):
        hasher.update(msgspec.msgpack.encode((one.digest, count, part.train_sequences)))
    return CorpusFacts(
        train_tokens=sum(one.train_tokens for one in facts),
        heldout_tokens=sum(one.heldout_tokens for one in facts),
        train_documents=sum(one.train_documents for one in facts),
        heldout_documents=sum(one.heldout_documents for one in facts),
        token_bytes=max(one.token_bytes for one in facts),
        digest=hasher.digest(),
        notes=tuple(words for one in facts for words in one.notes),
    )


def open_mixture(
    spec: DataSpec,
    mixture: Mixture,
    *,
    seed: int,
    cache: Path,
    tokenizer: TokenizerSpec | None = None,
    documents: DocumentRule = None,
) -> MixedCorpus:
    """The mixture, of sources that are tokenised first if this host has not done so yet.

    As `open_corpus`. UserError, which names the source, if one cannot be read or is too short.
    """
    parts = []
    for at, one in enumerate(mixture):
        try:
            parts.append(
                open_corpus(
                    _part(spec, one),
                    seed=_seed(seed, at),
                    cache=cache,
                    tokenizer=tokenizer,
                    documents=documents,
                )
            )
        except UserError as error:
            what = f"{one.source} {one.location}".rstrip()
            raise UserError(f"Source {at + 1} of the mixture ({what}): {error}") from error
    return MixedCorpus(spec, mixture, parts)


def describe_mixture(
    spec: DataSpec,
    mixture: Mixture,
    *,
    cache: Path,
    tokenizer: TokenizerSpec | None = None,
    documents: DocumentRule = None,
) -> Described:
    """The sources as this host sees them, and blocks and digest of the whole.

    What of that `spec` and `mixture` say already is ignored: this is where it comes from. A pass
    reads every source at least once, unless that would be over `SIZES_MAX` times all of them.
    UserError as for `open_mixture`.
    """
    opened = open_mixture(
        spec, mixture, seed=0, cache=cache, tokenizer=tokenizer, documents=documents
    )
    counted = opened.counted()
    order = SourceOrder([one.weight for one in mixture])
    longest = max(order.number_of(at, one.sequences - 1) + 1 for at, one in enumerate(counted))
    sequences = min(longest, SIZES_MAX * opened.train_sequences)
    if sequences < spec.block_sequences:
        raise UserError(
            f"The mixture has {sequences} sequences to train on, and one block has"
            f" {spec.block_sequences}. Add text, or lower sequence_tokens or block_sequences."
        )
    blocks = -(-sequences // spec.block_sequences)
    return Described(counted, blocks, opened.facts.digest, opened.facts.notes)


def located(mixture: Mixture, folder: str) -> Mixture:
    """The same sources, where files lie in one folder under their own names."""
    return tuple(
        msgspec.structs.replace(one, location=str(Path(folder).expanduser() / copy_name(one)))
        if is_files(one.source, one.location)
        else one
        for one in mixture
    )


def copy_name(source: MixedSource) -> str:
    """What a learner's copy is called. UserError if the owner's path says nothing of use."""
    name = Path(source.location).name
    if name in ("", ".", ".."):
        raise UserError(
            f"A source of this project lies at {source.location!r}, which has no name that a copy"
            " could have. Ask the project's owner to correct it."
        )
    return name


def _part(spec: DataSpec, one: MixedSource) -> DataSpec:
    """A source by itself, in blocks of one sequence."""
    return msgspec.structs.replace(
        spec,
        source=one.source,
        location=one.location,
        text_field=one.text_field,
        block_sequences=1,
        blocks=one.sequences,
        digest=one.digest,
    )


def _seed(seed: int, source: int) -> int:
    """What orders the passes over a source."""
    material = seed.to_bytes(8, "little") + source.to_bytes(8, "little")
    drawn = blake3(material, derive_key_context=PASSES_CONTEXT).digest(8)
    return int.from_bytes(drawn, "little")


def open_sources(genesis: Genesis, *, cache: Path) -> Corpus:
    """The text of a project as this machine has its sources: one, or a mixture.

    As `open_corpus`.
    """
    data, seed = genesis.data, genesis.seed
    tokenizer, documents = genesis.tokenizer, genesis.documents
    if genesis.mixture is None:
        return open_corpus(data, seed=seed, cache=cache, tokenizer=tokenizer, documents=documents)
    return open_mixture(
        data, genesis.mixture, seed=seed, cache=cache, tokenizer=tokenizer, documents=documents
    )
