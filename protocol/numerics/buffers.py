"""Large arrays whose memory is used again.

Memory that the system hands out anew is cleared page by page, which costs more than most of what is
done with a fragment. So the memory of a large array goes back to a shelf when the last array that
looks at it is gone, slices and memory views included, and the next array of that size gets it.
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

SPARE_MAX: Final = 2
"""Arrays kept for each size."""

SIZES_MAX: Final = 4
"""Sizes kept; the fragments of a model have about one, and their payloads another."""

_spare: dict[int, list[U8]] = {}


class _Loan:
    """Memory for one array: what NumPy holds on to as long as anything looks at it."""

    # Held here too: when Python ends, the module may be gone before the last array is.
    _shelf, _each_max, _sizes_max = _spare, SPARE_MAX, SIZES_MAX

    def __init__(self, memory: U8) -> None:
        self._memory = memory
        self.__array_interface__: Mapping[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        kept = self._shelf.setdefault(self._memory.size, [])
        if len(kept) < self._each_max:
            kept.append(self._memory)
        while len(self._shelf) > self._sizes_max:
            self._shelf.pop(next(iter(self._shelf)), None)


def empty(numel: int) -> F32:
    """A flat float32 array of any content, writable; nobody else has it."""
    return empty_bytes(4 * numel).view(np.float32)


def empty_bytes(size: int) -> U8:
    """The same of bytes."""
    if size < LARGE:
        return np.empty(size, dtype=np.uint8)
    try:
        memory = _spare[size].pop()
    except (KeyError, IndexError):
        memory = np.empty(size, dtype=np.uint8)
    return np.asarray(_Loan(memory))


def trim() -> int:
    """Gives spare memory back to the system; how many bytes."""
    freed = sum(array.nbytes for kept in _spare.values() for array in kept)
    _spare.clear()
    return freed
