"""Float32 arrays for tests of arithmetic."""

from __future__ import annotations

import numpy as np


def drawn(size, seed=0):
    """Normally distributed."""
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def spread(size, seed=0):
    """Numbers of many magnitudes."""
    generator = np.random.default_rng(seed)
    wide = generator.standard_normal(size) * 10.0 ** generator.integers(-20, 20, size)
    return wide.astype(np.float32)
