"""Compiling the kernels before they are needed: the first call of each takes a moment."""

from __future__ import annotations

import numpy as np

from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import buffers
from protocol.numerics.codecs import decode, decode_into
from protocol.numerics.compiled import kernels
from protocol.numerics.merge import Contribution, Reference, merge_fragment
from protocol.numerics.outer import encode_with_feedback, outer_step
from protocol.numerics.picked import MANY
from protocol.project import CodecName
from protocol.standing import LEARNERS_COMPARED_MIN

_CODECS: tuple[CodecName, ...] = ("int8", "int4")
_SIZE = MANY * BLOCK
"""Fewer blocks are added without a kernel."""


def warm_up() -> None:
    """Calls every kernel once on a few blocks; returns at once where nothing is compiled.

    Takes seconds the first time on a machine, and a fraction of one later where a folder for
    compiled kernels is set (`host.runtime.kernel_cache`). Gives the interpreter's lock
    free for a part of that time only, so call it before there is anything urgent.
    """
    if not kernels.IS_COMPILED:
        return
    values = np.linspace(-1.0, 1.0, _SIZE, dtype=np.float32)
    large = buffers.empty(buffers.LARGE)  # At a border, as what is streamed must be.
    for codec in _CODECS:
        zeros = np.zeros_like(values)
        for minus in (None, zeros):
            payload, left = encode_with_feedback(codec, values, zeros, minus=minus)
        parts = [
            Contribution((bytes(32), 0, at), payload, codec, 1.0)
            for at in range(LEARNERS_COMPARED_MIN)
        ]
        for rule in ("rda", "mean"):
            span = TensorSpan("warm", (_SIZE,), _SIZE, rule, 0)
            fragment = Fragment(0, (span,), _SIZE)
            for reference in (None, Reference(values, 0.0, ())):
                # What a few pushes are compared with is not what many are.
                for some in (parts, parts[1:]):
                    merge_fragment(some, fragment, 10.0, reference)
        g = decode(codec, payload, _SIZE)
        decode_into(codec, payload, _SIZE, 0, large[:_SIZE], is_streamed=True)
        outer_step(values, left, g, learning_rate=0.5, momentum_coefficient=0.5)
