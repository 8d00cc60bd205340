"""First weights of an adapter, the same bits on every machine.

As `peft` begins: A is uniform within 1 / sqrt(in), B is zero, so version 0 is the base model. The
numbers come from Philox, whose raw stream NumPy promises to keep, because A may stay as it was
drawn, and then every learner draws it for itself.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from blake3 import blake3

from node.trainer.adapters.table import is_first
from node.trainer.model import Floats, layout_of
from protocol import project

_CONTEXT: Final = "shoal 1 adapter"
_BITS: Final = 24
"""As many as an f32 between 0 and 1 has in steps of equal size."""


def first_matrix(seed: int, name: str, shape: tuple[int, ...]) -> Floats:
    """A [rank, in], of the tensor with this name."""
    material = seed.to_bytes(8, "little") + name.encode()
    key = int.from_bytes(blake3(material, derive_key_context=_CONTEXT).digest(16), "little")
    raw = np.random.Philox(key=key).random_raw(math.prod(shape))
    unit = (raw >> np.uint64(64 - _BITS)).astype(np.float64) / 2**_BITS
    bound = 1.0 / math.sqrt(shape[1])
    return ((2.0 * unit - 1.0) * bound).astype(np.float32).reshape(shape)


def first_adapter(genesis: project.Genesis) -> list[Floats]:
    """Version 0 of every fragment, f32 [numel]."""
    found = []
    for fragment in layout_of(genesis).fragments:
        values = np.zeros(fragment.numel, np.float32)
        for span in fragment.spans:
            if is_first(span.name):
                drawn = first_matrix(genesis.seed, span.name, span.shape)
                part = drawn.reshape(-1)[span.start : span.end]
                values[span.offset : span.offset + span.numel] = part
        found.append(values)
    return found
