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


class Gather(Struct, frozen=True, array_like=True, tag=True):
    """Every rank gives its part of a fragment's weights, or of its moments, to rank 0."""

    fragment: Count
    is_moments: bool = False


class Change(Struct, frozen=True, array_like=True, tag=True):
    """A fragment's values, which rank 0 has, change everybody's part of its weights."""

    fragment: Count
    kept_frac: Annotated[float, Meta(ge=0.0, lt=1.0)] | None
    """How much stays of the former weights; None: the values are added to them."""


class Look(Struct, frozen=True, array_like=True, tag=True):
    """Rank 0 measures samples of this shape, which it sends: all compute along."""

    shape: tuple[Count, ...]


class Sample(Struct, frozen=True, array_like=True, tag=True):
    """Rank 0 samples text: all compute along."""

    ids: tuple[Count, ...]
    tokens: Count
    temperature: float
    end: Count


class Following(Struct, frozen=True, array_like=True, tag=True):
    """The model and the text are there."""

    device: str


Order = Follow | Share | Abandon | SpreadWeights | SpreadMoments | Gather | Change | Look | Sample
Answer = Following | Failed

ORDERS: Final = decoders.msgpack_decoder(Order)
ANSWERS: Final = decoders.msgpack_decoder(Answer)
