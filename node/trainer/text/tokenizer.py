"""Text to token ids and back, for the built-in byte tokenizer and for `tokenizers` files.

`bytes` needs no file and no network: ids 0..255 are the UTF-8 bytes, 256 ends a document. Every
other name is the absolute path of a `tokenizers` JSON file, or `OWNER/NAME` of a repository of the
Hugging Face hub that has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import UserError
from protocol.project import hub_name

BYTES: Final = "bytes"
BYTES_EOS: Final = 256
EOS_TEXT: Final = "<|endoftext|>"

EOS_NAMES: Final = (EOS_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]", "<|eos|>")
"""A tokenizer file does not say which token ends a document: the first of these that it has."""


_WANTED = (
    "Use `bytes`, the path of a tokenizer.json, or OWNER/NAME of a hub repository that has one."
)


class Vocabulary(Protocol):
    """A reversible coding of text."""

    size: int
    """Ids are below this."""
    eos: int
    """Id that ends a document."""

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text, without the end-of-document id."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; the end-of-document id and invalid sequences do not raise."""


class ByteVocabulary:
    """UTF-8 bytes as ids."""

    size = BYTES_EOS + 1
    eos = BYTES_EOS

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

    def __init__(self, name: str) -> None:
        """UserError if `name` cannot be loaded or has no end-of-document token."""
        from tokenizers import Tokenizer

        if not Path(name).is_absolute() and hub_name(name) is None:
            raise UserError(f"There is no tokenizer {name!r}. {_WANTED}")
        try:
            if Path(name).is_absolute():
                self.tokenizer = Tokenizer.from_file(name)
            else:
                self.tokenizer = Tokenizer.from_pretrained(name)
        except Exception as error:  # tokenizers raises bare Exception for everything it meets.
            raise UserError(
                f"The tokenizer {name!r} cannot be loaded ({error}). {_WANTED}"
            ) from error
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        found = [one for one in EOS_NAMES if one in ids]
        if not found:
            raise UserError(
                f"The tokenizer {name!r} has none of the end-of-document tokens"
                f" {', '.join(EOS_NAMES)}. Add one of them to the tokenizer."
            )
        self.eos_text = found[0]
        self.eos = ids[found[0]]
        self.size = max(ids.values()) + 1

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.uint32) for one in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode([one for one in ids if one != self.eos]))


def load_vocabulary(name: str) -> Vocabulary:
    """The vocabulary that a project names. UserError if it cannot be loaded."""
    return ByteVocabulary() if name == BYTES else TokenizerVocabulary(name)
