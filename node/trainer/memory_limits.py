"""The owner's ceilings on memory, as hard limits on the trainer: an allocation fails, nobody's
machine does.

What fails is told as out of memory, and the daemon tries again with a smaller micro-batch.
"""

from __future__ import annotations

import math
import resource
from typing import Final

import torch

from host.runtime.process_status import status_bytes
from node.trainer.failures import TrainerFailure

CONTEXT_BYTES: Final = 512 << 20
"""What a driver takes for a process besides what torch allocates; torch does not count it."""


def limit_device_memory(device: torch.device, frac: float) -> None:
    """Lets torch allocate no more than this share of the accelerator's memory, the driver's own
    part included as far as it is known.

    frac: (0, 1]; 1 leaves it as it is. Does nothing on the processor. TrainerFailure where nothing
    would be left.
    """
    if frac >= 1.0 or device.type == "cpu":
        return
    if device.type == "mps":
        torch.mps.set_per_process_memory_fraction(frac)
        return
    library = torch.cuda if device.type == "cuda" else torch.xpu
    total = int(library.get_device_properties(device).total_memory)
    left = frac * total - CONTEXT_BYTES
    if left <= 0:
        raise TrainerFailure(
            "memory",
            f"limits.gpu_memory_percent leaves nothing of {total / 2**30:.1f} GiB once the driver "
            "has its part. Raise it, or set when.devices so that the processor trains.",
        )
    library.set_per_process_memory_fraction(left / total, device)


def limit_host_memory(
    bytes_max: int | None, *, ceiling: int | None = None, step_bytes: int = 0
) -> None:
    """Lets this process grow until it holds so many bytes; None leaves it as it is.

    ceiling: what all of Shoal may hold here, `bytes_max` included; step_bytes: what the first local
    step takes at least beside what is held. With both a refusal says what would be enough.

    Must be called when everything is loaded. The kernel's limit counts what was asked for, not what
    is held, so it is set by the difference. TrainerFailure if there is too little already.
    """
    if bytes_max is None:
        return
    asked, held = status_bytes("VmData"), status_bytes("VmRSS")
    if asked is None or held is None:
        return  # Not Linux: the daemon's own look at it must do.
    room = bytes_max - held
    if room <= 0:
        enough = (bytes_max if ceiling is None else ceiling) - room + step_bytes
        raise TrainerFailure(
            "memory",
            f"The trainer holds {held / 2**30:.2f} GiB before its first local step, and "
            f"limits.ram_bytes_max leaves it {max(0, bytes_max) / 2**30:.2f} GiB. Raise it to at "
            f"least {_rounded_up(enough)}: shoal config set limits.ram_bytes_max "
            f"'{_rounded_up(enough)}'. Or leave this project.",
        )
    resource.setrlimit(resource.RLIMIT_DATA, (asked + room, resource.RLIM_INFINITY))


def _rounded_up(count: int) -> str:
    """In tenths of a GiB, as settings are written."""
    return f"{math.ceil(count / 2**30 * 10) / 10:.1f} GiB"
