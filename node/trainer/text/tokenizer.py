"""Text to token ids and back, for the built-in byte tokenizer and for `tokenizers` files.

`bytes` needs no file and no network: ids 0..255 are the UTF-8 bytes, 256 ends a document. Every
other name is `base` for that of the base model, the absolute path of a `tokenizers` JSON file, or
`OWNER/NAME` of a repository of the Hugging Face hub that has one. A project pins the files; what
its name stands for matters only where one was signed before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from host.files.pinned_files import PinnedFiles
from node.trainer import hub
from protocol.errors import UserError
from protocol.project import TokenizerSpec, hub_name

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES: Final = "bytes"
BYTES_EOS: Final = 256
BASE: Final = "base"
"""Names the tokenizer of the project's base model."""

FILE: Final = "tokenizer.json"
EOS_TEXT: Final = "<|endoftext|>"

EOS_NAMES: Final = (EOS_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]", "<|eos|>")
"""A tokenizer file does not say which token ends a document: the first of these that it has."""

BYTES_MASK: Final = 257
MASK_TEXT: Final = "[MASK]"
MASK_NAMES: Final = (MASK_TEXT, "<mask>", "<|mask|>", "<special1>")
"""Neither does it say which token stands where one is hidden. The last is that of XLM."""

_WANTED = (
    "Use `bytes`, the path of a tokenizer.json, or OWNER/NAME of a hub repository that has one."
)


class Vocabulary(Protocol):
    """A reversible coding of text."""

    size: int
    """Ids are below this."""
    eos: int
    """Id that ends a document."""

    @property
    def mask(self) -> int | None:
        """Id that stands where a token is hidden; None: it has none."""

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text, without the end-of-document id."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; the end-of-document id and invalid sequences do not raise."""


class ByteVocabulary:
    """UTF-8 bytes as ids."""

    size = BYTES_EOS + 1  # The mask lies behind, so that projects of text without one need no row.
    eos = BYTES_EOS
    mask = BYTES_MASK

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        # Lone surrogates cannot be encoded; they become '?', since text is not worth failing for.
        return [
            np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.uint32)
            for text in texts
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(one for one in ids if 0 <= one < BYTES_EOS).decode("utf-8", "replace")


class TokenizerVocabulary:
    """A `tokenizers` tokenizer from a JSON file or the hub."""

    def __init__(self, name: str, end_of_text: str | None = None) -> None:
        """end_of_text: the token that ends a document, if it is known.

        UserError if `name` cannot be loaded or has no end-of-document token.
        """
        self.tokenizer = open_tokenizer(name)
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        wanted = EOS_NAMES if end_of_text is None else (end_of_text,)
        found = [one for one in wanted if one in ids]
        if not found:
            raise UserError(
                f"The tokenizer {name!r} has none of the end-of-document tokens"
                f" {', '.join(wanted)}. Add one of them to the tokenizer."
            )
        self.eos_text = found[0]
        self.eos = ids[found[0]]
        self.size = max(ids.values()) + 1
        self.mask: int | None = next((ids[one] for one in MASK_NAMES if one in ids), None)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.uint32) for one in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode([one for one in ids if one != self.eos]))


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer in a file or on the hub. UserError if it cannot be loaded."""
    from tokenizers import Tokenizer

    if not Path(name).is_absolute() and hub_name(name) is None:
        raise UserError(f"There is no tokenizer {name!r}. {_WANTED}")
    try:
        if Path(name).is_absolute():
            return Tokenizer.from_file(name)
        return Tokenizer.from_file(str(hub.snapshot(name, (FILE,)) / FILE))
    except Exception as error:  # tokenizers raises bare Exception for everything it meets.
        raise UserError(f"The tokenizer {name!r} cannot be loaded ({error}). {_WANTED}") from error


def load_vocabulary(
    name: str, pinned: TokenizerSpec | None = None, cache: Path | None = None
) -> Vocabulary:
    """The vocabulary that a project names, by its pinned files if it pins them.

    cache: the home's, which holds them. UserError if it cannot be loaded.
    """
    if name == BYTES:
        return ByteVocabulary()
    if pinned is None or cache is None:
        return TokenizerVocabulary(name)
    files = PinnedFiles(cache, pinned)
    if missing := files.missing():
        raise UserError(
            f"The project's {missing[0].name} is not in {files.folder}. A learner gets it from"
            " others as it joins; elsewhere, sign the project again or copy that folder here."
        )
    return TokenizerVocabulary(
        str((files.folder / "tokenizer.json").absolute()), pinned.end_of_text
    )
