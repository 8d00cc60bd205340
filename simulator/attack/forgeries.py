"""What a hostile learner hands in instead of what it learned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from protocol.numerics.codecs import F32

Forge = Callable[[F32, np.random.Generator], F32]
"""From an honest displacement to the one that is handed in; both are flat f32, of one length."""


def flipped(factor: float) -> Forge:
    """Backwards, and `factor` times as far."""

    def forge(values: F32, chance: np.random.Generator) -> F32:
        return values * np.float32(-factor)

    return forge


def noise(factor: float) -> Forge:
    """Nowhere, and `factor` times as far."""

    def forge(values: F32, chance: np.random.Generator) -> F32:
        drawn = chance.standard_normal(values.size, dtype=np.float32)
        return drawn * np.float32(factor * _length(values) / _length(drawn))

    return forge


def constant(value: float) -> Forge:
    """The same number everywhere."""

    def forge(values: F32, chance: np.random.Generator) -> F32:
        return np.full_like(values, value)

    return forge


def spike(factor: float) -> Forge:
    """Honest, but for a few elements in one place that are `factor` times the whole length."""

    def forge(values: F32, chance: np.random.Generator) -> F32:
        forged, start = values.copy(), int(chance.integers(0, max(1, values.size - 64)))
        forged[start : start + 64] = factor * _length(values) / 8
        return forged

    return forge


def turning(forge: Forge, after: int) -> Forge:
    """Honest for so many pushes, and then not."""
    pushes = 0

    def forge_later(values: F32, chance: np.random.Generator) -> F32:
        nonlocal pushes
        pushes += 1
        return values if pushes <= after else forge(values, chance)

    return forge_later


def _length(values: F32) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


FORGERIES: dict[str, Callable[[], Forge]] = {
    "flip-1": lambda: flipped(1.0),
    "flip-10": lambda: flipped(10.0),
    "flip-100": lambda: flipped(100.0),
    "ipm": lambda: flipped(0.1),
    "noise-1": lambda: noise(1.0),
    "noise-10": lambda: noise(10.0),
    "constant": lambda: constant(1.0),
    "spike": lambda: spike(10.0),
    "turning": lambda: turning(flipped(10.0), 20),
}
"""By name; each call makes one liar's own."""
