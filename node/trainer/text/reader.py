"""The text of local steps: leased positions in the order they came, read sequence by sequence."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InternalError

Sequences = NDArray[np.int64]
"""Token ids. A token that is read and not learned, as what a chat's user says, is -1 - id.

Where documents are separate, `STARTS` is added to the id of a token that begins one.
"""

STARTS: Final = 1 << 30
"""Above every id, and below the sign of a stored one."""

Ranges = tuple[tuple[int, int, int], ...]
"""Positions [start, stop) and the sequences of the first that are read."""

Pieces = tuple[tuple[int, int, int], ...]
"""Leased position, first sequence in its block, sequences."""


Places = list[tuple[int, int]]
"""Position of the permutation, and a sequence of the block there."""


class SequenceSource(Protocol):
    """Where the sequences of a leased position come from, such as `corpus.Corpus`."""

    def sequences(self, position: int) -> Sequences:
        """[block_sequences, sequence_tokens + 1] token ids; with hidden tokens [block_sequences,
        2, sequence_tokens]; or [block_sequences] numbers of samples."""


class BlockReader:
    """Leased positions in the order they came, read sequence by sequence."""

    def __init__(
        self, source: SequenceSource, *, block_sequences: int, sample_tokens: int = 0
    ) -> None:
        """sample_tokens: what a sequence counts where its length does not say it."""
        self._source = source
        self._block_sequences = block_sequences
        self.sample_tokens = sample_tokens
        """Tokens that a sequence of those read last counts."""
        self._ranges: deque[tuple[int, int, int]] = deque()
        """Positions [start, stop) and the sequences of the first that are read."""
        self._block: tuple[int, Sequences] | None = None
        self.available = 0
        """Sequences leased and not yet read."""
        self.position = 0
        """Leased position last read from."""
        self.sequence = 0
        """Sequences of that block that are read."""

    def append(self, ranges: tuple[tuple[int, int], ...], start_sequence: int = 0) -> None:
        """Adds positions [start, stop), the very first block without its first `start_sequence`.

        InternalError if a range is empty or a block has no such sequence.
        """
        if not 0 <= start_sequence <= self._block_sequences:
            raise InternalError(f"a block has no sequence {start_sequence}")
        for start, stop in ranges:
            if start >= stop:
                raise InternalError(f"positions {start} to {stop} are no range")
            self._push(start, stop, start_sequence)
            self.available += (stop - start) * self._block_sequences - start_sequence
            start_sequence = 0

    def mark(self) -> tuple[Ranges, int, int]:
        """Where it stands: what is left to read, position and sequence last read."""
        return tuple(self._ranges), self.position, self.sequence

    def go_to(self, ranges: Ranges, position: int, sequence: int) -> None:
        """Stands where it stood at a mark; the text is read again from there."""
        self._ranges = deque(ranges)
        self.position, self.sequence = position, sequence
        self.available = sum(
            (stop - start) * self._block_sequences - first for start, stop, first in ranges
        )

    def clear(self) -> None:
        """Forgets everything not yet read."""
        self._ranges.clear()
        self.available = 0

    def take(self, count: int) -> Sequences:
        """The next `count` sequences, [count, sequence_tokens + 1]; there must be that many."""
        return self.read(self.plan(count))

    def plan(self, count: int) -> Pieces:
        """Where the next `count` sequences are; they count as read. There must be that many."""
        assert 0 < count <= self.available
        pieces = []
        wanted = count
        while wanted:
            start, stop, first = self._ranges.popleft()
            length = min(self._block_sequences - first, wanted)
            pieces.append((start, first, length))
            wanted -= length
            self.position, self.sequence = start, first + length
            self._push(start, stop, self.sequence, in_front=True)
        self.available -= count
        return tuple(pieces)

    def read(self, pieces: Pieces) -> Sequences:
        """The sequences there, [count, sequence_tokens + 1]."""
        found = [self._read(at)[first : first + count] for at, first, count in pieces]
        read = np.concatenate(found)
        if read.ndim == 2:
            self.sample_tokens = read.shape[1] - 1
        return read

    def _push(self, start: int, stop: int, first: int, *, in_front: bool = False) -> None:
        if first == self._block_sequences:
            start, first = start + 1, 0
        if start < stop:
            entry = (start, stop, first)
            self._ranges.appendleft(entry) if in_front else self._ranges.append(entry)

    def _read(self, position: int) -> Sequences:
        if self._block is None or self._block[0] != position:
            self._block = (position, self._source.sequences(position))
        return self._block[1]


def read_places(source: SequenceSource, places: Places) -> Sequences:
    """The sequences at these places, whoever reads or has read them: [places, sequence_tokens + 1].

    Memory: the answer and one block. InternalError if a block has no such sequence.
    """
    rows: list[Sequences | None] = [None] * len(places)
    position, block = -1, np.empty((0, 0), np.int64)
    for at in sorted(range(len(places)), key=lambda at: places[at]):
        wanted, sequence = places[at]
        if wanted != position:
            position, block = wanted, source.sequences(wanted)
        if sequence >= len(block):
            raise InternalError(f"a block has no sequence {sequence}")
        rows[at] = block[sequence].copy()  # Not a view, which would keep the whole block.
    return np.stack([row for row in rows if row is not None])


def learned_tokens(sequences: Sequences) -> int:
    """How many tokens of [n, sequence_tokens + 1] are predicted to be learned."""
    return int(np.count_nonzero(sequences[:, 1:] >= 0))


def part_of(pieces: Pieces, first: int, last: int) -> Pieces:
    """Sequences [first, last) of a batch that lies in these pieces."""
    found, passed = [], 0
    for position, start, count in pieces:
        low, high = max(first, passed), min(last, passed + count)
        if low < high:
            found.append((position, start + low - passed, high - low))
        passed += count
    return tuple(found)
