"""Large arrays whose memory is used again.

Memory that the system hands out anew is cleared page by page, which costs more than most of what is
done with a fragment. So the memory of a large array goes back to a shelf when the last array that
looks at it is gone, slices and memory views included, and the next array of about that size gets
it. Every operation on the shelf is one step of the interpreter: any thread may come at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

LARGE: Final = 1 << 20
"""Bytes from which on it is worth the while."""

SPARE_MIN: Final = 2
"""Arrays that are kept however large they are."""

SPARE_SHARE: Final = 8
"""Beyond those, what is kept is at most this part of what is in use."""

LARGER_MAX: Final = 1.25
"""Memory so many times as large as what is wanted will do."""

HEADROOM: Final = 16
"""New memory is this part larger than what is wanted, for the next fragment may be a little larger.
What nobody writes to takes no room."""

BORDER: Final = 64
"""Bytes to a multiple of which a large array begins: a line of the caches."""

STREAMED_MIN = 8 << 20
"""Bytes of an array that has left a core's caches before anybody comes back to it."""

_spare: dict[int, U8] = {}
"""By identity, what came back last at the end."""
_lent: dict[int, int] = {}
"""Bytes of each array in use."""


def is_streamed(array: NDArray[Any]) -> bool:
    """Whether kernels should write this array past the caches, and its place allows that."""
    place = int(array.__array_interface__["data"][0])
    return array.nbytes >= STREAMED_MIN and place % BORDER == 0


def _before_border(memory: U8) -> int:
    return -int(memory.__array_interface__["data"][0]) % BORDER


class _Loan:
    """Memory for one array: what NumPy holds on to as long as anything looks at it."""

    # Held here too: when Python ends, the module may be gone before the last array is.
    _blob_store, _books, _kept_min, _share = _spare, _lent, SPARE_MIN, SPARE_SHARE

    def __init__(self, memory: U8, size: int) -> None:
        self._memory = memory
        self.__array_interface__: Mapping[str, Any] = memory[_before_border(memory) :][
            :size
        ].__array_interface__
        self._books[id(self)] = memory.nbytes

    def __del__(self) -> None:
        shelf = self._blob_store
        self._books.pop(id(self), None)
        shelf[id(self._memory)] = self._memory
        room = sum(list(self._books.values())) // self._share
        while (
            len(shelf) > self._kept_min and sum(one.nbytes for one in list(shelf.values())) > room
        ):
            shelf.pop(next(iter(list(shelf)), 0), None)


def empty(numel: int) -> F32:
    """A flat float32 array of any content, writable; nobody else has it."""
    return empty_bytes(4 * numel).view(np.float32)


def empty_bytes(size: int) -> U8:
    """The same of bytes."""
    if size < LARGE:
        return np.empty(size, dtype=np.uint8)
    memory = _take(size + BORDER)
    if memory is None:
        memory = np.empty(size + BORDER + size // HEADROOM, dtype=np.uint8)
    return np.asarray(_Loan(memory, size))


def _take(size: int) -> U8 | None:
    """The smallest spare memory that will do."""
    will_do = [
        (memory.nbytes, key)
        for key, memory in list(_spare.items())
        if size <= memory.nbytes <= LARGER_MAX * size
    ]
    for _, key in sorted(will_do):
        memory = _spare.pop(key, None)
        if memory is not None:
            return memory
    return None


def trim() -> int:
    """Gives spare memory back to the system; how many bytes."""
    freed = 0
    for key in list(_spare):
        memory = _spare.pop(key, None)
        freed += 0 if memory is None else memory.nbytes
    return freed
