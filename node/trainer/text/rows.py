"""Conversations packed into sequences: whole where they fit, one behind the other, nothing lost.

A sequence is written with the token behind it, so nothing depends on which one is written next. In
one that is not full, the rest is context. Where documents are separate, the first token of each
conversation says so, and that of the rest. A conversation that is longer than a sequence is split;
pieces of it in which there is nothing to learn are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.trainer.text.reader import STARTS

OPEN_MAX: Final = 64
"""Sequences that are not full yet: more waste less, and are slower."""

Row = NDArray[np.int64]


@dataclass(slots=True)
class _Open:
    room: int
    pieces: list[Row] = field(default_factory=list)


class RowPacker:
    """Fills rows of a fixed length."""

    def __init__(
        self, length: int, filler: int, emit: Callable[[Row], None], *, marks: bool = False
    ) -> None:
        """length: tokens of a sequence and the one behind it. filler: id of what fills up.

        emit: gets each row, [length], when it is full or `finish` is called. marks: whether it is
        marked where a conversation begins.
        """
        self._length, self._filler, self._emit = length, filler, emit
        self._start = STARTS if marks else 0
        self._open: list[_Open] = []

    def add(self, ids: Row) -> None:
        """Places a conversation, in which context is -1 - id."""
        for first in range(0, max(1, len(ids) - 1), self._length - 1):
            # One token is in both pieces: in the first as a target, in the second as context.
            piece = ids[first : first + self._length].copy()
            piece[0] = ~(max(piece[0], ~piece[0]) | self._start)
            if (piece >= 0).any():
                self._place(piece)

    def _place(self, piece: Row) -> None:
        fitting = [one for one in self._open if one.room >= len(piece)]
        if fitting:
            row = min(fitting, key=lambda one: one.room)
        else:
            if len(self._open) == OPEN_MAX:
                self._close(min(self._open, key=lambda one: one.room))
            row = _Open(self._length)
            self._open.append(row)
        row.pieces.append(piece)
        row.room -= len(piece)
        if not row.room:
            self._close(row)

    def _close(self, row: _Open) -> None:
        self._open = [one for one in self._open if one is not row]
        rest = np.full(row.room, ~self._filler, np.int64)
        rest[:1] = ~(self._filler | self._start)
        self._emit(np.concatenate([*row.pieces, rest]))

    def finish(self) -> None:
        """No more conversations."""
        for row in list(self._open):
            self._close(row)
