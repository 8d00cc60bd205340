"""Merge, outer step and codecs once more, as naively as the formulas read, to compare against.

Whole arrays in float64, no chunks, no streaming, nothing imported from `protocol.numerics`.
Source: Decoupled DiLoCo, arXiv 2604.21428.
"""

from __future__ import annotations

import numpy as np


def clip_scales(pushes, weights, clip_to_median):
    """What each push is multiplied by so that its norm is at most that multiple of the median."""
    norms = [np.linalg.norm(push.astype(np.float64)) for push in pushes]
    counted = [n for n, w in zip(norms, weights, strict=True) if w > 0]
    if len(counted) < 3:
        return [1.0] * len(pushes)
    limit = clip_to_median * float(np.median(counted))
    return [limit / n if w > 0 and n > limit else 1.0 for n, w in zip(norms, weights, strict=True)]


def weighted_mean(vectors, weights):
    return sum(w * v for v, w in zip(vectors, weights, strict=True)) / sum(weights)


def radial_directional_average(vectors, weights):
    """(sum w|v| / sum w) * phi(sum w phi(v)) with phi(x) = x / |x| and phi(0) = 0."""
    norms = [np.linalg.norm(v) for v in vectors]
    radius = sum(w * n for n, w in zip(norms, weights, strict=True)) / sum(weights)
    units = [v / n if n > 0 else v for v, n in zip(vectors, norms, strict=True)]
    direction = sum(w * u for u, w in zip(units, weights, strict=True))
    if not any(norms):
        return direction
    if np.linalg.norm(direction) < 1e-12 * sum(weights):
        return weighted_mean(vectors, weights)
    return radius * direction / np.linalg.norm(direction)


def merge(pushes, weights, spans, clip_to_median):
    """The merged fragment in float64; `spans` are (offset, numel, rule)."""
    merged = np.zeros(len(pushes[0]))
    if sum(weights) == 0:
        return merged
    scales = clip_scales(pushes, weights, clip_to_median)
    for offset, numel, rule in spans:
        here = slice(offset, offset + numel)
        vectors = [
            s * push[here].astype(np.float64) for push, s in zip(pushes, scales, strict=True)
        ]
        average = radial_directional_average if rule == "rda" else weighted_mean
        merged[here] = average(vectors, weights)
    return merged


def outer_step(theta, momentum, g, learning_rate, momentum_coefficient, nesterov=True):
    """SGD with momentum in float64: the ideal that the float32 step approximates."""
    theta, momentum, g = (np.asarray(a, dtype=np.float64) for a in (theta, momentum, g))
    momentum = momentum_coefficient * momentum + g
    if not nesterov:
        return theta - learning_rate * momentum, momentum
    return theta - learning_rate * (g + momentum_coefficient * momentum), momentum


def rounded(value):
    """One float64 result as the float32 the wire rules ask for: nearest, no subnormal, no -0.

    The product of two float32 is exact in float64, and for their sum rounding twice is the same as
    rounding once, so this is the correctly rounded float32 operation.
    """
    single = float(np.float32(value))
    return single if abs(single) >= 2.0**-126 else 0.0


def outer_step_exact(theta, momentum, g, learning_rate, momentum_coefficient, nesterov=True):
    """The outer step element by element in Python floats, rounded after each operation."""
    eta, mu = float(np.float32(learning_rate)), float(np.float32(momentum_coefficient))
    thetas, buffers = [], []
    for t, b, d in zip(theta.tolist(), momentum.tolist(), g.tolist(), strict=True):
        buffer = rounded(rounded(mu * b) + d)
        ahead = rounded(d + rounded(mu * buffer)) if nesterov else buffer
        thetas.append(rounded(t - rounded(eta * ahead)))
        buffers.append(buffer)
    return np.array(thetas, dtype=np.float32), np.array(buffers, dtype=np.float32)


def wave(numel, seed=1):
    """Float32 in about [-1, 1), the same bits on every platform and without a random source."""
    steps = (np.arange(numel, dtype=np.uint64) + np.uint64(seed)) * np.uint64(2654435761)
    return ((steps % np.uint64(1 << 24)).astype(np.float64) / (1 << 23) - 1).astype(np.float32)
