"""What activation checkpointing gains in memory and costs in time."""

from __future__ import annotations

import torch

from benchmarks.gpu.device import PeakMemory
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import Workplace, builtin_of, median_step_s, release, workplace
from protocol.project import Genesis

NAME = "checkpointing"


def check(device: str, sizes: Sizes) -> list[Row]:
    """Memory beside the weights with over without, and time with over without."""
    kind = torch.device(device)
    with workplace(sizes) as place:
        genesis = place.genesis(sizes.model)
        kept_bytes, kept_s, _ = _measured(place, genesis, device, is_on=False)
        release(kind)
        anew_bytes, anew_s, is_on = _measured(place, genesis, device, is_on=True)
    if not is_on:
        return [Row(NAME, "checkpointing", why_not=f"{sizes.model.name} cannot do it")]
    what = f"{sizes.model.name}, {sizes.micro_batch} x {sizes.sequence_tokens}"
    rows = [
        Row(NAME, f"activations kept: {what}", kept_bytes / 2**30, "GiB"),
        Row(NAME, "activations computed again", anew_bytes / 2**30, "GiB"),
        Row(NAME, "time of a local step, with over without", anew_s / kept_s),
    ]
    if kept_bytes:
        rows.insert(2, Row(NAME, "memory, with over without", anew_bytes / kept_bytes))
    return rows


def _measured(
    place: Workplace, genesis: Genesis, device: str, *, is_on: bool
) -> tuple[int, float, bool]:
    """Bytes that a local step takes beside what stays, its seconds, and whether it was on."""
    setup = place.setup(genesis, device, checkpoints_activations=is_on)
    took_s = median_step_s(setup.loop.step, place.sizes)
    peak = PeakMemory(setup.loop.device)
    peak.begin()
    held = peak.held()
    setup.loop.step()
    return peak.bytes() - held, took_s, builtin_of(setup).is_checkpointed
