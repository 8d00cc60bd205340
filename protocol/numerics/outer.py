"""The outer step that every replica repeats, and quantisation with error feedback.

The outer step is SGD with Nesterov or plain momentum on the decoded merged displacement. Whoever
holds the same weights, momentum and payload computes the same next state bit for bit: each product
and each sum is rounded to float32 on its own (a fused multiply-add would round once for two), and
each result that is subnormal becomes +0, so a CPU that flushes subnormals agrees with one that does
not.

Source: Decoupled DiLoCo, arXiv 2604.21428; the rounding rules are ours.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from protocol.errors import InternalError
from protocol.numerics import kernels
from protocol.numerics.codecs import (
    CHUNK,
    F32,
    NonFinite,
    Payload,
    Sink,
    flush,
    require_flat,
)
from protocol.project import CodecName


def outer_step(
    theta: F32,
    momentum: F32,
    g: F32,
    *,
    learning_rate: float,
    momentum_coefficient: float,
    nesterov: bool = True,
) -> tuple[F32, F32]:
    """The next weights and the next momentum, as new arrays.

    `g` is a displacement "old minus new": moving along it goes back. B' = mu B + g, then
    theta' = theta - eta (g + mu B'), with mu and eta rounded to float32; without `nesterov`
    theta' = theta - eta B'. Both are torch's SGD without dampening.
    All arrays are flat float32 of one length, a whole number of blocks.
    Raises: NonFinite if a result overflows or an input was not finite; InternalError for another
    shape or type.
    """
    _require_equal(theta, momentum, g)
    eta, mu = np.float32(learning_rate), np.float32(momentum_coefficient)
    theta_next, momentum_next = np.empty_like(theta), np.empty_like(momentum)
    # Overflow is looked for in the results; NumPy's warning would only repeat it.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, theta.size, CHUNK):
            here = slice(start, start + CHUNK)
            buffer, moved = momentum_next[here], theta_next[here]
            if kernels.IS_COMPILED:
                values = theta[here], momentum[here], g[here]
                if not kernels.outer(*values, eta, mu, nesterov, moved, buffer):
                    raise NonFinite("the outer step left the range of float32")
                continue
            np.multiply(momentum[here], mu, out=buffer)
            flush(buffer)
            buffer += g[here]
            flush(buffer)
            if nesterov:
                np.multiply(buffer, mu, out=moved)
                flush(moved)
                moved += g[here]
                flush(moved)
                moved *= eta
            else:
                np.multiply(buffer, eta, out=moved)
            flush(moved)
            np.subtract(theta[here], moved, out=moved)
            flush(moved)
            if not (np.isfinite(moved).all() and np.isfinite(buffer).all()):
                raise NonFinite("the outer step left the range of float32")
    return theta_next, momentum_next


def encode_with_feedback(codec: CodecName, values: F32, residual: F32) -> tuple[bytes, F32, F32]:
    """The payload of values + residual, what it decodes to, and the residual for the next time.

    The new residual is what this payload could not say, up to one rounding. The caller keeps the
    old one until it knows that the payload counted.
    Raises: NonFinite if the sum is not finite or too large for the codec.
    """
    _require_equal(values, residual)
    sink = Sink(codec, values.size)
    decoded, left = np.empty_like(values), np.empty_like(values)
    for start in range(0, values.size, CHUNK):
        here = slice(start, start + CHUNK)
        wanted, told = left[here], decoded[here]
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(values[here], residual[here], out=wanted)
        flush(wanted)
        sink.write(wanted, told)
        wanted -= told
        flush(wanted)
    return sink.payload(), decoded, left


def digest(content: F32 | Payload) -> bytes:
    """The 32-byte blake3 address of a blob: of bytes as they are, of an array as f32 payload."""
    if isinstance(content, np.ndarray):
        require_flat(content)
        return blake3(content.astype("<f4", copy=False).view(np.uint8).data).digest()
    return blake3(content).digest()


def _require_equal(first: F32, *others: F32) -> None:
    require_flat(first)
    for other in others:
        require_flat(other)
        if other.size != first.size:
            raise InternalError(f"arrays of {first.size} and {other.size} elements do not match")
