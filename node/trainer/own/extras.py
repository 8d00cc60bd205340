"""What training code keeps besides weights and moments: small tensors, as bytes of safetensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from safetensors import SafetensorError
from safetensors.torch import load, save

from node.trainer.failures import TrainerFailure
from node.trainer.own.interface import State
from protocol.errors import CorruptState

if TYPE_CHECKING:
    from torch import Tensor

EXTRAS_BYTES_MAX: Final = 1 << 20
"""They travel in a frame of the trainer's link, beside other things."""

IN_ARRAYS: Final = frozenset({"first", "second", "step"})
"""Keys that lie in the arrays of `node.machine.moments`."""


def encode(state: State) -> bytes:
    """Everything but moments and counters; empty if there is nothing else.

    TrainerFailure if it is too much.
    """
    named = {
        f"{name}/{key}": values.detach().cpu().clone().contiguous()
        for name, kept in state.items()
        for key, values in kept.items()
        if key not in IN_ARRAYS
    }
    if not named:
        return b""
    content: bytes = save(named)
    if len(content) > EXTRAS_BYTES_MAX:
        raise TrainerFailure(
            "model",
            f"The training code keeps {len(content):,} bytes besides `first`, `second` and `step`"
            f" of each tensor; at most {EXTRAS_BYTES_MAX:,} can be kept for it.",
        )
    return content


def decode(content: bytes) -> State:
    """What `encode` was given. CorruptState for other bytes."""
    found: dict[str, dict[str, Tensor]] = {}
    if not content:
        return found
    try:
        named = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CorruptState(f"the training code's state cannot be read ({error})") from error
    for path, values in named.items():
        name, _, key = path.rpartition("/")
        found.setdefault(name, {})[key] = values
    return found
