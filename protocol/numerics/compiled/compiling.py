"""How kernels are compiled by numba, and when the result is kept on disk.

numba keeps a compiled function as long as the one file that defines it stays the same. Kernels are
made of several files, one of which writes down their inner loops. So results are kept only where
the program names a folder that changes with these files (`NUMBA_CACHE_DIR`, which
`host.runtime.kernel_cache` sets); any other program compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

nb: Any
extending: Any
try:
    import numba
    from numba import extending as numba_extending

    nb, extending = numba, numba_extending
except ImportError:  # The definitions in NumPy do the same, slower.
    nb = extending = None

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(function: _Kernel) -> _Kernel:
    """The function, compiled at its first call; itself where numba is missing."""
    if nb is None:
        return function
    is_kept = bool(nb.config.CACHE_DIR)
    kernel: _Kernel = nb.njit(nogil=True, error_model="numpy", cache=is_kept)(function)
    return kernel
