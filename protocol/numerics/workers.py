"""Who does the pieces of one calculation: the caller alone, or threads that the host owns.

Pieces are cut the same way for everybody, and none reads what another one writes. So results do not
depend on who does them, how many there are, or in which order they end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from protocol.fragments import BLOCK

PIECE: Final = 1 << 18
"""Elements between two returns to Python; a multiple of BLOCK. As float32 it is 1 MiB, of which one
core's second-level cache holds two: what one loop wrote is still there for the next."""

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """Does independent pieces of work."""

    def map(self, work: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
        """What `work` returned for each piece, in their order.

        Returns when nothing is being worked on any more. Raises what a piece that failed raised.
        """


class _Caller:
    """Whoever asks, one piece after the other."""

    def map(self, work: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
        return [work(piece) for piece in pieces]


ALONE: Final[Workers] = _Caller()


def pieces(numel: int, start: int = 0, step: int = PIECE) -> list[tuple[int, int]]:
    """Start and end of each piece of so many elements from `start` on; borders of blocks."""
    assert step % BLOCK == 0
    return [(at, min(at + step, start + numel)) for at in range(start, start + numel, step)]
