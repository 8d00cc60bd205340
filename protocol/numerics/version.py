"""From one version of a fragment to the next: the one place where a payload becomes weights.

The merged displacement counts as it decodes, so that the leader, a standby, a learner and a
replayer compute the same bits from the same payload.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.codecs import decode
from protocol.numerics.outer import digest, outer_step
from protocol.project import CodecName, OuterSpec
from protocol.records import StateDigests

F32 = NDArray[np.float32]


def state_digests(theta: F32, momentum: F32) -> StateDigests:
    """The content hashes that a record certifies."""
    return StateDigests(digest(theta), digest(momentum))


def next_version(
    theta: F32, momentum: F32, payload: bytes | memoryview, *, codec: CodecName, outer: OuterSpec
) -> tuple[F32, F32, StateDigests]:
    """The state after the outer step of this payload: new arrays, and their digests.

    Raises MalformedPayload if the payload does not decode, NonFinite if the step overflows.
    """
    moved, velocity = outer_step(
        theta,
        momentum,
        decode(codec, payload, theta.size),
        learning_rate=outer.learning_rate,
        momentum_coefficient=outer.momentum,
    )
    return moved, velocity, state_digests(moved, velocity)
