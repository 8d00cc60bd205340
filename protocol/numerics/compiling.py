"""How kernels are compiled, by numba, and kept on disk.

numba keeps what it compiled as long as the file with the function is the same. Kernels are made of
several files, one of which writes down their inner loops, so what is kept is found by the content
of all of them: after an update nobody goes on with a part of the former loops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module, util
from typing import Any, Final, TypeVar

from blake3 import blake3

nb: Any
try:
    nb = import_module("numba")
except ImportError:  # The twins do the same, slower.
    nb = None

_SOURCES: Final = ("compiling", "kernels", "prefetch", "sum_kernels", "vectors")

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def source(name: str) -> str:
    """What is written in one of these files."""
    module = f"{__package__}.{name}"
    spec: Any = util.find_spec(module)
    found: str | None = spec.loader.get_source(module)
    assert found is not None, "kernels come with their sources, as numba needs"
    return found


def sources() -> str:
    """A name for the content of all files that kernels are made of."""
    hasher = blake3()
    for name in _SOURCES:
        content = source(name).encode()
        hasher.update(len(content).to_bytes(8, "little") + content)
    return hasher.hexdigest(16)


@cache
def _kept() -> Any:
    """numba's store of what is compiled from one function."""
    caching, made_from = import_module("numba.core.caching"), sources()

    class Kept(caching.FunctionCache):  # type: ignore[misc, name-defined]
        def _index_key(self, sig: Any, codegen: Any) -> Any:
            return (made_from, *super()._index_key(sig, codegen))

    return Kept


def compiled(function: _Kernel) -> _Kernel:
    """The function, compiled at its first call and kept on disk; itself where numba is missing."""
    if nb is None:
        return function
    made: Any = nb.njit(nogil=True, error_model="numpy")(function)
    made._cache = _kept()(function)
    kernel: _Kernel = made
    return kernel
