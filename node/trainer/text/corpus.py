"""Text as numbered blocks of fixed-length sequences, tokenised once per host.

A document is a training or a held-out one by the hash of its text, so hosts whose copies differ a
little still agree about every document they share. Training documents are tokenised into one flat
file with an end-of-document id after each, held-out ones into another; both are memory-mapped.
Block b is the b-th run of `block_sequences * sequence_tokens` tokens; sequences overlap by the one
token that is input to one and target to the next.

Where documents come from is in `node.trainer.text.sources`. Chats are packed
(`node.trainer.text.rows`), so their sequences do not overlap. The cache follows changes of local
files; a hub data set is read once and then kept. Nothing is evicted: deleting the cache directory
is always safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3

from host.files.pinned_files import PinnedFiles, key_of
from node.trainer.data_cache import filled
from node.trainer.text import sources
from node.trainer.text.chat_template import ChatSettings, chat_settings
from node.trainer.text.chats import LeftOut, Tally
from node.trainer.text.reader import STARTS, Sequences
from node.trainer.text.rows import RowPacker
from node.trainer.text.token_files import (
    CORPUS_CONTEXT,
    FRACTIONS,
    HELDOUT_FILE,
    TRAIN_FILE,
    CorpusFacts,
    Tokens,
    TokenWriter,
    drawn,
    is_drawn,
    is_intact,
    map_tokens,
    read_facts,
)
from node.trainer.text.tokenizer import TokenizerVocabulary, Vocabulary, load_vocabulary
from protocol.errors import UserError
from protocol.log.permutation import block_at
from protocol.project import DataSpec, DocumentRule, TokenizerSpec

CACHE_FORMAT: Final = 1
"""Raised when the meaning of cached files changes."""

BATCH_DOCUMENTS: Final = 256
"""Documents tokenised at once: enough to keep `tokenizers` busy, small in memory."""


class CorpusDescription(NamedTuple):
    """What goes into a genesis when a project is signed."""

    blocks: int
    digest: bytes
    notes: tuple[str, ...] = ()
    """What of the source could not be used, in words."""


class Corpus:
    """Training blocks and held-out sequences of one project on this host."""

    is_shuffled = False
    """Whether blocks whose numbers are neighbours come from anywhere in the text."""

    def __init__(
        self,
        spec: DataSpec,
        *,
        seed: int,
        folder: Path,
        vocabulary: Vocabulary,
        documents: DocumentRule = None,
    ) -> None:
        """Opens a filled cache folder; use `open_corpus`. UserError if the text is too short,
        CorruptState if the files are not what their facts say."""
        self.spec = spec
        self.vocabulary = vocabulary
        self.facts = read_facts(folder)
        self._seed = seed
        self._train = map_tokens(folder / TRAIN_FILE, self.facts.train_tokens, self.facts)
        self._heldout = map_tokens(folder / HELDOUT_FILE, self.facts.heldout_tokens, self.facts)
        is_packed = spec.source == sources.CHATS
        self._stride = spec.sequence_tokens + is_packed
        """From one sequence to the next."""
        self._marks_ends = documents == "separate" and not is_packed
        """The token that ends a text is read as the beginning of the next one."""
        self._shared = 0 if is_packed else 1
        """Tokens that a sequence shares with the next."""
        self._block_tokens = spec.block_sequences * self._stride
        self.local_blocks = (self.facts.train_tokens - self._shared) // self._block_tokens
        """Blocks that this host's copy of the text holds."""
        self.train_sequences = max(0, self.facts.train_tokens - self._shared) // self._stride
        self.heldout_sequences = max(0, self.facts.heldout_tokens - self._shared) // self._stride
        if self.local_blocks < 1:
            raise UserError(self._too_short(spec))
        if self.facts.heldout_tokens <= (0 if is_packed else spec.sequence_tokens):
            what = "chats have" if is_packed else "text has"
            needs = "" if is_packed else f", one sequence needs {spec.sequence_tokens + 1}"
            raise UserError(
                f"The held-out {what} {self.facts.heldout_tokens} tokens{needs}."
                f" {_larger(spec, self.facts)}"
            )

    def _too_short(self, spec: DataSpec) -> str:
        if spec.source == sources.CHATS:
            return (
                f"The chats to train on fill {self.facts.train_tokens // self._stride} sequences,"
                f" one block has {spec.block_sequences}. Add chats, or lower sequence_tokens or"
                " block_sequences."
            )
        return (
            f"The training text has {self.facts.train_tokens} tokens, one block needs"
            f" {self._block_tokens + 1}. Add text, or lower sequence_tokens or block_sequences."
        )

    @property
    def matches(self) -> bool:
        """Whether the training split is the one that the project was signed with."""
        return self.facts.digest == self.spec.digest

    def sequences(self, position: int) -> Sequences:
        """The sequences at a leased position, [block_sequences, sequence_tokens + 1] int64.

        A host whose copy is shorter than the signed one reads its blocks modulo what it has.
        """
        block = block_at(position, self.spec.blocks, self._seed) % self.local_blocks
        return self.block(block)

    def block(self, number: int) -> Sequences:
        """The sequences of a block of this host's copy, as in `sequences`."""
        return self._cut(self._train, number * self._block_tokens, self.spec.block_sequences)

    def heldout(self, count: int) -> Sequences:
        """The first `count` held-out sequences, fewer if there are fewer, as in `sequences`."""
        return self.heldout_part(0, count)

    def heldout_part(self, first: int, last: int) -> Sequences:
        """Held-out sequences [first, last), fewer if there are fewer, as in `sequences`."""
        count = min(last, self.heldout_sequences) - first
        return self._cut(self._heldout, first * self._stride, count)

    def _cut(self, tokens: Tokens, first: int, count: int) -> Sequences:
        starts = first + self._stride * np.arange(count, dtype=np.int64)[:, None]
        offsets = np.arange(self.spec.sequence_tokens + 1, dtype=np.int64)[None, :]
        cut: Sequences = tokens[starts + offsets].astype(np.int64)
        if self._marks_ends:
            cut[cut == self.vocabulary.eos] |= STARTS
        return cut


def open_corpus(
    spec: DataSpec,
    *,
    seed: int,
    cache: Path,
    tokenizer: TokenizerSpec | None = None,
    documents: DocumentRule = None,
) -> Corpus:
    """The corpus of a project, tokenised first if this host has not done so yet.

    tokenizer, documents: as the genesis has them. `seed` orders the blocks. Several processes may
    call this at once; one tokenises, the others wait. UserError if the source cannot be read or is
    too short.
    """
    folder, vocabulary = _tokenised(spec, cache, tokenizer, documents)
    return Corpus(spec, seed=seed, folder=folder, vocabulary=vocabulary, documents=documents)


def _tokenised(
    spec: DataSpec, cache: Path, tokenizer: TokenizerSpec | None, documents: DocumentRule
) -> tuple[Path, Vocabulary]:
    vocabulary = load_vocabulary(spec.tokenizer, tokenizer, cache)
    # Of a pinned one the content counts, and not where it came from.
    name = spec.tokenizer if tokenizer is None else key_of(tokenizer).hex()
    chats = _settings_of(spec, tokenizer, cache) if spec.source == sources.CHATS else None
    pinned = msgspec.structs.replace(spec, tokenizer=name)
    return _filled(pinned, cache, vocabulary, chats, documents), vocabulary


def heldout_frac_for(
    spec: DataSpec,
    sequences: int,
    *,
    cache: Path,
    tokenizer: TokenizerSpec | None = None,
    documents: DocumentRule = None,
) -> float | None:
    """The share of a text to hold out so that there are so many held-out sequences, or as many as
    half of it gives; None where `spec.heldout_frac` is enough.

    UserError if the source cannot be read. Too little text is for `open_corpus` to say.
    """
    folder, _ = _tokenised(spec, cache, tokenizer, documents)
    facts, wanted = read_facts(folder), sequences * (spec.sequence_tokens + 1)
    if facts.heldout_tokens >= wanted:
        return None
    told = zip(FRACTIONS, facts.tokens_held_out_at, strict=False)
    more = [(frac, tokens) for frac, tokens in told if frac > spec.heldout_frac]
    enough = [frac for frac, tokens in more if tokens >= wanted]
    most = max(more, key=lambda one: one[1], default=(None, 0))
    return enough[0] if enough else most[0] if most[1] > facts.heldout_tokens else None


def describe_corpus(
    spec: DataSpec,
    *,
    cache: Path,
    tokenizer: TokenizerSpec | None = None,
    documents: DocumentRule = None,
) -> CorpusDescription:
    """Blocks and digest of the training split as this host sees it.

    The `blocks` and `digest` of `spec` are ignored: this is where they come from. UserError as for
    `open_corpus`.
    """
    corpus = open_corpus(spec, seed=0, cache=cache, tokenizer=tokenizer, documents=documents)
    return CorpusDescription(corpus.local_blocks, corpus.facts.digest, corpus.facts.notes)


def is_heldout(text: str, heldout_frac: float) -> bool:
    """Whether a document belongs to the held-out split: a fact of its text alone."""
    return is_drawn(drawn(text), heldout_frac)


def _settings_of(spec: DataSpec, tokenizer: TokenizerSpec | None, cache: Path) -> ChatSettings:
    """How the project's tokenizer writes a chat. UserError if it does not say."""
    found = chat_settings(PinnedFiles(cache, tokenizer)) if tokenizer is not None else None
    if found is None:
        raise UserError(
            f"The tokenizer {spec.tokenizer!r} has no chat template, which the source chats needs:"
            " it says how a chat is written. Use the tokenizer of a chat model, such as `base` of"
            " one whose name ends in Instruct or Chat."
        )
    return found


def _larger(spec: DataSpec, facts: CorpusFacts) -> str:
    """What the owner can do where too little is held out."""
    for fraction, tokens in zip(FRACTIONS, facts.tokens_held_out_at, strict=False):
        enough = 0 if spec.source == sources.CHATS else spec.sequence_tokens
        if fraction > spec.heldout_frac and tokens > enough:
            return (
                f"Set heldout_frac = {fraction:g} under [data], which holds out {tokens:,} tokens,"
                " or add documents."
            )
    return "Add documents, or raise heldout_frac."


# ------------------------------------------------------------------------------------ the cache


def _filled(
    spec: DataSpec,
    cache: Path,
    vocabulary: Vocabulary,
    chats: ChatSettings | None,
    documents: DocumentRule,
) -> Path:
    files = sources.listing(spec)
    marks = chats is not None and documents == "separate"
    folder = cache / f"corpus-{_cache_key(spec, files, marks=marks)}"

    def build(half: Path) -> None:
        _build(spec, files, folder=half, vocabulary=vocabulary, chats=chats, marks=marks)

    filled(folder, is_intact, build)
    return folder


def _cache_key(spec: DataSpec, files: list[Path], *, marks: bool) -> str:
    """Changes with everything that the token files depend on."""
    hasher = blake3(derive_key_context=CORPUS_CONTEXT)
    parts = (spec.source, spec.location, spec.text_field, spec.tokenizer, spec.heldout_frac)
    if spec.source == sources.CHATS:
        parts += (spec.sequence_tokens,)  # type: ignore[assignment]
    if marks:
        parts += ("marks",)  # type: ignore[assignment]
    hasher.update(msgspec.msgpack.encode((CACHE_FORMAT, parts)))
    tokenizer = Path(spec.tokenizer)
    for path in [*files, tokenizer] if tokenizer.is_file() else files:
        state = path.stat()
        hasher.update(msgspec.msgpack.encode((str(path), state.st_size, state.st_mtime_ns)))
    return hasher.hexdigest(12)


def _build(
    spec: DataSpec,
    files: list[Path],
    *,
    folder: Path,
    vocabulary: Vocabulary,
    chats: ChatSettings | None,
    marks: bool,
) -> None:
    """Fills an empty folder."""
    token_bytes = 2 if vocabulary.size <= 1 << 16 and chats is None else 4
    with TokenWriter(folder, spec.heldout_frac, token_bytes=token_bytes) as writer:
        if chats is None:
            tally = Tally("texts")
            _tokenise(sources.documents(spec, files, tally), vocabulary, writer)
            notes = tally.words
        else:
            notes = _tokenise_chats(spec, files, vocabulary, chats, writer, marks)
        writer.finish(notes)


def _tokenise(documents: Iterable[str], vocabulary: Vocabulary, writer: TokenWriter) -> None:
    stream = iter(documents)
    while batch := list(islice(stream, BATCH_DOCUMENTS)):
        for text, ids in zip(batch, vocabulary.encode(batch), strict=True):
            number = drawn(text)
            ended = np.append(ids, np.uint32(vocabulary.eos))
            writer.count(number, ended.size)
            writer.write(writer.side(number), ended)


def _tokenise_chats(
    spec: DataSpec,
    files: list[Path],
    vocabulary: Vocabulary,
    settings: ChatSettings,
    writer: TokenWriter,
    marks: bool,
) -> tuple[str, ...]:
    """What was left out, in words. UserError if that is everything."""
    # Loads transformers, which plain text does not need.
    from node.trainer.text.chat_writer import ChatWriter, bounded_memory, tokens_of

    assert isinstance(vocabulary, TokenizerVocabulary)
    tally, chat_writer = Tally(), ChatWriter(settings)
    packers = [
        RowPacker(
            spec.sequence_tokens + 1, vocabulary.eos, partial(writer.write, side), marks=marks
        )
        for side in (0, 1)
    ]
    stream = sources.chats(spec, files, tally)
    with bounded_memory():
        while batch := list(islice(stream, BATCH_DOCUMENTS)):
            written = []
            for chat in batch:
                try:
                    written.append((drawn(chat.identity), chat_writer.answers(chat.turns)))
                except LeftOut as why:
                    tally.leave_out(chat.place, why)
            tokens = tokens_of(vocabulary, [text for _, text in written])
            for (number, _), ids in zip(written, tokens, strict=True):
                tally.used += 1
                writer.count(number, ids.size)
                packers[writer.side(number)].add(ids)
    for packer in packers:
        packer.finish()
    tally.require_some(spec.location)
    return tally.words
