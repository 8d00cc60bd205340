"""Compiling the kernels before they are needed: the first call of each takes a moment."""

from __future__ import annotations

import numpy as np

from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import buffers
from protocol.numerics.codecs import decode, decode_into
from protocol.numerics.compiled import kernels, sum_kernels
from protocol.numerics.merge import Contribution, Reference, merge_fragment
from protocol.numerics.outer import encode_with_feedback, outer_step
from protocol.project import CodecName

_CODECS: tuple[CodecName, ...] = ("int8", "int4")


def warm_up() -> None:
    """Calls every kernel once on one block; returns at once where nothing is compiled.

    Takes seconds the first time on a machine, and a fraction of one later where a folder for
    compiled kernels is set (`host.runtime.kernel_cache`). Gives the interpreter's lock
    free for a part of that time only, so call it before there is anything urgent.
    """
    if not kernels.IS_COMPILED:
        return
    values = np.linspace(-1.0, 1.0, BLOCK, dtype=np.float32)
    large = buffers.empty(buffers.LARGE)  # At a border, as what is streamed must be.
    for codec in _CODECS:
        zeros = np.zeros_like(values)
        for minus in (None, zeros):
            payload, left = encode_with_feedback(codec, values, zeros, minus=minus)
        parts = [Contribution((bytes(32), 0, at), payload, codec, 1.0) for at in range(2)]
        for rule in ("rda", "mean"):
            span = TensorSpan("warm", (BLOCK,), BLOCK, rule, 0)
            fragment = Fragment(0, (span,), BLOCK)
            for reference in (None, Reference(values, 0.0, ())):
                merge_fragment(parts, fragment, 10.0, reference)
        g = decode(codec, payload, BLOCK)
        decode_into(codec, payload, BLOCK, 0, large[:BLOCK], is_streamed=True)
        sum_kernels.products(values, g, np.empty(1, np.float64))
        outer_step(values, left, g, learning_rate=0.5, momentum_coefficient=0.5)
