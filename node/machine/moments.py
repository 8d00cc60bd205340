"""Optimizer state between learners: how a fragment's moments lie in an array, and which are honest.

One f32 array for each fragment: first moments [numel], second moments [numel], both laid out as the
fragment itself with zeros as padding, then one step counter for each of its tensors. f32 is what
the optimizer holds, so that a copy is exact.

Nobody certifies moments, so they are held against what AdamW can produce at all. For a gradient g
of any history, m is a mean of g with weights (1-b1) b1^i, and v one of g^2 with weights
(1-b2) b2^i. By Cauchy and Schwarz m^2 <= v * `ratio_max`, and clipping bounds the sum of v by
`grad_norm_max`^2. Whatever passes can therefore move no weight further than an honest state in its
worst case, and is forgotten after about 1 / (1-b2) local steps.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import MalformedPayload
from protocol.fragments import Fragment, Layout
from protocol.project import InnerSpec

F32 = NDArray[np.float32]

STEPS_MAX = 1 << 24
"""Beyond this an f32 counter stands still, in the optimizer too."""

ROUNDING = 1e-3
"""Share by which sums in f32 may pass a bound that holds in exact arithmetic."""

TINY = 1e-15
"""A first moment this small moves nothing: AdamW adds 1e-8 to the root of the second."""


def moments_numel(fragment: Fragment) -> int:
    """Elements of a fragment's array."""
    return 2 * fragment.numel + len(fragment.spans)


def chunk_lengths(size_bytes: int) -> list[int]:
    """Lengths of the blobs in which so many bytes travel."""
    chunk = limits.MOMENTS_CHUNK_BYTES
    return [min(chunk, size_bytes - first) for first in range(0, size_bytes, chunk)]


def pieces(moments: F32) -> list[memoryview]:
    """The content of an array as blobs; nothing is copied."""
    view, first, found = moments.view(np.uint8).data, 0, []
    for length in chunk_lengths(moments.nbytes):
        found.append(view[first : first + length])
        first += length
    return found


def steps_of(layout: Layout, moments: list[F32]) -> int:
    """The largest step counter in the arrays of all fragments."""
    pairs = zip(layout.fragments, moments, strict=True)
    counters = np.concatenate([values[2 * fragment.numel :] for fragment, values in pairs])
    return int(counters.max(initial=0.0))


def ratio_max(inner: InnerSpec, steps: int) -> float:
    """Largest m^2 / v that this many steps can lead to; `bounds_moments` must hold."""
    share = inner.beta1**2 / inner.beta2
    terms = (1.0 - share**steps) / (1.0 - share)
    return (1.0 - inner.beta1) ** 2 / (1.0 - inner.beta2) * terms


def check_moments(fragment: Fragment, values: F32, inner: InnerSpec) -> None:
    """Raises MalformedPayload unless AdamW with these settings could have come to this state."""
    if values.dtype != np.float32 or values.shape != (moments_numel(fragment),):
        raise MalformedPayload(f"moments of fragment {fragment.index} have another shape")
    if not np.isfinite(values).all():
        raise MalformedPayload(f"moments of fragment {fragment.index} are not finite")
    n = fragment.numel
    first, second, steps = values[:n], values[n : 2 * n], values[2 * n :]
    if (second < 0).any():
        raise MalformedPayload(f"second moments of fragment {fragment.index} are negative")
    mass, mass_max = float(np.sum(second, dtype=np.float64)), inner.grad_norm_max**2
    if mass > mass_max * (1.0 + ROUNDING):
        raise MalformedPayload(
            f"second moments of fragment {fragment.index} add up to {mass:.3g}, and clipping "
            f"leaves at most {mass_max:.3g}"
        )
    for span, count in zip(fragment.spans, steps.tolist(), strict=True):
        if count != math.floor(count) or not 1 <= count <= STEPS_MAX:
            raise MalformedPayload(f"{span.name} has taken {count} steps")
        at = slice(span.offset, span.offset + span.padded)
        reach = np.sqrt(second[at] * np.float32(ratio_max(inner, int(count)))) * (1.0 + ROUNDING)
        if (np.abs(first[at]) > reach + TINY).any():
            raise MalformedPayload(f"first moments of {span.name} are too large for the second")
