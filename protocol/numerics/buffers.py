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

LARGE: Final = 1 << 18
"""Elements from which on it is worth the while."""

SPARE_MAX: Final = 2
"""Arrays kept for each size."""

SIZES_MAX: Final = 2
"""Sizes kept; the fragments of a model have about one."""

_spare: dict[int, list[F32]] = {}


class _Loan:
    """Memory for one array: what NumPy holds on to as long as anything looks at it."""

    def __init__(self, memory: F32) -> None:
        self._memory = memory
        self.__array_interface__: Mapping[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        kept = _spare.setdefault(self._memory.size, [])
        if len(kept) < SPARE_MAX:
            kept.append(self._memory)
        while len(_spare) > SIZES_MAX:
            _spare.pop(next(iter(_spare)), None)


def empty(numel: int) -> F32:
    """A flat float32 array of any content, writable; nobody else has it."""
    if numel < LARGE:
        return np.empty(numel, dtype=np.float32)
    try:
        memory = _spare[numel].pop()
    except (KeyError, IndexError):
        memory = np.empty(numel, dtype=np.float32)
    return np.asarray(_Loan(memory))


def trim() -> int:
    """Gives spare memory back to the system; how many bytes."""
    freed = sum(array.nbytes for kept in _spare.values() for array in kept)
    _spare.clear()
    return freed
