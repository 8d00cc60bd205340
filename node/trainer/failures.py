"""Why a trainer ends, told apart from whatever exception it met."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from node.trainer.link.messages import Failed, FailureKind
from protocol.errors import CorruptState, ShoalError, UserError

OOM_WORDS: Final = (
    "out of memory",
    "can't allocate memory",
    "alloc_failed",
    "resource_exhausted",
)
"""How back-ends without an exception class of their own say it: MPS, CPU, cuBLAS, XLA."""

DEVICE_WORDS: Final = ("cuda error", "cudnn", "nccl", "mps backend", "no kernel image", "hip error")

OOM_ADVICE: Final = "Lower the micro-batch, or free memory on this machine."


class StepAbandoned(Exception):
    """Raised between two micro-batches by whoever wants no whole local step any more."""


class RankLost(ShoalError):
    """The ranks of a trainer cannot reach each other any more: one of them ended, or hangs."""


class TrainerFailure(ShoalError):
    """The trainer cannot go on, and knows what kind of trouble it is in."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


@contextmanager
def failing_as(kind: FailureKind) -> Iterator[None]:
    """Turns errors that the user can fix into a TrainerFailure of this kind."""
    try:
        yield
    except (UserError, CorruptState) as error:
        raise TrainerFailure(kind, str(error)) from error


def failure_of(error: BaseException) -> Failed:
    """The event that tells the daemon about `error`; unknown errors are ours (`internal`)."""
    if isinstance(error, TrainerFailure):
        return Failed(error.kind, str(error))
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        return Failed("oom", f"Out of memory ({text}). {OOM_ADVICE}")
    if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in DEVICE_WORDS):
        return Failed("device", f"The accelerator failed ({text}). Check its driver.")
    return Failed("internal", text)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less memory per step might have avoided `error`."""
    # If torch is not loaded, torch cannot have raised; importing it here would cost seconds.
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in words for word in OOM_WORDS)
