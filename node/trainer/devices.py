"""Which device each rank of a trainer has; no torch here, so that settings can be checked by it."""

from __future__ import annotations

import re
from typing import Final

from protocol.errors import UserError

_NAME = re.compile(r"[a-z]{2,16}(:\d{1,3})?")

ONE_RANK: Final = frozenset({"mps", "xla"})
"""Kinds of which one process drives all there is."""


def named_devices(device: str | None) -> tuple[str, ...]:
    """The devices in a list such as `cuda:0,cuda:2`; none for the best there is.

    UserError for what is no such name, or for one that is there twice.
    """
    if device is None:
        return ()
    names = tuple(part.strip() for part in device.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{name!r} is not a device. Name cpu, cuda, cuda:1, mps, xpu or xla, or several "
                "with commas between."
            )
    if len(set(names)) < len(names):
        raise UserError(f"The devices {device!r} name one twice. Name each once.")
    if len(names) > 1 and any(":" not in name for name in names):
        raise UserError(f"Of several devices each needs its number, not {device!r}: cuda:0,cuda:1.")
    return names


def ranks_wanted(device: str | None, ranks: int | None, *, is_sharded: bool = False) -> int:
    """How many processes train. UserError if that is not how many devices are named, or if one
    should share the model with others."""
    named = named_devices(device)
    wanted = ranks or max(1, len(named))
    if len(named) > 1 and wanted != len(named):
        raise UserError(
            f"{len(named)} devices are named and {wanted} ranks wanted: every rank has its own "
            "device. Leave learner.ranks out, or name as many."
        )
    if wanted > 1 and len(named) == 1 and ":" in named[0]:
        raise UserError(f"{named[0]} is one device for {wanted} ranks. Name the others too.")
    if wanted > 1 and named and named[0] in ONE_RANK:
        raise UserError(f"{named[0]} can have only one process. Set learner.ranks to 1.")
    if is_sharded and wanted == 1:
        raise UserError(
            "With learner.sharded several devices hold the model together, and there is one. Name "
            "several in learner.device, set learner.ranks, or set learner.sharded to false."
        )
    return wanted


def device_of(rank: int, ranks: int, device: str | None, best: str) -> str | None:
    """The device of one rank; None for the best there is, where there is one rank.

    best: the kind of the best device here, as torch calls it.
    """
    named = named_devices(device)
    ranks_wanted(device, ranks)
    if ranks == 1:
        return device
    if len(named) > 1:
        return named[rank]
    kind = named[0] if named else best
    ranks_wanted(kind, ranks)
    return kind if kind == "cpu" else f"{kind}:{rank}"


def in_words(devices: tuple[str, ...]) -> str:
    """The devices of all ranks as one name: `cpu`, `cuda:0,cuda:1`."""
    return ",".join(dict.fromkeys(devices))
