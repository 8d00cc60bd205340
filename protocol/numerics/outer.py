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
from typing import TypeAlias

import numpy as np
from blake3 import blake3

from protocol import limits
from protocol.errors import InternalError
from protocol.numerics import buffers, codecs
from protocol.numerics.chunks import content
from protocol.numerics.codecs import F32, Payload
from protocol.numerics.compiled import kernels
from protocol.numerics.workers import ALONE, Workers, pieces
from protocol.project import CodecName

_Rates: TypeAlias = tuple[np.float32, np.float32, bool]
"""Learning rate, coefficient of momentum, and whether it is Nesterov's."""


def outer_step(
    theta: F32,
    momentum: F32,
    g: F32,
    *,
    learning_rate: float,
    momentum_coefficient: float,
    nesterov: bool = True,
    workers: Workers = ALONE,
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
    rates = np.float32(learning_rate), np.float32(momentum_coefficient), nesterov
    return _stepped(theta, momentum, lambda start, stop, _: g[start:stop], rates, workers)[:2]


def outer_step_by(
    theta: F32,
    momentum: F32,
    payload: Payload,
    *,
    codec: CodecName,
    learning_rate: float,
    momentum_coefficient: float,
    nesterov: bool = True,
    is_hashed: bool = True,
    workers: Workers = ALONE,
) -> tuple[F32, F32, list[tuple[bytes, bytes]]]:
    """`outer_step` along what a payload decodes to, without decoding it whole; and, for each
    `STATE_CHUNK_BYTES` of the results, the blake3 digests of both, taken while they are at hand.
    Where not `is_hashed`, those are digests of nothing.

    Raises: MalformedPayload if it does not decode; otherwise as `outer_step`.
    """
    _require_equal(theta, momentum)
    rates = np.float32(learning_rate), np.float32(momentum_coefficient), nesterov

    def decoded(start: int, stop: int, scratch: F32) -> F32:
        codecs.decode_into(codec, payload, theta.size, start, scratch[: stop - start])
        return scratch[: stop - start]

    return _stepped(theta, momentum, decoded, rates, workers, is_hashed=is_hashed)


def _stepped(
    theta: F32,
    momentum: F32,
    g_of: Callable[[int, int, F32], F32],
    rates: _Rates,
    workers: Workers,
    *,
    is_hashed: bool = False,
) -> tuple[F32, F32, list[tuple[bytes, bytes]]]:
    """g_of: the displacement between two elements; it may be put into the array it is given."""
    theta_next, momentum_next = buffers.empty(theta.size), buffers.empty(theta.size)
    # What is hashed at once is better left in a cache.
    is_streamed = not is_hashed and all(map(buffers.is_streamed, (theta_next, momentum_next)))

    def work(part: tuple[int, int]) -> tuple[bytes, bytes]:
        scratch = np.empty(codecs.CHUNK, np.float32)
        hashers = blake3(), blake3()
        for start, stop in pieces(part[1] - part[0], part[0], codecs.CHUNK):
            here, g = slice(start, stop), g_of(start, stop, scratch)
            moved, buffer = theta_next[here], momentum_next[here]
            if not _step(theta[here], momentum[here], g, rates, (moved, buffer), is_streamed):
                raise codecs.NonFinite("the outer step left the range of float32")
            if is_hashed:
                hashers[0].update(content(moved))
                hashers[1].update(content(buffer))
        return hashers[0].digest(), hashers[1].digest()

    digests = workers.map(work, pieces(theta.size, 0, limits.STATE_CHUNK_BYTES // 4))
    return theta_next, momentum_next, digests


def _step(
    theta: F32, momentum: F32, g: F32, rates: _Rates, into: tuple[F32, F32], is_streamed: bool
) -> bool:
    """One chunk, into the next weights and momentum; whether all of it is finite."""
    if kernels.IS_COMPILED:
        return kernels.outer(theta, momentum, g, *rates, *into, is_streamed)
    # Overflow is looked for in the results; NumPy's warning would only repeat it.
    with np.errstate(over="ignore", invalid="ignore"):
        _twin_step(theta, momentum, g, rates, *into)
    return all(bool(np.isfinite(one).all()) for one in into)


def _twin_step(
    theta: F32,
    momentum: F32,
    g: F32,
    rates: _Rates,
    moved: F32,
    buffer: F32,
) -> None:
    """What the kernel does, in NumPy."""
    eta, mu, nesterov = rates
    np.multiply(momentum, mu, out=buffer)
    codecs.flush(buffer)
    buffer += g
    codecs.flush(buffer)
    if nesterov:
        np.multiply(buffer, mu, out=moved)
        codecs.flush(moved)
        moved += g
        codecs.flush(moved)
        moved *= eta
    else:
        np.multiply(buffer, eta, out=moved)
    codecs.flush(moved)
    np.subtract(theta, moved, out=moved)
    codecs.flush(moved)


def encode_with_feedback(
    codec: CodecName,
    values: F32,
    residual: F32,
    *,
    minus: F32 | None = None,
    workers: Workers = ALONE,
) -> tuple[memoryview, F32]:
    """The payload of values - minus + residual, and the residual for the next time.

    The new residual is what this payload could not say, up to one rounding. The caller keeps the
    old one until it knows that the payload counted.
    Raises: NonFinite if the sum is not finite or too large for the codec.
    """
    _require_equal(values, residual, *(() if minus is None else (minus,)))
    draft, left = codecs.Draft(codec, values.size), buffers.empty(values.size)
    is_streamed = buffers.is_streamed(left)

    def work(part: tuple[int, int]) -> None:
        here = slice(*part)
        base = None if minus is None else minus[here]
        draft.tell(
            part[0],
            values[here],
            minus=base,
            residual=residual[here],
            left=left[here],
            is_streamed=is_streamed,
        )

    workers.map(work, pieces(values.size))
    return draft.payload, left


def digest(blob: F32 | Payload) -> bytes:
    """The 32-byte blake3 address of a blob: of bytes as they are, of an array as f32 payload."""
    return blake3(content(blob) if isinstance(blob, np.ndarray) else blob).digest()


def _require_equal(first: F32, *others: F32) -> None:
    codecs.require_flat(first)
    for other in others:
        codecs.require_flat(other)
        if other.size != first.size:
            raise InternalError(f"arrays of {first.size} and {other.size} elements do not match")
