"""Tokens of a corpus as files: one flat file for training, one of what is held out, and facts.

Ids are unsigned, in 2 bytes or 4. Context that nobody learns is stored as -1 - id, in 4 bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from protocol import decoders
from protocol.errors import CorruptState

SPLIT_CONTEXT: Final = "shoal 1 held-out split"
CORPUS_CONTEXT: Final = "shoal 1 corpus"
TRAIN_FILE: Final = "train.bin"
HELDOUT_FILE: Final = "heldout.bin"
FACTS_FILE: Final = "facts.json"

FRACTIONS: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
"""What is suggested in place of a `heldout_frac` by which too little is held out."""

Tokens = NDArray[np.uint16] | NDArray[np.int32]


class CorpusFacts(Struct, frozen=True):
    """What is written beside the token files."""

    train_tokens: int
    heldout_tokens: int
    train_documents: int
    heldout_documents: int
    token_bytes: int
    """2 or 4, little-endian."""
    digest: bytes
    """blake3 of the training tokens as little-endian 32 bits, whatever the file's width."""
    tokens_held_out_at: tuple[int, ...] = ()
    """Tokens that each of `FRACTIONS` would hold out; nothing in caches of before."""
    notes: tuple[str, ...] = ()
    """What of the source could not be used, in words."""


def drawn(text: str) -> int:
    """Of a document, as likely any number below 2 ** 64 as any other: a fact of its text alone."""
    content = text.encode("utf-8", "replace")
    return int.from_bytes(blake3(content, derive_key_context=SPLIT_CONTEXT).digest(8), "big")


def is_drawn(number: int, fraction: float) -> bool:
    """Whether a document with this number is among such a fraction of all."""
    return number < fraction * 2.0**64


class TokenWriter:
    """Writes the token files of a corpus, and counts."""

    def __init__(self, folder: Path, heldout_frac: float, *, token_bytes: int) -> None:
        self._folder, self._heldout_frac, self._token_bytes = folder, heldout_frac, token_bytes
        self._files = [(folder / name).open("wb") for name in (TRAIN_FILE, HELDOUT_FILE)]
        self._hasher = blake3(derive_key_context=CORPUS_CONTEXT)
        self._tokens, self._documents = [0, 0], [0, 0]
        self._at = np.zeros(len(FRACTIONS), dtype=np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._files:
            handle.close()

    def side(self, number: int) -> int:
        """1 if a document of this `drawn` number is held out, else 0."""
        return int(is_drawn(number, self._heldout_frac))

    def count(self, number: int, tokens: int) -> None:
        """Notes a document of so many tokens."""
        self._documents[self.side(number)] += 1
        self._at += [tokens * is_drawn(number, fraction) for fraction in FRACTIONS]

    def write(self, side: int, ids: NDArray[Any]) -> None:
        """Adds ids to one of the files."""
        wide = ids.astype("<i4")
        narrow = wide.astype("<u2") if self._token_bytes == 2 else wide
        self._files[side].write(narrow.tobytes())
        self._tokens[side] += ids.size
        if not side:
            self._hasher.update(wide.tobytes())

    def finish(self, notes: tuple[str, ...] = ()) -> CorpusFacts:
        """Everything is on the disk, with what was counted beside it."""
        for handle in self._files:
            handle.flush()
            os.fsync(handle.fileno())
        facts = CorpusFacts(
            train_tokens=self._tokens[0],
            heldout_tokens=self._tokens[1],
            train_documents=self._documents[0],
            heldout_documents=self._documents[1],
            token_bytes=self._token_bytes,
            digest=self._hasher.digest(),
            tokens_held_out_at=tuple(self._at.tolist()),
            notes=notes,
        )
        (self._folder / FACTS_FILE).write_bytes(msgspec.json.encode(facts))
        return facts


def read_facts(folder: Path) -> CorpusFacts:
    """What is written there. CorruptState if it cannot be read."""
    try:
        return decoders.json_decoder(CorpusFacts).decode((folder / FACTS_FILE).read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptState(f"{folder} is not a usable text cache ({error}); delete it") from error


def is_intact(folder: Path) -> bool:
    """Whether the files there are what their facts say."""
    if not folder.is_dir():
        return False
    try:
        facts = read_facts(folder)
        map_tokens(folder / TRAIN_FILE, facts.train_tokens, facts)
        map_tokens(folder / HELDOUT_FILE, facts.heldout_tokens, facts)
    except CorruptState:
        return False  # Rebuilt by the caller: the cache is a copy, nothing is lost.
    return True


def map_tokens(path: Path, count: int, facts: CorpusFacts) -> Tokens:
    """The tokens of a file, [count], mapped into memory. CorruptState if they are not there."""
    dtype = np.dtype("<u2" if facts.token_bytes == 2 else "<i4")
    try:
        if path.stat().st_size != count * facts.token_bytes:
            raise CorruptState(f"{path} has the wrong size; delete its folder")
        if not count:
            return np.empty(0, dtype=dtype)
        return cast(Tokens, np.memmap(path, dtype=dtype, mode="r", shape=(count,)))
    except OSError as error:
        raise CorruptState(f"{path} cannot be read ({error}); delete its folder") from error
