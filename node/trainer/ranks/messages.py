"""What rank 0 of a trainer says to the other ranks, and what they say back.

Framed as `node.trainer.link.messages` is, over a socket pair each. Gradients and weights do not
travel here: they go through torch's process group, device to device. A rank does nothing but what
it is told, in the order told.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from node.trainer.link.messages import Configure, Failed
from protocol import decoders
from protocol.ids import Count

Rank = Annotated[int, Meta(ge=1, le=1024)]


class Follow(Struct, frozen=True, array_like=True, tag=True):
    """The first, sent once. Answered by `Following` or `Failed`."""

    configure: Configure
    """What the daemon said, with this rank's part of threads and memory."""
    rank: Rank


class Share(Struct, frozen=True, array_like=True, tag=True):
    """One local step: the batch, of which every rank works on its part, and the learning rate.

    Every rank then agrees whether the step counts, adds up the gradients and moves its weights.
    """

    local_step: Count
    """Number of the step, from 0."""
    pieces: tuple[tuple[Count, Count, Count], ...]
    """Leased position, first sequence in its block, sequences."""
    learning_rate: float
    duty_frac: float


class Abandon(Struct, frozen=True, array_like=True, tag=True):
    """The step under way shall not count; means nothing once it is over."""


class SpreadWeights(Struct, frozen=True, array_like=True, tag=True):
    """Rank 0's weights of a fragment become everybody's."""

    fragment: Count


class SpreadMoments(Struct, frozen=True, array_like=True, tag=True):
    """Rank 0's optimizer state of a fragment becomes everybody's."""

    fragment: Count


class Following(Struct, frozen=True, array_like=True, tag=True):
    """The model and the text are there."""

    device: str


Order = Follow | Share | Abandon | SpreadWeights | SpreadMoments
Answer = Following | Failed

ORDERS: Final = decoders.msgpack_decoder(Order)
ANSWERS: Final = decoders.msgpack_decoder(Answer)
