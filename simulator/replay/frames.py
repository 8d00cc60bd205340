"""What every repeated trainer does with its frames, whichever inner loop stands behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from node.trainer_client.fragment_bank import Delivery, FragmentBank
from protocol.numerics.versions import state_manifests
from protocol.tape import PushCaptured, VersionApplied

F32 = NDArray[np.float32]
Kind = Literal["push", "untried", "diverged", "done"]


class Said(Struct, omit_defaults=True):
    """What came of one push, or of the whole at its end."""

    kind: Kind
    incarnation: int = 0
    sequence: int = 0
    digest: str = ""
    place: str = ""
    text: str = ""
    number: int = 0


class Unreplayable(Exception):
    """This trainer cannot be repeated here, and why."""


def version_path(spool: Path, fragment: int, version: int) -> Path:
    """Where the global value of a fragment's version lies, as f32."""
    return spool / f"{fragment}-{version}.f32"


def delivered(bank: FragmentBank, spool: Path, frame: VersionApplied) -> Delivery:
    """What the trainer was given with this version. Raises Unreplayable where no tape has it."""
    path = version_path(spool, frame.fragment, frame.version)
    try:
        theta = np.fromfile(path, "<f4").astype(np.float32, copy=False)
    except OSError:
        raise Unreplayable(
            f"version {frame.version} of fragment {frame.fragment} is not on any tape here"
        ) from None
    momentum = np.zeros_like(theta)  # Not what it was: the inner loop never sees it.
    state = state_manifests(theta, momentum).digests
    bank.install(frame.fragment, frame.version, state, theta, momentum)
    return bank.deliver(
        frame.fragment,
        is_assign=frame.is_assign,
        merged_sequence=frame.merged_sequence,
        kept_frac=frame.kept_frac,
    )


def pushed(
    bank: FragmentBank, incarnation: int, place: str, frame: PushCaptured, values: F32
) -> Said:
    """The push made again of the fragment's values: the same, or `diverged`."""
    made = bank.push(frame.fragment, frame.sequence, values)
    name = made.digest.hex()
    if made.digest == frame.digest and made.base_version == frame.base_version:
        return Said("push", incarnation, frame.sequence, name, place)
    text = f"push {frame.sequence} came out otherwise than its learner recorded"
    return Said("diverged", incarnation, frame.sequence, name, place, text)
