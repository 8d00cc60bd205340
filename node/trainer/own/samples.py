"""Data that training code brings itself, as numbered blocks of numbered samples.

What `node.trainer.text.corpus` is for text: which samples a leased position stands for.
"""

from __future__ import annotations

import numpy as np

from node.trainer.own.interface import OwnData, Samples
from node.trainer.text.corpus import CorpusDescription
from node.trainer.text.token_files import CorpusFacts
from protocol.errors import UserError
from protocol.log.permutation import block_at
from protocol.project import DataSpec

DIGEST_BYTES = 32
TRAINING_CODE = "The training code has"


class OwnSamples:
    """Numbers of samples, by position."""

    def __init__(
        self, spec: DataSpec, data: OwnData, *, seed: int, whose: str = TRAINING_CODE
    ) -> None:
        """UserError, which begins with `whose`, if there is less than one block or nothing held
        out."""
        described = describe(spec, data, whose=whose)
        self.spec = spec
        self.local_blocks = described.blocks
        """Blocks that this host's copy of the data holds."""
        self.facts = CorpusFacts(
            train_tokens=data.samples * spec.sequence_tokens,
            heldout_tokens=data.heldout * spec.sequence_tokens,
            train_documents=data.samples,
            heldout_documents=data.heldout,
            token_bytes=0,
            digest=data.digest,
        )
        self._seed, self._heldout = seed, data.heldout

    @property
    def matches(self) -> bool:
        """Whether the data is what the project was signed with."""
        return self.facts.digest == self.spec.digest

    def sequences(self, position: int) -> Samples:
        """The numbers of the samples at a leased position, [block_sequences] int64.

        A host that has fewer than were signed takes its blocks modulo what it has.
        """
        block = block_at(position, self.spec.blocks, self._seed) % self.local_blocks
        first = block * self.spec.block_sequences
        return np.arange(first, first + self.spec.block_sequences, dtype=np.int64)

    def heldout(self, count: int) -> Samples:
        """The first `count` held-out numbers, fewer if there are fewer."""
        return np.arange(min(count, self._heldout), dtype=np.int64)


def describe(spec: DataSpec, data: OwnData, *, whose: str = TRAINING_CODE) -> CorpusDescription:
    """Blocks and digest of the data, as a genesis has them. UserError if there is too little."""
    if len(data.digest) != DIGEST_BYTES:
        raise UserError(f"The training code gives a digest of {len(data.digest)} bytes, not 32.")
    if data.samples < spec.block_sequences or data.heldout < 1:
        raise UserError(
            f"{whose} {data.samples} samples to train on and {data.heldout} held out; one block"
            f" needs {spec.block_sequences}, and one must be held out. Lower"
            " data.block_sequences, or add data."
        )
    return CorpusDescription(data.samples // spec.block_sequences, data.digest)
