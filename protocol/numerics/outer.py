"""The outer step that every replica repeats, and quantisation with error feedback.

The outer step is SGD with Nesterov or plain momentum on the decoded merged displacement. Whoever
holds the same weights, momentum and payload computes the same next state bit for bit: each product
and each sum is rounded to float32 on its own (a fused multiply-add would round once for two), and
each result that is subnormal becomes +0, so a CPU that flushes subnormals agrees with one that does
not.

Source: Decoupled DiLoCo, arXiv 2604.21428; the rounding rules are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from blake3 import blake3

from protocol.errors import InternalError
from protocol.numerics import buffers, kernels
from protocol.numerics.codecs import (
    CHUNK,
    F32,
    NonFinite,
    Payload,
    Sink,
    decode_range,
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
    rates = learning_rate, momentum_coefficient, nesterov
    return _stepped(theta, momentum, lambda start, stop: g[start:stop], rates)


def outer_step_by(
    theta: F32,
    momentum: F32,
    payload: Payload,
    *,
    codec: CodecName,
    learning_rate: float,
    momentum_coefficient: float,
    nesterov: bool = True,
) -> tuple[F32, F32]:
    """`outer_step` along what a payload decodes to, without decoding it whole.

    Raises: MalformedPayload if it does not decode; otherwise as `outer_step`.
    """
    _require_equal(theta, momentum)
    rates = learning_rate, momentum_coefficient, nesterov
    part = partial(decode_range, codec, payload, theta.size)
    return _stepped(theta, momentum, part, rates)


def _stepped(
    theta: F32,
    momentum: F32,
    g_of: Callable[[int, int], F32],
    rates: tuple[float, float, bool],
) -> tuple[F32, F32]:
    eta, mu, nesterov = np.float32(rates[0]), np.float32(rates[1]), rates[2]
    theta_next, momentum_next = buffers.empty(theta.size), buffers.empty(theta.size)
    # Overflow is looked for in the results; NumPy's warning would only repeat it.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, theta.size, CHUNK):
            here = slice(start, start + CHUNK)
            buffer, moved = momentum_next[here], theta_next[here]
            g = g_of(start, min(start + CHUNK, theta.size))
            if kernels.IS_COMPILED:
                is_sound = kernels.outer(
                    theta[here], momentum[here], g, eta, mu, nesterov, moved, buffer
                )
            else:
                _twin_step(theta[here], momentum[here], g, (eta, mu, nesterov), moved, buffer)
                is_sound = bool(np.isfinite(moved).all() and np.isfinite(buffer).all())
            if not is_sound:
                raise NonFinite("the outer step left the range of float32")
    return theta_next, momentum_next


def _twin_step(
    theta: F32,
    momentum: F32,
    g: F32,
    rates: tuple[np.float32, np.float32, bool],
    moved: F32,
    buffer: F32,
) -> None:
    """What the kernel does, in NumPy."""
    eta, mu, nesterov = rates
    np.multiply(momentum, mu, out=buffer)
    flush(buffer)
    buffer += g
    flush(buffer)
    if nesterov:
        np.multiply(buffer, mu, out=moved)
        flush(moved)
        moved += g
        flush(moved)
        moved *= eta
    else:
        np.multiply(buffer, eta, out=moved)
    flush(moved)
    np.subtract(theta, moved, out=moved)
    flush(moved)


def encode_with_feedback(
    codec: CodecName, values: F32, residual: F32, *, minus: F32 | None = None
) -> tuple[bytes, F32]:
    """The payload of values - minus + residual, and the residual for the next time.

    The new residual is what this payload could not say, up to one rounding. The caller keeps the
    old one until it knows that the payload counted.
    Raises: NonFinite if the sum is not finite or too large for the codec.
    """
    _require_equal(values, residual, *(() if minus is None else (minus,)))
    sink, left = Sink(codec, values.size), buffers.empty(values.size)
    for start in range(0, values.size, CHUNK):
        here = slice(start, start + CHUNK)
        _want(values[here], None if minus is None else minus[here], residual[here], left[here])
        sink.write(left[here], is_consumed=True)
    return sink.payload(), left


def _want(values: F32, minus: F32 | None, residual: F32, out: F32) -> None:
    """Fills `out` with what there is to say, flushed."""
    if kernels.IS_COMPILED:
        kernels.wanted(values, minus, residual, out)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(values if minus is None else values - minus, residual, out=out)
    flush(out)


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
