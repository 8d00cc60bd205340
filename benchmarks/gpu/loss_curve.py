"""The loss curve in the device's own precision, beside that of plain torch in the same.

Two runs that differ only in how a batch is cut into micro-batches differ, too: by the order of
sums. That is the noise, and the distance is told in it.
"""

from __future__ import annotations

import torch

from benchmarks.gpu.device import facts_of
from benchmarks.gpu.plain import PlainLoop
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import builtin_of, release, workplace

NAME = "loss curve"
NOISES_MAX = 3.0
NOISE_MIN = 1e-4
"""Nats. Below it two curves are the same, and a ratio would say nothing."""


def check(device: str, sizes: Sizes) -> list[Row]:
    """How far the curves are apart; f32 where the device has no bf16, which a row says."""
    kind = torch.device(device)
    with workplace(sizes) as place:
        genesis = place.genesis(sizes.model)
        setup = place.setup(genesis, device)
        is_bf16 = builtin_of(setup).accelerator.mixed_precision == "bf16"
        ours = [setup.loop.step().loss for _ in range(sizes.loss_steps)]
        del setup
        release(kind)
        curves = []
        for micro_batch in (sizes.micro_batch, max(1, sizes.micro_batch // 2)):
            plain = PlainLoop(place, genesis, kind, micro_batch=micro_batch, is_bf16=is_bf16)
            curves.append([plain.step() for _ in range(sizes.loss_steps)])
            del plain
            release(kind)
    noise = max(NOISE_MIN, _apart(*curves))
    precision = "bf16" if is_bf16 else "f32"
    what = f"in {sizes.loss_steps} local steps of {sizes.model.name}, {precision}"
    rows = [
        Row(NAME, f"last loss {what}", ours[-1], "nats"),
        Row(NAME, f"distance to plain torch {what}", _apart(ours, curves[0]), "nats"),
        Row(NAME, "noise: plain torch in smaller micro-batches", noise, "nats"),
        Row(NAME, "distance over noise", _apart(ours, curves[0]) / noise, at_most=NOISES_MAX),
    ]
    if not facts_of(device).has_bf16:
        rows.append(Row(NAME, "in bf16", why_not="this device has no bf16 in hardware"))
    return rows


def _apart(one: list[float], other: list[float]) -> float:
    """The largest distance of two curves."""
    return max(abs(left - right) for left, right in zip(one, other, strict=True))
