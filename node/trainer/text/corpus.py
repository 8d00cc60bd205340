"""Text as numbered blocks of fixed-length sequences, tokenised once per host.

A document is a training or a held-out one by the hash of its text, so hosts whose copies differ a
little still agree about every document they share. Training documents are tokenised into one flat
file with an end-of-document id after each, held-out ones into another; both are memory-mapped.
Block b is the b-th run of `block_sequences * sequence_tokens` tokens; sequences overlap by the one
token that is input to one and target to the next.

Where documents come from:

- `python-stdlib`: the .py files of the running interpreter's standard library, sorted by path,
  without installed packages and without its test suites (made of deliberately broken files).
- `file`: one text file, cut at line ends into documents of about `PIECE_CHARS`, or else the whole
  file would fall on one side of the split.
- `folder`: every file below it with one of `TEXT_SUFFIXES`, sorted by path.
- `parquet`: a file or a folder of them; the text is in the column `text_field`.
- `hub`: a data set of the Hugging Face hub, `owner/name` or `owner/name:configuration`, split
  `train`; never anything local. Data sets that need code of their own are refused by `datasets`
  itself.

Reading goes through `datasets` as a stream, so a corpus larger than memory is fine. `datasets` is
imported only where a corpus is built: a trainer that finds the cache filled starts without it. The
cache follows changes of local files; a hub data set is read once and then kept. Nothing is evicted:
deleting the cache directory is always safe.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from host.files.pinned_files import key_of
from node.trainer.text.tokenizer import Vocabulary, load_vocabulary
from protocol import decoders
from protocol.errors import CorruptState, UserError
from protocol.log.permutation import block_at
from protocol.project import DataSpec, TokenizerSpec, hub_name

CACHE_FORMAT: Final = 1
"""Raised when the meaning of cached files changes."""

TEXT_SUFFIXES: Final = frozenset({".txt", ".md", ".rst", ".py", ".c", ".h", ".rs", ".js", ".ts"})
SKIPPED_FOLDERS: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
)
PIECE_CHARS: Final = 4096
BATCH_DOCUMENTS: Final = 256
"""Documents tokenised at once: enough to keep `tokenizers` busy, small in memory."""

SPLIT_CONTEXT: Final = "shoal 1 held-out split"
CORPUS_CONTEXT: Final = "shoal 1 corpus"
TRAIN_FILE: Final = "train.bin"
HELDOUT_FILE: Final = "heldout.bin"
FACTS_FILE: Final = "facts.json"

FRACTIONS: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
"""What is suggested in place of a `heldout_frac` by which too little is held out."""

Tokens = NDArray[np.uint16] | NDArray[np.uint32]
Sequences = NDArray[np.int64]


class CorpusFacts(Struct, frozen=True):
    """What is written beside the token files."""

    train_tokens: int
    heldout_tokens: int
    train_documents: int
    heldout_documents: int
    token_bytes: int
    """2 or 4, little-endian unsigned."""
    digest: bytes
    """blake3 of the training tokens as little-endian u32, whatever the file's width."""
    tokens_held_out_at: tuple[int, ...] = ()
    """Tokens that each of `FRACTIONS` would hold out; nothing in caches of before."""


class CorpusDescription(NamedTuple):
    """What goes into a genesis when a project is signed."""

    blocks: int
    digest: bytes


class Corpus:
    """Training blocks and held-out sequences of one project on this host."""

    def __init__(self, spec: DataSpec, *, seed: int, folder: Path, vocabulary: Vocabulary) -> None:
        """Opens a filled cache folder; use `open_corpus`. UserError if the text is too short,
        CorruptState if the files are not what their facts say."""
        self.spec = spec
        self.vocabulary = vocabulary
        self.facts = _read_facts(folder)
        self._seed = seed
        self._train = _map_tokens(folder / TRAIN_FILE, self.facts.train_tokens, self.facts)
        self._heldout = _map_tokens(folder / HELDOUT_FILE, self.facts.heldout_tokens, self.facts)
        self._block_tokens = spec.block_sequences * spec.sequence_tokens
        self.local_blocks = (self.facts.train_tokens - 1) // self._block_tokens
        """Blocks that this host's copy of the text holds."""
        if self.local_blocks < 1:
            raise UserError(
                f"The training text has {self.facts.train_tokens} tokens, one block needs"
                f" {self._block_tokens + 1}. Add text, or lower sequence_tokens or block_sequences."
            )
        if self.facts.heldout_tokens <= spec.sequence_tokens:
            raise UserError(
                f"The held-out text has {self.facts.heldout_tokens} tokens, one sequence needs"
                f" {spec.sequence_tokens + 1}. {_larger(spec, self.facts)}"
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
        first = block * self._block_tokens
        return _cut(self._train, first, self.spec.block_sequences, self.spec.sequence_tokens)

    def heldout(self, count: int) -> Sequences:
        """The first `count` held-out sequences, fewer if there are fewer, as in `sequences`."""
        available = (self.facts.heldout_tokens - 1) // self.spec.sequence_tokens
        return _cut(self._heldout, 0, min(count, available), self.spec.sequence_tokens)


def open_corpus(
    spec: DataSpec, *, seed: int, cache: Path, tokenizer: TokenizerSpec | None = None
) -> Corpus:
    """The corpus of a project, tokenised first if this host has not done so yet.

    tokenizer: as the genesis pins it. `seed` orders the blocks. Several processes may call this at
    once; one tokenises, the others wait. UserError if the source cannot be read or is too short.
    """
    vocabulary = load_vocabulary(spec.tokenizer, tokenizer, cache)
    # Of a pinned one the content counts, and not where it came from.
    name = spec.tokenizer if tokenizer is None else key_of(tokenizer).hex()
    folder = _filled(msgspec.structs.replace(spec, tokenizer=name), cache, vocabulary)
    return Corpus(spec, seed=seed, folder=folder, vocabulary=vocabulary)


def describe_corpus(
    spec: DataSpec, *, cache: Path, tokenizer: TokenizerSpec | None = None
) -> CorpusDescription:
    """Blocks and digest of the training split as this host sees it.

    The `blocks` and `digest` of `spec` are ignored: this is where they come from. UserError as for
    `open_corpus`.
    """
    corpus = open_corpus(spec, seed=0, cache=cache, tokenizer=tokenizer)
    return CorpusDescription(corpus.local_blocks, corpus.facts.digest)


def is_heldout(text: str, heldout_frac: float) -> bool:
    """Whether a document belongs to the held-out split: a fact of its text alone."""
    return _drawn(text) < heldout_frac * 2.0**64


def _drawn(text: str) -> int:
    """Of a document, as likely any number below 2 ** 64 as any other."""
    content = text.encode("utf-8", "replace")
    return int.from_bytes(blake3(content, derive_key_context=SPLIT_CONTEXT).digest(8), "big")


def _larger(spec: DataSpec, facts: CorpusFacts) -> str:
    """What the owner can do where too little is held out."""
    for fraction, tokens in zip(FRACTIONS, facts.tokens_held_out_at, strict=False):
        if fraction > spec.heldout_frac and tokens > spec.sequence_tokens:
            return (
                f"Set heldout_frac = {fraction:g} under [data], which holds out {tokens:,} tokens,"
                " or add documents."
            )
    return "Add documents, or raise heldout_frac."


def _cut(tokens: Tokens, first: int, count: int, length: int) -> Sequences:
    starts = first + length * np.arange(count, dtype=np.int64)[:, None]
    offsets = np.arange(length + 1, dtype=np.int64)[None, :]
    cut: Sequences = tokens[starts + offsets].astype(np.int64)
    return cut


# ------------------------------------------------------------------------------------ the cache


def _filled(spec: DataSpec, cache: Path, vocabulary: Vocabulary) -> Path:
    files = _listing(spec)
    folder = cache / f"corpus-{_cache_key(spec, files)}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not _is_intact(folder):
                _build(spec, files, folder=folder, vocabulary=vocabulary)
    except OSError as error:
        raise UserError(
            f"The text cache {folder} cannot be written ({error}). Free some disk space, or name"
            " another cache directory."
        ) from error
    return folder


def _cache_key(spec: DataSpec, files: list[Path]) -> str:
    """Changes with everything that the token files depend on."""
    hasher = blake3(derive_key_context=CORPUS_CONTEXT)
    parts = (spec.source, spec.location, spec.text_field, spec.tokenizer, spec.heldout_frac)
    hasher.update(msgspec.msgpack.encode((CACHE_FORMAT, parts)))
    tokenizer = Path(spec.tokenizer)
    for path in [*files, tokenizer] if tokenizer.is_file() else files:
        state = path.stat()
        hasher.update(msgspec.msgpack.encode((str(path), state.st_size, state.st_mtime_ns)))
    return hasher.hexdigest(12)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock that the kernel drops when the process ends, however it ends."""
    with path.open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read_facts(folder: Path) -> CorpusFacts:
    try:
        return decoders.json_decoder(CorpusFacts).decode((folder / FACTS_FILE).read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptState(f"{folder} is not a usable text cache ({error}); delete it") from error


def _is_intact(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        facts = _read_facts(folder)
        _map_tokens(folder / TRAIN_FILE, facts.train_tokens, facts)
        _map_tokens(folder / HELDOUT_FILE, facts.heldout_tokens, facts)
    except CorruptState:
        return False  # Rebuilt by the caller: the cache is a copy, nothing is lost.
    return True


def _map_tokens(path: Path, count: int, facts: CorpusFacts) -> Tokens:
    dtype = np.dtype("<u2" if facts.token_bytes == 2 else "<u4")
    try:
        if path.stat().st_size != count * facts.token_bytes:
            raise CorruptState(f"{path} has the wrong size; delete its folder")
        if not count:
            return np.empty(0, dtype=dtype)
        return cast(Tokens, np.memmap(path, dtype=dtype, mode="r", shape=(count,)))
    except OSError as error:
        raise CorruptState(f"{path} cannot be read ({error}); delete its folder") from error


def _build(spec: DataSpec, files: list[Path], *, folder: Path, vocabulary: Vocabulary) -> None:
    """Fills `folder` under another name first, so that a half-filled one is never used."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # Left by a process that was killed.
    partial.mkdir()
    facts = _tokenise(spec, _documents(spec, files), folder=partial, vocabulary=vocabulary)
    (partial / FACTS_FILE).write_bytes(msgspec.json.encode(facts))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _tokenise(
    spec: DataSpec, documents: Iterable[str], *, folder: Path, vocabulary: Vocabulary
) -> CorpusFacts:
    token_bytes = 2 if vocabulary.size <= 1 << 16 else 4
    narrow = np.dtype("<u2" if token_bytes == 2 else "<u4")
    hasher = blake3(derive_key_context=CORPUS_CONTEXT)
    tokens, counted = [0, 0], [0, 0]
    at = np.zeros(len(FRACTIONS), dtype=np.int64)
    stream = iter(documents)
    with (folder / TRAIN_FILE).open("wb") as train, (folder / HELDOUT_FILE).open("wb") as heldout:
        while batch := list(islice(stream, BATCH_DOCUMENTS)):
            for text, ids in zip(batch, vocabulary.encode(batch), strict=True):
                drawn = _drawn(text)
                side = int(drawn < spec.heldout_frac * 2.0**64)
                ended = np.append(ids, np.uint32(vocabulary.eos)).astype("<u4")
                (train, heldout)[side].write(ended.astype(narrow).tobytes())
                tokens[side] += ended.size
                counted[side] += 1
                at += [ended.size * (drawn < fraction * 2.0**64) for fraction in FRACTIONS]
                if not side:
                    hasher.update(ended.tobytes())
        for handle in (train, heldout):
            handle.flush()
            os.fsync(handle.fileno())
    return CorpusFacts(
        train_tokens=tokens[0],
        heldout_tokens=tokens[1],
        train_documents=counted[0],
        heldout_documents=counted[1],
        token_bytes=token_bytes,
        digest=hasher.digest(),
        tokens_held_out_at=tuple(at.tolist()),
    )


# ---------------------------------------------------------------------------------- the sources


def _listing(spec: DataSpec) -> list[Path]:
    """The local files of a source, sorted; empty for the hub. UserError if there are none."""
    if spec.source == "hub":
        return []
    if spec.source == "python-stdlib":
        return _files_below(Path(sysconfig.get_path("stdlib")), frozenset({".py"}), SKIPPED_FOLDERS)
    root = Path(spec.location).expanduser().resolve()
    if spec.source == "file" or (spec.source == "parquet" and root.is_file()):
        if not root.is_file():
            raise UserError(f"There is no file {root}. Correct `location` in the project file.")
        return [root]
    suffixes = frozenset({".parquet"}) if spec.source == "parquet" else TEXT_SUFFIXES
    return _files_below(root, suffixes, frozenset())


def _files_below(root: Path, suffixes: frozenset[str], skipped: frozenset[str]) -> list[Path]:
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Correct `location` in the project file.")
    found: list[Path] = []
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in skipped)
        found += [Path(folder, name) for name in sorted(names) if Path(name).suffix in suffixes]
    if not found:
        raise UserError(
            f"{root} holds no file ending in {', '.join(sorted(suffixes))}."
            " Correct `location` in the project file."
        )
    return found


def _documents(spec: DataSpec, files: list[Path]) -> Iterator[str]:
    """Every document with text in it. UserError if the source cannot be read."""
    import datasets
    import datasets.exceptions

    # `datasets` takes names for patterns, so a bracket in one would find nothing.
    names = [glob.escape(str(path)) for path in files]
    text = {"split": "train", "streaming": True, "encoding_errors": "replace"}
    try:
        if spec.source == "hub":
            name, configuration = _on_the_hub(spec.location)
            rows = datasets.load_dataset(name, configuration or None, split="train", streaming=True)
        elif spec.source == "parquet":
            rows = datasets.load_dataset("parquet", data_files=names, split="train", streaming=True)
        elif spec.source == "file":
            text |= {"sample_by": "line", "keep_linebreaks": True}
            rows = datasets.load_dataset("text", data_files=names, **text)
        else:
            rows = datasets.load_dataset("text", data_files=names, sample_by="document", **text)
        field = spec.text_field if spec.source in ("hub", "parquet") else "text"
        texts = _field_of(rows, field, spec.location)
        yield from _pieces(texts) if spec.source == "file" else (one for one in texts if one)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"The text source {spec.source} {spec.location!r} cannot be read ({error})."
            " Check `location`, your access to it and, for the hub, the network."
        ) from error


def _on_the_hub(location: str) -> tuple[str, str]:
    """Name and configuration of a data set. UserError for anything that would be read locally."""
    known = hub_name(location)
    if known is None:
        raise UserError(
            f"{location!r} does not name a data set of the hub. Write `location` as OWNER/NAME or"
            " OWNER/NAME:CONFIGURATION, or use file, folder or parquet for your own text."
        )
    if Path(known[0]).exists():
        # `datasets` prefers a local folder of that name, which the project must not choose.
        raise UserError(
            f"There is a file or folder {known[0]} here, which would be read in place of the data"
            " set of that name on the hub. Start Shoal from another folder."
        )
    return known


def _field_of(rows: Iterable[dict[str, object]], field: str, location: str) -> Iterator[str]:
    for row in rows:
        text = row.get(field)
        if not isinstance(text, str):
            raise UserError(
                f"{location!r} has no text in the field {field!r}; its fields are"
                f" {', '.join(sorted(row))}. Set `text_field` in the project file."
            )
        yield text


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined into documents of at least `PIECE_CHARS`, the last one excepted."""
    held: list[str] = []
    chars = 0
    for line in lines:
        held.append(line)
        chars += len(line)
        if chars >= PIECE_CHARS:
            yield "".join(held)
            held, chars = [], 0
    if chars:
        yield "".join(held)
