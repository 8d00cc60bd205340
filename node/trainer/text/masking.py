"""Text with hidden tokens, for encoders: the blocks of a corpus, each sequence read and asked.

Which tokens are hidden follows from the project's seed and the place of the sequence alone, so
that whoever reads a place reads the same: a prober, another rank, a replay. A position comes once
in each pass over the text, so every pass hides others. Of the tokens that are asked for, 8 in 10
are hidden, 1 becomes another one and 1 stays, as BERT was trained.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node.trainer.text.corpus import Corpus
from node.trainer.text.reader import Sequences
from node.trainer.text.token_files import CorpusFacts
from node.trainer.text.tokenizer import Vocabulary
from protocol.project import DataSpec, MaskedSpec

READ: Final = 0
LABELS: Final = 1
"""Rows of a sample: what the model reads, and what it is to say."""

UNASKED: Final = -100
"""In the place of a label: nothing is asked here. `transformers` leaves it out of its loss, too."""

HIDDEN_FRAC: Final = 0.8
REPLACED_FRAC: Final = 0.1
"""Of the tokens asked for; the rest is read as it is."""

MASKING_CONTEXT: Final = "shoal 1 hidden tokens"
HELDOUT_PLACE: Final = b"held out"

Draws = NDArray[np.uint64]


class MaskedText:
    """A corpus as an encoder reads it."""

    def __init__(self, text: Corpus, masked: MaskedSpec, *, seed: int) -> None:
        self._text, self._masked, self._seed = text, masked, seed
        self.spec: DataSpec = text.spec
        self.facts: CorpusFacts = text.facts
        self.vocabulary: Vocabulary = text.vocabulary
        self.local_blocks = text.local_blocks

    @property
    def matches(self) -> bool:
        """Whether the training split is the one that the project was signed with."""
        return self._text.matches

    def sequences(self, position: int) -> Sequences:
        """The sequences at a leased position, [block_sequences, 2, sequence_tokens] int64."""
        place = position.to_bytes(8, "little")
        return self._hidden(self._text.sequences(position), place)

    def heldout(self, count: int) -> Sequences:
        """The first `count` held-out sequences, as in `sequences`; always with the same hidden."""
        return self._hidden(self._text.heldout(count), HELDOUT_PLACE)

    def _hidden(self, sequences: Sequences, place: bytes) -> Sequences:
        tokens = sequences[:, :-1]
        material = self._seed.to_bytes(8, "little") + place
        return hide(tokens, self._masked, self.vocabulary, _draws(material, tokens.shape))


def hide(tokens: Sequences, masked: MaskedSpec, vocabulary: Vocabulary, draws: Draws) -> Sequences:
    """What is read of the tokens [n, tokens], and what is asked: [n, 2, tokens].

    draws: [3, n, tokens]. The ends of documents are asked for only where nothing else is left.
    """
    rows, length = tokens.shape
    order = np.where(tokens == vocabulary.eos, draws[0] >> 1 | np.uint64(1 << 63), draws[0] >> 1)
    asked = np.argsort(order, axis=1, kind="stable")[:, : asked_of(length, masked.frac)]
    at = np.arange(rows)[:, None], asked
    labels = np.full_like(tokens, UNASKED)
    labels[at] = tokens[at]
    share = draws[1][at] / 2.0**64
    others = (draws[2][at] % np.uint64(vocabulary.size)).astype(np.int64)
    read = tokens.copy()
    read[at] = np.where(
        share < HIDDEN_FRAC,
        masked.token,
        np.where(share < HIDDEN_FRAC + REPLACED_FRAC, others, tokens[at]),
    )
    return np.stack([read, labels], axis=1)


def asked_of(sequence_tokens: int, frac: float) -> int:
    """How many tokens of a sequence are asked for: the share, rounded, and at least one."""
    return max(1, round(frac * sequence_tokens))


def blank_masked(count: int, sequence_tokens: int, vocabulary: int, frac: float) -> Sequences:
    """Samples of tokens without a meaning."""
    draw = np.random.default_rng(0).integers
    found = np.full((count, 2, sequence_tokens), UNASKED)
    found[:, READ] = draw(0, vocabulary, size=(count, sequence_tokens))
    asked = asked_of(sequence_tokens, frac)
    found[:, LABELS, :asked] = found[:, READ, :asked]
    return found


def _draws(material: bytes, shape: tuple[int, ...]) -> Draws:
    """Three numbers for each token, as likely any below 2 ** 64 as any other."""
    count = 3 * int(np.prod(shape))
    drawn = blake3(material, derive_key_context=MASKING_CONTEXT).digest(8 * count)
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64).reshape(3, *shape)
