"""A hint to the CPU: this memory is needed soon. It changes no value, so twins need no such thing.

The processor's own prefetcher stops at each page of 4 KiB; kernels that stream through arrays
larger than any cache then wait for memory at every page.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from protocol.numerics.compiled.compiling import extending, nb
from protocol.numerics.compiled.vectors import load_line

LINE_BYTES = 64
"""Of the caches of every CPU that we know of; with another one the hints are only less good."""


def ahead(values: NDArray[Any], start: int, stop: int) -> None:
    """Begins to load values[start:stop] where this is compiled; does nothing otherwise.

    The range may reach beyond the array: no such memory is touched.
    """


def _compile() -> None:
    """Teaches numba what `ahead` is in compiled code."""
    if nb is None:
        return

    def load(_typing: Any, values: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, given[0])
            load_line(builder, builder.gep(array.data, [given[1]]))
            return context.get_dummy_value()

        return nb.types.void(values, index), emit

    line_of = extending.intrinsic(load)

    def compiled(values: Any, start: Any, stop: Any) -> Any:
        step = LINE_BYTES * 8 // values.dtype.bitwidth

        def body(values: Any, start: Any, stop: Any) -> None:
            for index in range(start, stop, step):
                line_of(values, index)

        return body

    extending.overload(ahead, inline="always")(compiled)


_compile()
